"""The compiled walk over datagrams that reads their headers and counts their messages.

What it does not understand it leaves unread, to the decoders in `adapter.conversion.formats`.
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
def frame_end(data, at, settings):  # type: ignore[no-untyped-def]
    """Where the message that begins at `at` ends; there is a whole one."""
    length = number_at(data, at + settings[LENGTH_AT], settings[LENGTH_SIZE], settings[IS_BIG_ENDIAN])
    return at + length * settings[LENGTH_UNIT] + settings[FRAME_ADDS]


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
        is_unnumbered = settings[HAS_UNNUMBERED] and row[SEQUENCE] == 0
        if row[STATUS] <= APART and is_unnumbered and row[COUNT] == 0:
            row[STATUS] = SKIPPED
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
        if is_unnumbered:
            store_8(keys, key + FLAG, 1)  # a stream of its own
            row[SEQUENCE] = UNNUMBERED_SEQUENCE
        row[STREAM] = number_of(keys, slots, key_counts)
        if row[STREAM] < 0:
            return number
    return rows.shape[0]
