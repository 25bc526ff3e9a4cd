"""A cache of compiled kernels that only its owner can write to.

Numba unpickles and runs what it loads from a cache, so a planted file would be executed. Kernels are therefore stored
in a folder that belongs to this process's user, without permissions for others, on a path that no other user can
replace; each file is checked again before it is read. If a check fails, the kernel is compiled again instead. Each
entry contains the digest of the whole source from which it was compiled, and is used only for that source.
"""

from __future__ import annotations

import contextlib
import hashlib
import linecache
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile

from tandemfeed.journal.compiled.places import private_file, private_folder


class _Locator:
    """Implements numba's cache locator: the folder of a function's entries, and the digest of their source."""

    def __init__(self, folder: Path, function: Callable[..., Any]) -> None:
        self._py_file = function.__code__.co_filename
        self._folder = folder
        place = hashlib.sha256(os.path.dirname(self._py_file).encode()).hexdigest()[:8]
        self._disambiguator = f"{function.__code__.co_firstlineno}-{place}"

    def get_cache_path(self) -> str:
        """The cache folder."""
        return str(self._folder)

    def ensure_cache_path(self) -> None:
        """Create the folder again if it was removed since the start."""
        private_folder(self._folder)

    def get_source_stamp(self) -> str:
        """Digest of the function's whole source file, because the function uses constants and functions in it."""
        linecache.checkcache(self._py_file)
        return hashlib.sha256("".join(linecache.getlines(self._py_file)).encode()).hexdigest()

    def get_disambiguator(self) -> str:
        """Distinguishes functions with the same name and file name."""
        return self._disambiguator


class Reduction(CompileResultCacheImpl):  # type: ignore[misc]  # numba has no types
    """Numba's serialisation of compiled code, with another location."""

    def __init__(self, locator: _Locator, function: Callable[..., Any]) -> None:
        self._locator = locator
        self._lineno = function.__code__.co_firstlineno
        module = Path(function.__code__.co_filename).stem
        self._filename_base = self.get_filename_base(f"{module}.{function.__qualname__}", "")


class _PrivateFiles(IndexDataCacheFile):  # type: ignore[misc]  # as above
    """The index of a function's entries, and the entries."""

    def _load_index(self) -> dict[Any, str]:
        if not private_file(self._index_path):
            return {}
        found: dict[Any, str] = super()._load_index()
        return found

    def _load_data(self, name: str) -> Any:
        path = self._data_path(name)
        if not private_file(path):
            raise FileNotFoundError(f"{path} is not a private file of this user")  # numba then compiles the function
        return super()._load_data(name)

    @contextlib.contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[IO[bytes]]:
        """Write a private temporary file and move it into place, replacing any existing file."""
        beside = f"{filepath}.tmp.{uuid.uuid4().hex[:16]}"
        try:
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                yield file
            os.replace(beside, filepath)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(beside)
            raise


class _PrivateCache(FunctionCache):  # type: ignore[misc]  # as above
    """Numba's cache of a function, with the private location and files."""

    def __init__(self, folder: Path, function: Callable[..., Any], reduction: type[Reduction]) -> None:
        locator = _Locator(folder, function)
        self._name = repr(function)
        self._py_func = function
        self._impl = reduction(locator, function)
        self._cache_path = locator.get_cache_path()
        self._cache_file = _PrivateFiles(self._cache_path, self._impl.filename_base, locator.get_source_stamp())
        self.enable()


def cache_in(folder: Path, dispatcher: Any, reduction: type[Reduction] = Reduction) -> None:
    """Cache what a numba dispatcher compiles in a private folder, and load it from there.

    A function whose source cannot be read is not cached, because its entries could not be checked against the source.

    Args:
        reduction: how compiled code is serialised.
    """
    if not linecache.getlines(dispatcher.py_func.__code__.co_filename):
        return
    dispatcher._cache = _PrivateCache(folder, dispatcher.py_func, reduction)
