"""The compiled walk over datagrams that puts each stream's messages in order.

Where it finds anything but the next messages or copies of what was delivered, it stops, and leaves the datagram to the
merge in `adapter.conversion.formats`.
"""

from __future__ import annotations

from tandemfeed.adapter.convert_command.captures.content_kernels import is_known, note_content
from tandemfeed.adapter.convert_command.captures.header_kernels import UNNUMBERED_SEQUENCE
from tandemfeed.adapter.convert_command.captures.rows import (
    APART,
    COUNT,
    FRAMES,
    READ,
    SENT_NS,
    SEQUENCE,
    SIZE,
    SKIPPED,
    START,
    STATUS,
    STREAM,
    UNREAD,
)
from tandemfeed.adapter.convert_command.output.frame_kernels import copy_bytes
from tandemfeed.adapter.kernel_cache import compiled, compiled_part

# Columns of a stream's state.
(
    NEXT,  # the number of the next message, or packet
    END,  # as far as any datagram shows the stream to go
    IS_BEGUN,
    IS_HELD,  # datagrams wait for earlier ones: the stream is merged in Python
    NEWEST_NS,  # the venue's newest sending time
    FIRST,  # the first number
    DUPLICATES,  # messages, or packets, that were delivered already
    DELIVERED,  # messages
    GAPS_END,  # messages before this number may be late ones, not duplicates; what precedes the first one is a gap, too
) = range(9)
STREAM_COLUMNS = 9

# What `merge_rows` keeps between calls: of the chunk that is being filled, and counts.
CHUNK_SIZE, CHUNK_COUNT, CHUNK_SPANS, CHUNK_SENT_NS, UNNUMBERED = range(5)
PROGRESS = 5

# Columns of a span: messages of a chunk that are consecutive in their stream; of one packet, if packets are numbered.
SPAN_INDEX, SPAN_STREAM, SPAN_SEQUENCE, SPAN_END = range(4)
SPAN_COLUMNS = 4

# Limits of a chunk.
COUNT_MAX, KEEPS_TIMES, KEEPS_STREAMS, IS_BY_PACKET = range(4)

DONE, FULL, LEFT = range(3)  # why `merge_rows` returns: no rows remain; the chunk is complete; a row is left to Python


@compiled_part
def is_in_chunk(row, size, stream, out, spans, progress, limits):  # type: ignore[no-untyped-def]
    """True if there is room in the chunk for a row's messages."""
    if progress[CHUNK_COUNT] == 0:
        return True
    return (
        row[STATUS] == READ
        and progress[CHUNK_COUNT] + row[COUNT] <= limits[COUNT_MAX]
        and progress[CHUNK_SIZE] + size <= out.size
        and progress[CHUNK_SPANS] < spans.shape[0]
        and (not limits[KEEPS_STREAMS] or spans[progress[CHUNK_SPANS] - 1, SPAN_STREAM] == stream)
        and (not limits[KEEPS_TIMES] or row[SENT_NS] == progress[CHUNK_SENT_NS])
    )


@compiled_part
def put_span(stream, first, end, count, is_by_packet, spans, progress):  # type: ignore[no-untyped-def]
    """Note which messages the chunk's next `count` are."""
    last = progress[CHUNK_SPANS] - 1
    if is_by_packet or last < 0 or spans[last, SPAN_STREAM] != stream or spans[last, SPAN_END] != first:
        last += 1
        spans[last, SPAN_INDEX] = progress[CHUNK_COUNT]
        spans[last, SPAN_STREAM] = stream
        spans[last, SPAN_SEQUENCE] = first
        progress[CHUNK_SPANS] = last + 1
    spans[last, SPAN_END] = end
    progress[CHUNK_COUNT] += count


@compiled(nogil=True)
def merge_rows(  # type: ignore[no-untyped-def]
    data, rows, first, streams, limits, settings, known, out, spans, progress
):
    """Put the messages of the rows from `first` on into a chunk; returns (how many rows are done, why it stopped).

    Args:
        streams: the state of each stream.
        settings: of the protocol.
        known: a memory of what was delivered.
        out: the chunk's bytes; there is room for any datagram.
        spans: shape (room, SPAN_COLUMNS).
        progress: what is kept between calls.
    """
    for number in range(first, rows.shape[0]):
        row = rows[number]
        if row[STATUS] == SKIPPED:
            continue
        if row[STATUS] == UNREAD:
            return number, LEFT
        stream = streams[row[STREAM]]
        count = row[COUNT]
        is_unnumbered = row[SEQUENCE] == UNNUMBERED_SEQUENCE
        if count > 0 or limits[IS_BY_PACKET]:
            if not stream[IS_BEGUN]:
                stream[IS_BEGUN] = 1
                stream[NEXT] = stream[FIRST] = stream[GAPS_END] = 1 if is_unnumbered else row[SEQUENCE]
            sequence = stream[NEXT] if is_unnumbered else row[SEQUENCE]
            after = sequence + (1 if limits[IS_BY_PACKET] else count)
            is_reset = limits[IS_BY_PACKET] and sequence == 1 and stream[NEXT] > 2 and row[SENT_NS] > stream[NEWEST_NS]
            is_late = sequence < min(stream[NEXT], stream[GAPS_END])
            if stream[IS_HELD] or is_reset or is_late or (sequence != stream[NEXT] and after > stream[NEXT]):
                return number, LEFT
            begin, end = row[FRAMES], row[START] + row[SIZE]
            content = data, begin, end, row[STREAM], sequence, count, limits[IS_BY_PACKET]
            if sequence < stream[NEXT]:
                if not is_known(*content, settings, known):
                    return number, LEFT
                stream[DUPLICATES] += after - sequence
            else:
                size = end - begin
                if not is_in_chunk(row, size, row[STREAM], out, spans, progress, limits):
                    return number, FULL
                if progress[CHUNK_COUNT] == 0:
                    progress[CHUNK_SENT_NS] = row[SENT_NS]
                copy_bytes(data, begin, out, progress[CHUNK_SIZE], size)
                if not is_unnumbered:
                    note_content(*content, settings, known)
                progress[CHUNK_SIZE] += size
                if count > 0:
                    put_span(row[STREAM], sequence, after, count, limits[IS_BY_PACKET], spans, progress)
                progress[UNNUMBERED] += count if is_unnumbered else 0
                stream[NEXT] = after
                stream[DELIVERED] += count
                stream[NEWEST_NS] = row[SENT_NS]
            if row[STATUS] == APART and progress[CHUNK_COUNT]:
                return number + 1, FULL
        if stream[IS_BEGUN] and not limits[IS_BY_PACKET]:
            stream[END] = max(stream[END], row[SEQUENCE] + count)
    return rows.shape[0], DONE
