"""Reading backward: segments link only forward, so a stretch is read forward and returned from its end."""

from __future__ import annotations

from collections.abc import Callable

from tandemfeed.journal.library import Library

READ_BACK = 1_024  # records in a stretch


def records_before(
    library: Library, before: int | None, read_from: Callable[[int, int], list[tuple[int, bytes]]]
) -> list[tuple[int, bytes]]:
    """A stretch of records before an index, ascending; empty if there are none.

    Args:
        read_from: reads a number of records from an index on.
    """
    block = library.before_index(before) if before is not None else None
    while block is not None and before is not None:
        end = min(before, library.end_index(block))
        begin = max(block.header.first_index, end - READ_BACK)
        found = [entry for entry in read_from(begin, end - begin) if entry[0] < end]
        if found:
            return found
        block = library.before(block.ordinal)
    return []
