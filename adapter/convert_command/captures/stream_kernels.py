"""Compiled walks over datagrams: their headers and messages, then each stream's messages in order.

What the first walk does not understand it leaves unread; where the second finds anything but the next messages or
duplicates, it stops. Both are then left to the decoders and the merge in `adapter.conversion.formats`.
"""

from __future__ import annotations

import numpy as np

from tandemfeed.adapter.conversion.kernel.unaligned import LOADS, STORES
from tandemfeed.adapter.convert_command.captures.keys import FLAG, KEY_SIZE, WORD_SIZE, number_of
from tandemfeed.adapter.convert_command.captures.rows import (
    APART,
    COUNT,
    FLOW,
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

load_u16, load_u16be, load_u32, load_u32be, load_i64, load_i64be = (
    LOADS[f"load_{name}"] for name in ("u16", "u16be", "u32", "u32be", "i64", "i64be")
)
store_8, store_64 = STORES["store_8"], STORES["store_64"]

SEQUENCE_MAX, UNNUMBERED_SEQUENCE = 1 << 62, -1
DIGEST_SIZE = 64  # bytes of a packet or message that are compared: numbers, times, the first values
GROUP_SIZE = 4  # bytes of a stream's key that number the group of its destinations; the session follows

# A header's parts, by row: each has an offset, a size (0: absent), 1 for big-endian, and a factor.
# The parts from SENT_PART on are added: together they are the sending time.
SEQUENCE_PART, COUNT_PART, LENGTH_PART, VERSION_PART, SENT_PART = range(5)

# What else `read_headers` must know of a protocol.
(
    HEADER_SIZE,
    LENGTH_ADDS,  # the header's length and this are the datagram's bytes
    VERSION,  # the only one that is read
    END_COUNT,  # a count that means none, at the end of a session; -1: there is no such count
    SESSION_AT,  # where the session's name is
    SESSION_SIZE,
    CHANNEL_AT,  # where the number of the channel is
    CHANNEL_SIZE,
    HAS_UNNUMBERED,  # messages with number 0 are numbered as they come
    LENGTH_AT,  # where a frame has its length
    LENGTH_SIZE,
    IS_BIG_ENDIAN,
    LENGTH_UNIT,
    FRAME_ADDS,
    FRAME_LEAST,  # smaller frames are not valid
    FRAME_FOUND,  # smaller frames are valid, but the converter does not find their end
) = range(16)
SETTINGS = 16

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
def number_at(data, at, size, is_big_endian):  # type: ignore[no-untyped-def]
    """An unsigned integer of any size; of 8 bytes, its bits."""
    if size == 2:
        return load_u16be(data, at) if is_big_endian else load_u16(data, at)
    if size == 4:
        return load_u32be(data, at) if is_big_endian else load_u32(data, at)
    if size == 8:
        return load_i64be(data, at) if is_big_endian else load_i64(data, at)
    value = np.int64(0)
    for place in range(size):
        value |= np.int64(data[at + place]) << (8 * (size - 1 - place if is_big_endian else place))
    return value


@compiled_part
def part_of(data, start, parts, part):  # type: ignore[no-untyped-def]
    """The value of a header's part; 0 if it is absent."""
    return number_at(data, start + parts[part, 0], parts[part, 1], parts[part, 2]) * parts[part, 3]


@compiled_part
def messages_in(data, at, end, settings):  # type: ignore[no-untyped-def]
    """(number of messages that fill `data[at:end]`; -1: none do. True if the converter finds the end of each)."""
    width, is_big = settings[LENGTH_SIZE], settings[IS_BIG_ENDIAN]
    count, is_found = np.int64(0), True
    while at < end:
        if at + settings[LENGTH_AT] + width > end:
            return np.int64(-1), False
        length = number_at(data, at + settings[LENGTH_AT], width, is_big)
        size = length * settings[LENGTH_UNIT] + settings[FRAME_ADDS]
        if size < settings[FRAME_LEAST] or size > end - at:
            return np.int64(-1), False
        is_found = is_found and size >= settings[FRAME_FOUND]
        at += size
        count += 1
    return count, is_found


@compiled_part
def header_status(data, row, parts, settings):  # type: ignore[no-untyped-def]
    """Read a datagram's header and count its messages; returns its status."""
    start, size = row[START], row[SIZE]
    if size < settings[HEADER_SIZE]:
        return UNREAD
    if parts[VERSION_PART, 1] and part_of(data, start, parts, VERSION_PART) != settings[VERSION]:
        return UNREAD
    if parts[LENGTH_PART, 1] and part_of(data, start, parts, LENGTH_PART) + settings[LENGTH_ADDS] != size:
        return UNREAD
    count, is_found = messages_in(data, start + settings[HEADER_SIZE], start + size, settings)
    if parts[COUNT_PART, 1]:
        counted = part_of(data, start, parts, COUNT_PART)
        if count != (0 if counted == settings[END_COUNT] else counted):
            return UNREAD
    sequence = part_of(data, start, parts, SEQUENCE_PART)
    if count < 0 or sequence < 0 or sequence > SEQUENCE_MAX:
        return UNREAD
    row[SEQUENCE], row[COUNT], row[FRAMES] = sequence, count, start + settings[HEADER_SIZE]
    row[SENT_NS] = 0
    for part in range(SENT_PART, parts.shape[0]):
        row[SENT_NS] += part_of(data, start, parts, part)
    return READ if is_found else APART


@compiled(nogil=True)
def read_headers(data, rows, first, groups, parts, settings, keys, slots, key_counts):  # type: ignore[no-untyped-def]
    """Read the headers of the rows from `first` on; returns how many rows are done.

    Not all are done if there is no room for another stream's key.

    Args:
        groups: by flow, the group of destinations whose datagrams have common numbers; -1: it is not read.
        parts, settings: of the protocol.
        keys, slots, key_counts: number the streams.
    """
    for number in range(first, rows.shape[0]):
        row = rows[number]
        group = groups[row[FLOW]]
        row[STATUS] = SKIPPED if group < 0 else header_status(data, row, parts, settings)
        if row[STATUS] > APART:
            continue
        key = key_counts[0] * KEY_SIZE
        store_64(keys, key, group)  # the session covers the upper half
        for place in range(WORD_SIZE, KEY_SIZE, WORD_SIZE):
            store_64(keys, key + place, 0)
        name = key + GROUP_SIZE
        copy_bytes(data, row[START] + settings[SESSION_AT], keys, name, settings[SESSION_SIZE])
        channel = row[START] + settings[CHANNEL_AT]
        copy_bytes(data, channel, keys, name + settings[SESSION_SIZE], settings[CHANNEL_SIZE])
        if settings[HAS_UNNUMBERED] and row[SEQUENCE] == 0 and row[COUNT] > 0:
            store_8(keys, key + FLAG, 1)  # a stream of its own
            row[SEQUENCE] = UNNUMBERED_SEQUENCE
        row[STREAM] = number_of(keys, slots, key_counts)
        if row[STREAM] < 0:
            return number
    return rows.shape[0]


@compiled(nogil=True)
def digest_rows(data, rows, settings, is_by_packet, digests):  # type: ignore[no-untyped-def]
    """Digest what has a row's number: the packet, or its first message; 0: a datagram without one.

    Args:
        digests: receives a digest for each row.
    """
    for number in range(rows.shape[0]):
        row = rows[number]
        digests[number] = 0
        if row[STATUS] > APART or row[COUNT] == 0:
            continue
        at, end = row[START], row[START] + row[SIZE]
        if not is_by_packet:
            at = row[FRAMES]
            length = number_at(data, at + settings[LENGTH_AT], settings[LENGTH_SIZE], settings[IS_BIG_ENDIAN])
            end = at + length * settings[LENGTH_UNIT] + settings[FRAME_ADDS]
        digest = np.uint64(14_695_981_039_346_656_037)
        for place in range(at, min(end, at + DIGEST_SIZE)):
            digest = (digest ^ np.uint64(data[place])) * np.uint64(1_099_511_628_211)  # FNV-1a
        digests[number] = np.int64(digest | np.uint64(1))


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
def merge_rows(data, rows, first, streams, limits, out, spans, progress):  # type: ignore[no-untyped-def]
    """Put the messages of the rows from `first` on into a chunk; returns (how many rows are done, why it stopped).

    Args:
        streams: the state of each stream.
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
            if sequence < stream[NEXT]:
                stream[DUPLICATES] += after - sequence
            else:
                size = row[START] + row[SIZE] - row[FRAMES]
                if not is_in_chunk(row, size, row[STREAM], out, spans, progress, limits):
                    return number, FULL
                if progress[CHUNK_COUNT] == 0:
                    progress[CHUNK_SENT_NS] = row[SENT_NS]
                copy_bytes(data, row[FRAMES], out, progress[CHUNK_SIZE], size)
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
