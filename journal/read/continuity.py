"""Whether a block is the next one after another, and how many records are missing between them.

The end mark of a block names the block that follows it, and sequences continue within a cycle. So a file that is gone,
or a whole cycle, is noticed by every reader that goes from one block to another. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandemfeed.journal.format.block import Block
from tandemfeed.journal.format.layout import END_MARK, LINK, PART_BITS, Header, block_name

PART_MASK = (1 << PART_BITS) - 1


@dataclass(frozen=True, slots=True)
class Missing:
    """What is missing between two blocks.

    Attributes:
        count: of records; at least, unless `is_exact`.
        file: the name of the first missing file; empty if none is missing.
        is_exact: False if a missing file may have had more records than that.
    """

    count: int
    file: str = ""
    is_exact: bool = True

    def __str__(self) -> str:
        what = f"{self.file} is missing; " if self.file else ""
        least = "" if self.is_exact else "at least "
        return f"{what}{least}{self.count} record{'' if self.count == 1 else 's'} lost"


NOTHING = Missing(0)


def name_of(ordinal: int) -> str:
    """The name of the block of an ordinal."""
    return block_name(ordinal >> PART_BITS, ordinal & PART_MASK)


def link_of(block: Block) -> int | None:
    """The ordinal of the block that an ended block names as the next one; None if it has no whole end mark."""
    tail = block.tail()
    if tail is None or tail[0] + LINK.size > block.header.data_end:
        return None
    mark, _, ordinal = LINK.unpack_from(block.view, tail[0])
    return int(ordinal) if mark == END_MARK else None


def missing_between(former: Header, due: int, link: int | None, found: Header) -> Missing:
    """What is missing between a block and the one that was found after it.

    Args:
        due: the sequence after the last record of the former block.
        link: the block that its end mark names; None if the mark is damaged.
    """
    if link is None:  # then only the part is known: any number of cycles may have had no record
        is_same = found.cycle == former.cycle
        link = former.ordinal + 1 if is_same else found.cycle << PART_BITS
    first_due = due if found.cycle == former.cycle else 0
    count = max(found.first_sequence - first_due, 0)
    if link >= found.ordinal:
        return Missing(count)
    return Missing(max(count, 1), name_of(link), is_exact=link >> PART_BITS == found.cycle)
