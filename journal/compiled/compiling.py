"""`compiled`: numba's njit with a cache on disk, keyed by a digest of all sources of the kernels.

Numba checks only whether the function's own file changed, but compiles constants from other files into it: after a
change of the layout it would still use the old offsets. So the name of the cache folder includes the digest of all
sources. A second start compiles nothing. The folder is private to its owner (`journal.compiled.private_cache`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import config
from numba.core.typeinfer import register_dispatcher

from tandemfeed.journal.compiled.places import cache_places, kernel_folder
from tandemfeed.journal.compiled.private_cache import cache_in

JOURNAL = Path(__file__).parent.parent
SOURCES = (  # relative to the journal's package
    "compiled/compiling.py",
    "compiled/kernels.py",
    "compiled/memory.py",
    "compiled/reading.py",
    "compiled/segment_walk.py",
    "format/layout.py",
    "persistent_queue/blocks/state_bits.py",
)


def compile_into(folder: Path | None, function: Callable[..., Any], *signature: object, **options: Any) -> Any:
    """Compile a function, or load it from the cache folder; None: no cache.

    Args:
        signature: its types, to compile or load it now; without, at the first call.
        options: numba's.
    """
    dispatcher = njit(**options)(function)
    if config.DISABLE_JIT:
        return dispatcher
    if folder is not None:
        cache_in(folder, dispatcher)
    if signature:
        with register_dispatcher(dispatcher):  # registered with the compiler meanwhile, as njit does
            for each in signature:
                dispatcher.compile(each)
            dispatcher.disable_compile()
    return dispatcher


_DIGEST = hashlib.sha256(b"".join((JOURNAL / name).read_bytes() for name in SOURCES)).hexdigest()[:16]
CACHE_FOLDER = kernel_folder(_DIGEST, *cache_places())


def compiled(*, nogil: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function, or load it from the cache.

    Args:
        nogil: release the interpreter lock; costs about 100 ns, so only for longer functions.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        found: Callable[..., Any] = compile_into(CACHE_FOLDER, function, nogil=nogil)
        return found

    return decorate
