"""Compiled kernels on disk: numba's njit, cached in a folder named by the digest of all its inputs.

Numba itself checks only whether a function's own file changed, although the compiled code contains the functions that
it calls. So the folder's name carries the digest of the engine's sources, and a generated kernel's entries carry the
digest of the kernel's source. A second start compiles nothing; a different release compiles again. The source is never
read from the disk: the process runs only what it generated. The folder is private to its owner
(`journal.compiled.private_cache`).
"""

from __future__ import annotations

import hashlib
import linecache
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
from numba.core import config
from numba.core.types import Array, Boolean, Integer, unliteral  # type: ignore[attr-defined]  # it has it
from numba.core.types.functions import BaseFunction

from tandemfeed.adapter.part_compiler import KernelCompiler, compile_part
from tandemfeed.journal.compiled.compile_report import Report, compilation_reported
from tandemfeed.journal.compiled.compiling import compile_into
from tandemfeed.journal.compiled.places import cache_places, kernel_folder

ENGINES = [Path(__file__).parent / name for name in ("conversion", "convert_command/captures")]
COMPILERS = [Path(__file__), Path(__file__).with_name("part_compiler.py")]
MODULE_PREFIX = "tandemfeed_kernel_"  # of generated modules

OPERATIONS = frozenset(
    getattr(operator, name)
    for each in ("add", "sub", "mul", "floordiv", "mod", "lshift", "rshift", "and_", "or_", "xor")
    for name in (each, f"i{each.rstrip('_')}")
) | {
    *(operator.lt, operator.le, operator.eq, operator.ne, operator.ge, operator.gt, operator.neg, operator.invert),
    *(operator.getitem, operator.setitem, bool, min, max),
}


def _engine_digest() -> str:
    digest = hashlib.sha256(f"{numba.__version__} {sys.version}".encode())
    for path in (*COMPILERS, *(each for engine in ENGINES for each in sorted(engine.rglob("*.py")))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


CACHE_FOLDER = kernel_folder(_engine_digest(), *cache_places())


def compiled(signature: object = None, *, nogil: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function, or load it if it was compiled before.

    Args:
        signature: its types, to compile or load it now; None: at the first call.
        nogil: release the interpreter lock, for functions that run for long while another thread has work.
    """
    arguments = () if signature is None else (signature,)
    options = {"nogil": nogil, "pipeline_class": KernelCompiler}
    return lambda function: compile_into(CACHE_FOLDER, function, *arguments, **options)


def compiled_part(function: Callable[..., Any]) -> Any:
    """Compile a function that only compiled functions call, never Python."""
    return compile_part(CACHE_FOLDER, function)


def compiled_once(function: Callable[..., Any]) -> Any:
    """`compiled_part` for a function that gains nothing from the constants that its callers pass.

    The type of a constant argument is its value, so numba compiles a part, and all that it calls, again for each. Most
    functions of order books need this: without it, they are a quarter slower.
    """
    return _without_literals(compiled_part(function))


def kernel_part(function: Callable[..., Any]) -> Any:
    """Compile a part of one generated kernel. It is not stored, because the kernel contains it."""
    return _without_literals(compile_part(None, function))


def _without_literals(dispatcher: Any) -> Any:
    """Have a function compiled once for all constants that callers pass."""
    if config.DISABLE_JIT:
        return dispatcher
    resolve = dispatcher.get_call_template

    def get_call_template(args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        return resolve(tuple(unliteral(each) for each in args), kws)

    dispatcher.get_call_template = get_call_template
    return dispatcher


def table_compilation_reported(table: str, function_count: int, report: Report | None) -> AbstractContextManager[None]:
    """Report the compilation of a table's kernel and of the functions that it calls.

    Args:
        function_count: the number of functions in the generated source.
        report: receives the lines; None: they are logged.
    """
    what = f"the functions of the converter table {table!r}"
    return compilation_reported(what, CACHE_FOLDER, module=MODULE_PREFIX, total=function_count, report=report)


@contextmanager
def short_compilation() -> Iterator[None]:
    """Compile kernels faster than numba does by itself, in the block."""
    with _without_vectors(), _with_known_operations():
        yield


@contextmanager
def _without_vectors() -> Iterator[None]:
    """Compile without looking for vector instructions: a kernel has no loop that could use them, and looking takes a
    sixth of the compilation."""
    before = config.LOOP_VECTORIZE, config.SLP_VECTORIZE
    config.LOOP_VECTORIZE = config.SLP_VECTORIZE = 0
    try:
        yield
    finally:
        config.LOOP_VECTORIZE, config.SLP_VECTORIZE = before


@contextmanager
def _with_known_operations() -> Iterator[None]:
    """Have numba find the meaning of an operation on integers and arrays once, instead of at each of its places.

    It asks a dozen templates (of texts, sets, structures) before the right one, which takes a sixth of the compilation.
    """
    resolve, known = BaseFunction.get_call_type, dict[tuple[Any, ...], Any]()

    def get_call_type(self: Any, context: Any, args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        plain = tuple(unliteral(each) for each in args)
        is_plain = all(isinstance(each, Integer | Boolean | Array) for each in plain)
        if kws or self.typing_key not in OPERATIONS or not is_plain:
            return resolve(self, context, args, kws)
        key = id(context), self.typing_key, plain
        found = known.get(key)
        if found is None or found.args not in self._impl_keys:
            found = known[key] = resolve(self, context, args, kws)
        return found

    BaseFunction.get_call_type = get_call_type  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        BaseFunction.get_call_type = resolve  # type: ignore[method-assign]


def load_generated(source: str) -> ModuleType:
    """The module with this source. If it was compiled before, its functions come from the disk."""
    name = f"{MODULE_PREFIX}{hashlib.sha256(source.encode()).hexdigest()[:24]}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    file = f"<{name}>"  # no file: tracebacks and the cache find the source here
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    sys.modules[name] = module
    try:
        with short_compilation():
            exec(compile(source, file, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module
