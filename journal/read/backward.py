"""Reading backward: segments link only forward, so a stretch is read forward and returned from its end.

Indices are continuous within a block, and each block must be the one that the block before it names. So what is damaged
or missing is noticed as by a forward reader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tandemfeed.journal.format.block import Block
from tandemfeed.journal.read.continuity import link_of
from tandemfeed.journal.read.library import Library

LOG = logging.getLogger("tandemfeed.journal")
READ_BACK = 1_024  # records in a stretch
Entries = list[tuple[int, bytes]]


def records_before(
    library: Library, before: int | None, read_from: Callable[[int, int], Entries]
) -> tuple[Entries, int]:
    """A stretch of records before an index, ascending, and how many are missing from it or after it.

    Empty if there are no records before the index.

    Args:
        read_from: reads a number of records from an index on.
    """
    if before is None:
        return [], 0
    lost, later = 0, library.beginning_at(before)
    block = library.before_index(before) if later is None else library.before(later.ordinal)
    while block is not None:
        if later is not None:
            lost += _missing_between(library, block, later)
        end = min(before, _end_index(library, block))
        begin = max(block.header.first_index, end - READ_BACK)
        found = [entry for entry in read_from(begin, end - begin) if begin <= entry[0] < end] if begin < end else []
        if len(found) < end - begin:
            lost += end - begin - len(found)
            LOG.warning("%s: damage; skipped %d records", block.path, end - begin - len(found))
        if found:
            return found, lost
        before = min(before, begin)
        later, block = (block, library.before(block.ordinal)) if begin == block.header.first_index else (None, block)
    return [], lost


def _end_index(library: Library, block: Block) -> int:
    """After the last record that a block ever had, as far as it is visible."""
    tail = block.tail()
    if tail is None or link_of(block) is None:  # without an end mark, the tail may be from before a power failure
        return library.end_index(block)
    return library.index_of(block, min(tail[2], library.sequence_limit(block)))


def _missing_between(library: Library, block: Block, later: Block) -> int:
    tail = block.tail()
    due = tail[2] if tail is not None else library.sequence_of(library.end_index(block))
    missing = library.missing_between(block, due, later)
    if missing.count:
        LOG.warning("%s: the next block: %s", block.path, missing)
    return missing.count
