"""`compiled`: numba's njit, cached on disk under a digest of every source that goes into the kernels.

Numba itself asks only whether the function's own file changed, and freezes constants of others into what it compiles: a
release with another layout would go on with the former one's offsets. So the folder of the cache carries the digest of
all of them, and a second start compiles nothing. The folder is private to its owner (`journal.private_cache`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import config
from numba.core.typeinfer import register_dispatcher

from journal.private_cache import keep_in, private_folder

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
    """Where kernels of this digest are kept: the first of these folders that is this user's alone; None: there is none.

    What numba loads from there it runs, so a folder of another user, or that others may write to, is passed over.
    """
    folders = (parent / f"kernels-{digest}" for parent in parents)
    return next((folder for folder in folders if private_folder(folder)), None)


def user_cache(name: str) -> Path:
    """This user's folder of that name for what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / name


def compile_into(folder: Path | None, function: Callable[..., Any], *signature: object, **options: bool) -> Any:
    """Compile a function, or load it from the folder; None: nothing is kept.

    Args:
        signature: its types, to have it compiled or loaded at once; without, at the first call.
        options: numba's.
    """
    dispatcher = njit(**options)(function)
    if config.DISABLE_JIT:
        return dispatcher
    if folder is not None:
        keep_in(folder, dispatcher)
    if signature:
        with register_dispatcher(dispatcher):  # known to the compiler while it compiles, as njit does it
            for each in signature:
                dispatcher.compile(each)
            dispatcher.disable_compile()
    return dispatcher


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
