"""`compiled`: numba's njit, cached on disk under a digest of every source that goes into the kernels.

Numba itself asks only whether the function's own file changed, and freezes constants of others into what it compiles: a
release with another layout would go on with the former one's offsets. So the folder of the cache carries the digest of
all of them, and a second start compiles nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import config

PACKAGE = Path(__file__).parent
SOURCES = (
    "compiling.py",
    "kernels.py",
    "layout.py",
    "memory.py",
    "persistent_queue/state_bits.py",
    "reading.py",
    "segment_walk.py",
)


def _cache_folder() -> Path | None:
    """Beside the package where that may be written, else the user's cache; None if neither may."""
    digest = hashlib.sha256(b"".join((PACKAGE / name).read_bytes() for name in SOURCES)).hexdigest()[:16]
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    for parent in (PACKAGE / "__pycache__", user / "tandemfeed-journal"):
        folder = parent / f"kernels-{digest}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return None


CACHE_FOLDER = _cache_folder()


def compiled(*, nogil: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function, or load it.

    Args:
        nogil: other threads run meanwhile; worth its hundred nanoseconds for what takes longer.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        former = config.CACHE_DIR
        config.CACHE_DIR = str(CACHE_FOLDER or "")
        try:
            found: Callable[..., Any] = njit(cache=CACHE_FOLDER is not None, nogil=nogil)(function)
        finally:
            config.CACHE_DIR = former
        return found

    return decorate
