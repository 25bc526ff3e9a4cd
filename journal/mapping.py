"""What of a mapped file has its pages in this process's tables: had ahead of need, and let go when it is over.

A page that is not there stops the append that touches it, some microseconds and at times for the file system. And what
is there has to be let go when the process ends: of mapped files the kernel lets go thousands of pages at a time, and
lets nobody else run on that processor meanwhile, for 1 to 2 ms. Neither changes what is in the file.

The calls are the C library's because those let other threads run; `mmap.madvise` keeps the interpreter for itself.
"""

from __future__ import annotations

import ctypes
import mmap

MADV_POPULATE_WRITE = 23  # linux/mman.h, since 5.14; mmap has no name for it before Python 3.14
PAGE_SIZE = mmap.PAGESIZE
STEP = 1 << 20  # nobody can map anything else meanwhile

_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def populate(address: int, begin: int, end: int) -> None:
    """Have the pages of a map that hold `begin` … `end` - 1 there, for writing. Before Linux 5.14 it does nothing."""
    begin = begin // PAGE_SIZE * PAGE_SIZE
    for start in range(begin, end, STEP):
        if _libc.madvise(address + start, min(STEP, end - start), MADV_POPULATE_WRITE):
            return  # no such call, or no room: the faults come one by one


def let_go(address: int, begin: int, end: int) -> None:
    """Have the whole pages between `begin` and `end` not there; whoever touches one has it again."""
    begin, end = -(-begin // PAGE_SIZE) * PAGE_SIZE, end // PAGE_SIZE * PAGE_SIZE
    if begin < end:
        _libc.madvise(address + begin, end - begin, mmap.MADV_DONTNEED)
