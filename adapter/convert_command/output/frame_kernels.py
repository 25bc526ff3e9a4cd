"""Compiled code that walks over output frames: where each message is, its values in columns, its bytes in a file."""

from __future__ import annotations

import numpy as np
from numba import types

from tandemfeed.adapter.conversion.kernel.unaligned import LOADS, STORES
from tandemfeed.adapter.kernel_cache import compiled, compiled_part
from tandemfeed.feedcore.documents.message_model import PREFIX_SIZE
from tandemfeed.feedcore.wire.output_packet import FRAME_LAYOUT, OUTPUT_FRAME_SIZE
from tandemfeed.feedcore.wire.sbe_header import SBE_HEADER_LAYOUT

load_i64, load_u8, store_64, store_8 = LOADS["load_i64"], LOADS["load_u8"], STORES["store_64"], STORES["store_8"]

SOFH_SIZE = 6  # FIX Simple Open Framing Header: message length u32, encoding type u16, both big-endian
SOFH_SBE_LITTLE_ENDIAN = 0xEB50
LENGTH = FRAME_LAYOUT.offsets["frame_length"]
TEMPLATE = OUTPUT_FRAME_SIZE + SBE_HEADER_LAYOUT.offsets["templateId"]
SCHEMA = OUTPUT_FRAME_SIZE + SBE_HEADER_LAYOUT.offsets["schemaId"]
FRAMES = types.Array(types.uint8, 1, "C", readonly=True)
BYTES, CODES = types.Array(types.uint8, 1, "C"), types.Array(types.int32, 1, "C")
PLACES, PAIRS = types.Array(types.int64, 1, "C"), types.Array(types.int64, 2, "C")


@compiled(types.intp(FRAMES, types.intp, PLACES, PLACES, PLACES), nogil=True)
def index_frames(frames, schema_id, starts, sizes, templates):  # type: ignore[no-untyped-def]
    """Find the messages of a schema in consecutive frames; returns their number.

    Args:
        starts, sizes, templates: receive each message's frame and template; as long as there can be frames.
    """
    count = at = 0
    while at + OUTPUT_FRAME_SIZE <= frames.size:
        size = np.int64(frames[at + LENGTH]) | np.int64(frames[at + LENGTH + 1]) << 8
        if size >= PREFIX_SIZE and at + size <= frames.size:
            schema = np.int64(frames[at + SCHEMA]) | np.int64(frames[at + SCHEMA + 1]) << 8
            if schema == schema_id:
                starts[count] = at
                sizes[count] = size
                templates[count] = np.int64(frames[at + TEMPLATE]) | np.int64(frames[at + TEMPLATE + 1]) << 8
                count += 1
        at += size if size > OUTPUT_FRAME_SIZE else OUTPUT_FRAME_SIZE  # type: ignore[assignment]
    return count


@compiled_part
def copy_bytes(source, at, target, to, size):  # type: ignore[no-untyped-def]
    """Copy `size` bytes, a word at a time; both offsets count from the beginning of the array's memory."""
    words_end = at + size - 7
    while at < words_end:
        store_64(target, to, load_i64(source, at))
        at += 8
        to += 8
    for place in range(size & 7):
        store_8(target, to + place, load_u8(source, at + place))


@compiled(types.none(FRAMES, PLACES, BYTES, types.intp, types.intp, PAIRS), nogil=True)
def copy_columns(frames, starts, columns, first, room, places):  # type: ignore[no-untyped-def]
    """Copy values of the frames that begin at `starts` to columns, from row `first` on.

    Args:
        columns: each has `room` values; they follow one another.
        places: (offset in the frame, size) of each column's values.
    """
    base = 0
    for column in range(places.shape[0]):
        offset, size = places[column, 0], places[column, 1]
        at = base + first * size
        if size == 8:
            for number in range(starts.size):
                store_64(columns, at + 8 * number, load_i64(frames, starts[number] + offset))
        elif size == 1:
            for number in range(starts.size):
                store_8(columns, at + number, load_u8(frames, starts[number] + offset))
        else:
            for number in range(starts.size):
                copy_bytes(frames, starts[number] + offset, columns, at + size * number, size)
        base += room * size


@compiled_part
def digest_of(data, at, size):  # type: ignore[no-untyped-def]
    """A digest of `size` bytes; the offset counts from the beginning of the array's memory."""
    digest, end = np.uint64(size), at + size
    while at + 8 <= end:
        digest = (digest ^ np.uint64(load_i64(data, at))) * np.uint64(0x9E37_79B9_7F4A_7C15)
        digest ^= digest >> np.uint64(32)
        at += 8
    while at < end:
        digest = (digest ^ np.uint64(load_u8(data, at))) * np.uint64(0x9E37_79B9_7F4A_7C15)
        at += 1
    return digest ^ (digest >> np.uint64(32))


@compiled_part
def are_equal(data, one, other, size):  # type: ignore[no-untyped-def]
    """True if `size` bytes at two places are equal."""
    end = one + size
    while one + 8 <= end and load_i64(data, one) == load_i64(data, other):
        one += 8
        other += 8
    while one < end and load_u8(data, one) == load_u8(data, other):
        one += 1
        other += 1
    return one == end


@compiled(types.intp(FRAMES, types.intp, CODES, CODES, CODES), nogil=True)
def encode_texts(values, size, codes, firsts, slots):  # type: ignore[no-untyped-def]
    """Number the distinct texts of a column; returns how many there are, or -1: they are too many for the table.

    Args:
        values: texts of `size` bytes each.
        codes: receives the number of each text.
        firsts: receives the row of each distinct text; half as long as `slots`.
        slots: hash table of numbers + 1; 0: free.
    """
    count, mask = 0, slots.size - 1
    if size == 1 and mask >= 255:  # the text is its place in the table
        for row in range(codes.size):
            slot = np.int64(values[row])
            if slots[slot] == 0:
                firsts[count] = row
                count += 1
                slots[slot] = count
            codes[row] = slots[slot] - 1
        return count
    for row in range(codes.size):
        slot = np.int64(digest_of(values, row * size, size) & np.uint64(mask))
        while slots[slot] != 0 and not are_equal(values, row * size, firsts[slots[slot] - 1] * size, size):
            slot = (slot + 1) & mask
        if slots[slot] == 0:
            if count == firsts.size:
                return -1
            firsts[count] = row
            count += 1
            slots[slot] = count
        codes[row] = slots[slot] - 1
    return count


@compiled(types.intp(FRAMES, types.intp, BYTES, types.intp), nogil=True)
def write_open_framing(frames, schema_id, out, to):  # type: ignore[no-untyped-def]
    """Write the messages of a schema in consecutive frames, each after a Simple Open Framing Header, from `to` on.

    Returns:
        where they end. A message takes as many bytes as its frame and two more.
    """
    at = 0
    while at + OUTPUT_FRAME_SIZE <= frames.size:
        size = np.int64(frames[at + LENGTH]) | np.int64(frames[at + LENGTH + 1]) << 8
        if size >= PREFIX_SIZE and at + size <= frames.size:
            schema = np.int64(frames[at + SCHEMA]) | np.int64(frames[at + SCHEMA + 1]) << 8
            if schema == schema_id:
                framed = size - OUTPUT_FRAME_SIZE + SOFH_SIZE
                for place in range(4):
                    out[to + place] = (framed >> (24 - 8 * place)) & 255
                out[to + 4] = SOFH_SBE_LITTLE_ENDIAN >> 8
                out[to + 5] = SOFH_SBE_LITTLE_ENDIAN & 255
                copy_bytes(frames, at + OUTPUT_FRAME_SIZE, out, to + SOFH_SIZE, framed - SOFH_SIZE)
                to += framed
        at += size if size > OUTPUT_FRAME_SIZE else OUTPUT_FRAME_SIZE  # type: ignore[assignment]
    return to
