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
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
from numba.core import config

from tandemfeed.journal.compiled.compile_report import Report, compilation_reported
from tandemfeed.journal.compiled.compiling import cache_places, compile_into, kernel_folder

ENGINES = [Path(__file__).parent / name for name in ("conversion", "convert_command/captures")]
MODULE_PREFIX = "tandemfeed_kernel_"  # of generated modules


def _engine_digest() -> str:
    digest = hashlib.sha256(f"{numba.__version__} {sys.version}".encode())
    for path in (Path(__file__), *(each for engine in ENGINES for each in sorted(engine.rglob("*.py")))):
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
    return lambda function: compile_into(CACHE_FOLDER, function, *arguments, nogil=nogil)


def compiled_part(function: Callable[..., Any]) -> Any:
    """Compile a function that only compiled functions call, never Python: it has no wrappers for Python and C.

    A third of the time to compile a small function would go into them.
    """
    return compile_into(CACHE_FOLDER, function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def table_compilation_reported(table: str, function_count: int, report: Report | None) -> AbstractContextManager[None]:
    """Report the compilation of a table's kernel and of the functions that it calls.

    Args:
        function_count: the number of functions in the generated source.
        report: receives the lines; None: they are logged.
    """
    what = f"the functions of the converter table {table!r}"
    return compilation_reported(what, CACHE_FOLDER, module=MODULE_PREFIX, total=function_count, report=report)


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
        with _without_vectors():
            exec(compile(source, file, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module
