"""Which pages of a mapped file are in this process's page tables: maps them ahead of time and releases them after use.

An append that touches an unmapped page waits for a page fault: some microseconds, or longer if the file system is
involved. Mapped pages must be unmapped when the process ends: the kernel unmaps thousands of pages of a file at a time,
during which nothing else runs on that processor for 1 to 2 ms. Neither operation changes the file.

Calls the C library through ctypes, which releases the interpreter lock; `mmap.madvise` does not.
"""

from __future__ import annotations

import ctypes
import mmap

MADV_POPULATE_WRITE = 23  # linux/mman.h, since 5.14; mmap has no name for it before Python 3.14
PAGE_SIZE = mmap.PAGESIZE
STEP = 1 << 20  # other threads cannot map anything during a step

_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def populate(address: int, begin: int, end: int) -> None:
    """Map the pages with the bytes `begin` to `end` - 1 for writing. Does nothing before Linux 5.14."""
    begin = begin // PAGE_SIZE * PAGE_SIZE
    for start in range(begin, end, STEP):
        if _libc.madvise(address + start, min(STEP, end - start), MADV_POPULATE_WRITE):
            return  # not supported, or no memory: pages are mapped on first use


def release(address: int, begin: int, end: int) -> None:
    """Unmap the whole pages between `begin` and `end`; a page is mapped again on its next use."""
    begin, end = -(-begin // PAGE_SIZE) * PAGE_SIZE, end // PAGE_SIZE * PAGE_SIZE
    if begin < end:
        _libc.madvise(address + begin, end - begin, mmap.MADV_DONTNEED)
