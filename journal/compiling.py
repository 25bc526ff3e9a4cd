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


def kernel_folder(digest: str, *parents: Path) -> Path | None:
    """Where kernels of this digest are kept: in the first of these folders that may be written; None: in none."""
    for parent in parents:
        folder = parent / f"kernels-{digest}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return None


def user_cache(name: str) -> Path:
    """This user's folder of that name for what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / name


def compile_into(folder: Path | None, function: Callable[..., Any], *signature: object, **options: bool) -> Any:
    """Compile a function, or load it from the folder; None: nothing is kept.

    Args:
        signature: its types, to have it compiled or loaded at once; without, at the first call.
        options: numba's.
    """
    former = config.CACHE_DIR
    config.CACHE_DIR = str(folder or "")
    try:
        return njit(*signature, cache=folder is not None, **options)(function)
    finally:
        config.CACHE_DIR = former


_DIGEST = hashlib.sha256(b"".join((PACKAGE / name).read_bytes() for name in SOURCES)).hexdigest()[:16]
CACHE_FOLDER = kernel_folder(_DIGEST, PACKAGE / "__pycache__", user_cache("tandemfeed-journal"))


def compiled(*, nogil: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function, or load it.

    Args:
        nogil: other threads run meanwhile; worth its hundred nanoseconds for what takes longer.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        found: Callable[..., Any] = compile_into(CACHE_FOLDER, function, nogil=nogil)
        return found

    return decorate
