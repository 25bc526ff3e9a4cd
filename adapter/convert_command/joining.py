"""Joins consecutive messages to larger chunks, because each call of the kernel and of the output has a fixed cost.

The packets of a capture often have one or two messages each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tandemfeed.adapter.conversion.formats.chunks import FrameChunk
from tandemfeed.adapter.conversion.table.table import (
    Conversion,
    ConverterTable,
    DataWrite,
    GroupWrite,
    Guard,
    Operation,
    OrderAction,
    PacketValue,
)

MESSAGES_MAX = 20_000  # of a chunk; the progress bar moves after each
BYTES_MAX = 2 << 20


def joined(chunks: Iterable[FrameChunk], *, keeps_times: bool) -> Iterator[FrameChunk]:
    """The same messages in the same order, in larger chunks.

    Args:
        keeps_times: never join chunks with different `sent_at_ns`.
    """
    parts: list[bytes] = []
    first = FrameChunk(b"", 0, 0)
    count = size = 0
    for chunk in chunks:
        continues = (
            parts
            and chunk.sequence == first.sequence + count
            and chunk.session == first.session
            and not (keeps_times and chunk.sent_at_ns != first.sent_at_ns)
            and count + chunk.message_count <= MESSAGES_MAX
            and size + len(chunk.frames) <= BYTES_MAX
        )
        if not continues:
            if parts:
                yield replace(first, frames=b"".join(parts), message_count=count)
            parts, first, count, size = [], chunk, 0, 0
        parts.append(chunk.frames)
        count += chunk.message_count
        size += len(chunk.frames)
    if parts:
        yield replace(first, frames=b"".join(parts), message_count=count)


def reads_send_time(table: ConverterTable) -> bool:
    """True if an output of this table depends on the time at which a packet was sent."""
    return _depends_on_send_time(table.conversions, set())


def _depends_on_send_time(part: object, seen: set[int]) -> bool:
    if isinstance(part, PacketValue):
        return part.name == "sent_at_ns"
    if isinstance(part, tuple):
        return any(_depends_on_send_time(each, seen) for each in part)
    if isinstance(part, dict):
        return any(_depends_on_send_time(each, seen) for each in part.values())
    if not isinstance(part, Conversion | GroupWrite | DataWrite | Guard | Operation | OrderAction) or id(part) in seen:
        return False
    seen.add(id(part))
    return any(_depends_on_send_time(getattr(part, name), seen) for name in type(part).__dataclass_fields__)
