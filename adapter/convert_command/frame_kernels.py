"""Compiled code that walks over output frames: where each message is, and its bytes as a row or in a file."""

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
BYTES, ROWS = types.Array(types.uint8, 1, "C"), types.Array(types.uint8, 2, "C")
PLACES = types.Array(types.int64, 1, "C")


@compiled(types.intp(FRAMES, types.intp, PLACES, PLACES, PLACES))
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


@compiled(types.none(FRAMES, PLACES, ROWS, types.intp))
def copy_rows(frames, starts, rows, first):  # type: ignore[no-untyped-def]
    """Copy the frames that begin at `starts` to the rows from `first` on; a row has the size of such a frame."""
    for number in range(starts.size):
        copy_bytes(frames, starts[number], rows, (first + number) * rows.shape[1], rows.shape[1])


@compiled(types.intp(FRAMES, PLACES, PLACES, types.intp, BYTES))
def write_open_framing(frames, starts, sizes, count, out):  # type: ignore[no-untyped-def]
    """Write messages, each after a Simple Open Framing Header; returns how many bytes were written."""
    at = 0
    for number in range(count):
        size = sizes[number] - OUTPUT_FRAME_SIZE + SOFH_SIZE
        for place in range(4):
            out[at + place] = (size >> (24 - 8 * place)) & 255
        out[at + 4] = SOFH_SBE_LITTLE_ENDIAN >> 8
        out[at + 5] = SOFH_SBE_LITTLE_ENDIAN & 255
        start = starts[number] + OUTPUT_FRAME_SIZE
        copy_bytes(frames, start, out, at + SOFH_SIZE, size - SOFH_SIZE)
        at += size
    return at
