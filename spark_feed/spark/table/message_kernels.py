"""The compiled loop over the messages of output packets."""

from __future__ import annotations

import numpy as np
from numba import types

from tandemfeed.feedcore.documents.message_model import PREFIX_SIZE
from tandemfeed.feedcore.wire import output_packet, sbe_header
from tandemfeed.feedcore.wire.output_packet import (
    FRAME_LAYOUT,
    OUTPUT_FRAME_SIZE,
    OUTPUT_HEADER_SIZE,
    RUN_LAYOUT,
    RUN_SIZE,
)
from tandemfeed.feedcore.wire.sbe_header import SBE_HEADER_LAYOUT
from tandemfeed.spark_feed.compiling import compiler_for

DATA = types.Array(types.uint8, 1, "C", readonly=True)
NUMBERS = types.Array(types.int64, 2, "C")
PLACES = types.Array(types.int64, 1, "A", readonly=True)
ROWS = types.Array(types.uint8, 2, "C")

# Rows of `packets`: one column per packet.
START, SIZE, RUN_COUNT, MESSAGE_COUNT, FIRST_SEQ, LIMIT_SEQ, PACKET_ROWS = range(7)
# Rows of `found`: one column per message.
FRAME, FRAME_SIZE, PACKET, MESSAGE_SEQ, STREAM, SOURCE_SEQ, FOUND_ROWS = range(7)

RUN_STREAM, RUN_MESSAGES, RUN_FIRST = (
    RUN_LAYOUT.offsets[name] for name in ("source_stream_id", "message_count", "first_source_seq")
)
LENGTH, SOURCE_OFFSET = FRAME_LAYOUT.offsets["frame_length"], FRAME_LAYOUT.offsets["source_offset"]
TEMPLATE = OUTPUT_FRAME_SIZE + SBE_HEADER_LAYOUT.offsets["templateId"]
SCHEMA = OUTPUT_FRAME_SIZE + SBE_HEADER_LAYOUT.offsets["schemaId"]
NUMBER_SIZE = 8

_compiled = compiler_for(__file__, output_packet.__file__, sbe_header.__file__)


@_compiled(types.int64(DATA, NUMBERS, types.int64, types.int64, types.int64, types.int64, NUMBERS))
def find_messages(data, packets, schema_id, template_id, low_seq, end_seq, found):  # type: ignore[no-untyped-def]
    """Find the messages of one type in output packets; returns their number, or -(i + 1) if packet i is malformed.

    Args:
        packets: rows as above; a packet's messages from LIMIT_SEQ on were replaced by later packets.
        low_seq, end_seq: only messages with these numbers.
        found: receives the messages; it has a column for each message of the packets.
    """
    count = 0
    for packet in range(packets.shape[1]):
        start = packets[START, packet]
        end = start + packets[SIZE, packet]
        run = start + OUTPUT_HEADER_SIZE
        at = run + packets[RUN_COUNT, packet] * RUN_SIZE
        messages_start, left = at, np.int64(0)
        stream, source_seq = np.int64(0), np.int64(0)
        first_seq = packets[FIRST_SEQ, packet]
        limit = min(packets[LIMIT_SEQ, packet], end_seq)
        for seq in range(first_seq, first_seq + packets[MESSAGE_COUNT, packet]):
            while left == 0:
                if run + RUN_SIZE > messages_start:
                    return -(packet + 1)
                stream = np.int64(data[run + RUN_STREAM]) | np.int64(data[run + RUN_STREAM + 1]) << 8
                left = np.int64(data[run + RUN_MESSAGES]) | np.int64(data[run + RUN_MESSAGES + 1]) << 8
                source_seq = np.int64(0)
                for place in range(NUMBER_SIZE):
                    source_seq |= np.int64(data[run + RUN_FIRST + place]) << (8 * place)
                run += RUN_SIZE
            if at + OUTPUT_FRAME_SIZE > end:
                return -(packet + 1)
            size = np.int64(data[at + LENGTH]) | np.int64(data[at + LENGTH + 1]) << 8
            if size < OUTPUT_FRAME_SIZE or at + size > end:
                return -(packet + 1)
            if low_seq <= seq < limit and size >= PREFIX_SIZE:
                template = np.int64(data[at + TEMPLATE]) | np.int64(data[at + TEMPLATE + 1]) << 8
                schema = np.int64(data[at + SCHEMA]) | np.int64(data[at + SCHEMA + 1]) << 8
                if template == template_id and schema == schema_id:
                    offset = np.int64(data[at + SOURCE_OFFSET]) | np.int64(data[at + SOURCE_OFFSET + 1]) << 8
                    found[FRAME, count] = at
                    found[FRAME_SIZE, count] = size
                    found[PACKET, count] = packet
                    found[MESSAGE_SEQ, count] = seq
                    found[STREAM, count] = stream
                    found[SOURCE_SEQ, count] = source_seq + offset
                    count += 1
            left -= 1
            at += size
    return count


@_compiled(types.void(DATA, PLACES, ROWS))
def copy_frames(data, starts, rows):  # type: ignore[no-untyped-def]
    """Copy the beginning of the frame at each start to a row."""
    for number in range(starts.size):
        start = starts[number]
        for place in range(rows.shape[1]):
            rows[number, place] = data[start + place]
