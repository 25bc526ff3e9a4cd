"""The compiled loop over the messages of source packets."""

from __future__ import annotations

import numpy as np
from numba import types

from tandemfeed.feedcore.wire import source_packet
from tandemfeed.feedcore.wire.source_packet import SOURCE_FRAME_LAYOUT, SOURCE_FRAME_SIZE
from tandemfeed.spark_feed.compiling import compiler_for

DATA = types.Array(types.uint8, 1, "C", readonly=True)
NUMBERS = types.Array(types.int64, 2, "C")

# Rows of `packets`: one column per packet. START is that of its first frame.
START, END, FIRST_SEQ, MESSAGE_COUNT, PACKET_ROWS = range(5)
# Rows of `found`: one column per message.
FRAME, SOURCE_SEQ, FOUND_ROWS = range(3)

LENGTH, TYPE = SOURCE_FRAME_LAYOUT.offsets["frame_length"], SOURCE_FRAME_LAYOUT.offsets["message_type"]

_compiled = compiler_for(__file__, source_packet.__file__)


@_compiled(types.int64(DATA, NUMBERS, types.int64, types.int64, NUMBERS))
def find_frames(data, packets, type_id, frame_size, found):  # type: ignore[no-untyped-def]
    """Find the messages of one type in source packets; returns their number, or -(i + 1) if packet i is malformed.

    Args:
        frame_size: the least bytes of such a message.
        found: receives the messages; it has a column for each message of the packets.
    """
    count = 0
    for packet in range(packets.shape[1]):
        at, end = packets[START, packet], packets[END, packet]
        first = packets[FIRST_SEQ, packet]
        for seq in range(first, first + packets[MESSAGE_COUNT, packet]):
            if at + SOURCE_FRAME_SIZE > end:
                return -(packet + 1)
            size = np.int64(data[at + LENGTH]) | np.int64(data[at + LENGTH + 1]) << 8
            if size < SOURCE_FRAME_SIZE or at + size > end:
                return -(packet + 1)
            if (np.int64(data[at + TYPE]) | np.int64(data[at + TYPE + 1]) << 8) == type_id:
                if size < frame_size:
                    return -(packet + 1)
                found[FRAME, count] = at
                found[SOURCE_SEQ, count] = seq
                count += 1
            at += size
    return count
