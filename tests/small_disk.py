"""A disk of a few megabytes, to test what happens when it is full."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest


class SmallDisk:
    """A file system of a few megabytes, mounted for one test."""

    def __init__(self, folder: Path, size: str) -> None:
        folder.mkdir()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, f"size={size}".encode()):
            pytest.skip(f"this system does not allow mounting a file system: {os.strerror(ctypes.get_errno())}")
        self._unmount = lambda: libc.umount2(str(folder).encode(), 2)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._unmount()
