"""Compiled kernels on disk: numba's njit, cached in a folder named by the digest of everything that goes into them.

Numba itself asks only whether a function's own file changed, and freezes what it calls into what it compiles. So the
folder's name carries the digest of the engine's sources, and a generated kernel's entries that of its own source: a
second start compiles nothing, and another release compiles anew. The source itself is never read from the disk: what is
run is what was generated in this process. The folder is private to its owner (`journal.private_cache`).
"""

from __future__ import annotations

import hashlib
import linecache
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numba

from journal.compiling import compile_into, kernel_folder, user_cache

ENGINE = Path(__file__).parent / "conversion"
MODULE_PREFIX = "tandemfeed_kernel_"  # of generated modules
FOLDER_VARIABLE = "TANDEMFEED_KERNEL_CACHE"  # where compiled kernels shall lie, instead of the places below


def _engine_digest() -> str:
    digest = hashlib.sha256(f"{numba.__version__} {sys.version}".encode())
    for path in (Path(__file__), *sorted(ENGINE.glob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _parents() -> tuple[Path, ...]:
    """Where to look for a folder: beside the package, else the user's cache."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    return (Path(chosen),) if chosen else (ENGINE / "__pycache__", user_cache("tandemfeed-conversion"))


CACHE_FOLDER = kernel_folder(_engine_digest(), *_parents())


def compiled(signature: object = None) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function, or load what was compiled before.

    Args:
        signature: its types, to have it compiled or loaded at once; None: at the first call.
    """
    arguments = () if signature is None else (signature,)
    return lambda function: compile_into(CACHE_FOLDER, function, *arguments)


def load_generated(source: str) -> ModuleType:
    """The module with this source; its compiled functions come from the disk if it was loaded before."""
    name = f"{MODULE_PREFIX}{hashlib.sha256(source.encode()).hexdigest()[:24]}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    file = f"<{name}>"  # no file: here tracebacks find the lines, and the cache what its entries must be compiled from
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    sys.modules[name] = module
    try:
        exec(compile(source, file, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module
