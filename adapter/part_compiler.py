"""Compiles the parts of kernels: functions that only compiled functions call, never Python.

Numba optimises every function by itself and makes machine code of it, and then optimises it again inside each function
that calls it: one that is six calls below the kernel, seven times. A part stays intermediate code, and only the
functions that Python calls are optimised, each together with all its parts. So no part has machine code of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from llvmlite import binding
from numba import njit
from numba.core import config
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, CompileResult, compile_result

from tandemfeed.journal.compiled.private_cache import Reduction, cache_in


def compile_part(folder: Path | None, function: Callable[..., Any]) -> Any:
    """Compile a part at its first call, or load it from the cache folder; None: no cache.

    It has no wrappers for Python and C: a third of the time to compile a small function would go into them.
    """
    dispatcher = njit(pipeline_class=_PartCompiler, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
    if folder is not None and not config.DISABLE_JIT:
        cache_in(folder, dispatcher, _PartReduction)
    return dispatcher


class KernelCompiler(Compiler):  # type: ignore[misc]  # numba has no types
    """Numba's compiler, for functions that Python calls and that contain parts."""

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        """Compile a function, and give its parts their environments, by which they print or raise exceptions."""
        result = super().compile_extra(func)
        for environment in result._find_referenced_environments():
            result.codegen.set_env(environment.env_name, environment)
        return result


class _NoMachineCode:
    """Stands in for numba's code generator, which would put a part's environment into its machine code."""

    def set_env(self, name: str, environment: object) -> None:
        """Do nothing: `KernelCompiler` does it for the machine code that contains the part."""


class _PartLibrary(JITCodeLibrary):  # type: ignore[misc]  # as above
    """The intermediate code of a part, and of the parts that it calls."""

    @property
    def codegen(self) -> Any:
        """What may be done with the machine code."""
        return _NoMachineCode()

    def _optimize_final_module(self) -> None:
        """Leave it as it is; numba has simplified each function, which makes all that follows faster."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """0: there is no machine code."""
        self._ensure_finalized()
        return 0

    def serialize_using_object_code(self) -> tuple[str, bytes]:
        """What the cache contains of it."""
        self._ensure_finalized()
        return self.name, self._final_module.as_bitcode()

    def restore(self, code: bytes) -> None:
        """Take over the code that the cache contained."""
        self._final_module = binding.parse_bitcode(code)
        self._finalize_final_module()


class _PartCompiler(Compiler):  # type: ignore[misc]  # as above
    """Numba's compiler, which puts a part into a library of its kind."""

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        """Compile a part."""
        self.state.library = _PartLibrary(self.state.targetctx.codegen(), func.__qualname__)
        return super().compile_extra(func)


class _PartReduction(Reduction):
    """Numba's serialisation of compiled code, for parts."""

    def rebuild(self, target_context: Any, payload: tuple[Any, ...]) -> CompileResult:
        """As `CompileResult._rebuild`, which also puts machine code into the process."""
        (name, code), described, environment, signature, objectmode, lifted, annotation, reload_init, _ = payload
        library = _PartLibrary(target_context.codegen(), name)
        library.restore(code)
        return compile_result(
            target_context=target_context,
            typing_context=target_context.typing_context,
            library=library,
            environment=environment,
            entry_point=target_context.get_executable(library, described, environment),
            fndesc=described,
            type_annotation=annotation,
            signature=signature,
            objectmode=objectmode,
            lifted=lifted,
            reload_init=reload_init,
        )
