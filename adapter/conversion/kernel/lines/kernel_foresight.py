"""Kernel code that scans a packet before its messages are converted, and prefetches the state that they need.

With many keys, every message waits for memory twice: for the index, then for the row. Messages are converted one after
another, so these waits add up. The scan requests all rows together, so that each has arrived when its message is
converted. The prefetch affects only speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tandemfeed.adapter.conversion.kernel.kernel_names import in_variable
from tandemfeed.adapter.conversion.kernel.kernel_tables import TableData
from tandemfeed.adapter.conversion.kernel.lines.kernel_operations import ValueWriter, indented
from tandemfeed.adapter.conversion.table.table import Conversion, ConverterTable, Operand
from tandemfeed.feedcore.documents.source_layout import SourceField, SourceMessageType

WORD_SIZE = 8
FUNCTION = '''

@kernel_part
def foresee(datagram, position, count, arena):
    """Prefetch the rows of state that `count` messages from `position` on need."""
    hints = 0
    for _ in range(min(count, HINTS_MAX)):
        if position + {least} > datagram.size:
            break
        length = {length}
        if length < {least} or position + length > datagram.size:
            break
        kind = {kind}
        body = position + {body}
{branches}
        position += length
    fetch_rows(arena, hints)
'''
CALL = """    if {is_far}:
        foresee(datagram, position, count, arena)
"""


class Foresight:
    """The rows that can be prefetched for a table's messages.

    Attributes:
        spaces: the numbers of the key spaces whose rows are prefetched.
    """

    def __init__(self, table: ConverterTable) -> None:
        self._table = table
        self.spaces: set[int] = set()
        self._branches: list[tuple[str, list[str]]] = []

    def add(self, source: SourceMessageType, condition: str, conversions: Sequence[Conversion]) -> None:
        """Add one message type, recognised by `condition`, and all its conversions."""
        if source.parts or source.longer:
            return  # finding its fields takes a walk over the message, which is as much work as the prefetch saves
        values = ValueWriter(0, frozenset(), TableData(), source.framing.block_length is not None)
        seen: set[tuple[int, tuple[str, ...]]] = set()
        loaded: set[str] = set()
        lines: list[str] = []
        for space, keys in self._rows(conversions):
            fields = [key for key in keys if isinstance(key, SourceField) and _is_at_hand(source, key)]
            names = tuple(in_variable(field.name) for field in fields)
            if len(fields) < len(keys) or (space, names) in seen:
                continue
            seen.add((space, names))
            self.spaces.add(space)
            for field in fields:
                lines += [] if field.name in loaded else values.load(field)
                loaded.add(field.name)
            hashed = f"hash_of(f_{names[0]})"
            for name in names[1:]:
                hashed = f"hash_of({hashed} ^ f_{name})"
            lines += [f"hints = foresee_row(arena, hints, SPACE_{space}, {hashed})"]
        if lines:
            self._branches.append((condition, lines))

    def function(self, **framing: object) -> str:
        """The source of the function; empty if nothing is prefetched.

        Args:
            framing: how to walk over frames, as in the kernel itself.
        """
        if not self._branches:
            return ""
        lines: list[str] = []
        for number, (condition, body) in enumerate(self._branches):
            lines += [f"{'elif' if number else 'if'} {condition}:", *indented(body)]
        return FUNCTION.format(branches="\n".join(indented(lines, 2)), **framing)

    def call(self) -> str:
        """The kernel's call of the function; it is skipped while all rows are in the caches anyway."""
        if not self._branches:
            return ""
        near = " or ".join(f"arena[SPACE_{space} + LIVE_COUNT] > arena[NEAR_ROWS]" for space in sorted(self.spaces))
        return CALL.format(is_far=near)

    def _rows(self, conversions: Sequence[Conversion]) -> Iterator[tuple[int, Sequence[Operand]]]:
        """(space, key) of every row that the message itself needs."""
        for conversion in conversions:
            if conversion.each is not None:
                continue
            for operation in conversion.stateful:
                if operation.space is not None:
                    yield operation.space, operation.keys
            for action in conversion.orders:
                if "id" in action.operands and action.action != "add":  # an added order has no row yet
                    spaces = self._table.books[action.book].spaces
                    if not spaces.has_words:
                        continue
                    of_book = [action.key] if action.key and not spaces.ids_are_unique else []
                    yield spaces.orders, [action.operands["id"], *of_book]


def _is_at_hand(source: SourceMessageType, key: SourceField) -> bool:
    """True for a one-word field of the message's fixed part."""
    return (
        source.fields.get(key.name) is key
        and key.constant is None
        and not key.is_variable
        and (not key.is_text or key.size <= WORD_SIZE)
    )
