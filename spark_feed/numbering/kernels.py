"""The compiled loops over messages and packets."""

from __future__ import annotations

from numba import types

from tandemfeed.spark_feed.compiling import compiler_for

BYTES = types.Array(types.uint8, 1, "C")
GIVEN_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
GIVEN_ROWS = types.Array(types.uint8, 2, "C", readonly=True)
INDEXES = types.Array(types.int64, 1, "C")
GIVEN_INDEXES = types.Array(types.int64, 1, "C", readonly=True)
GIVEN_SIZES = types.Array(types.uint32, 1, "C", readonly=True)

_compiled = compiler_for(__file__)


@_compiled(types.int64(GIVEN_SIZES, GIVEN_INDEXES, *(types.int64,) * 3, INDEXES))
def cut_packets(sizes, record_index, room, messages_max, packet_records, cuts):  # type: ignore[no-untyped-def]
    """Divide messages into packets: packet i has the messages from cuts[i] to before cuts[i + 1].

    Returns the number of packets; if message i fits in none, -(i + 1).
    """
    packets = first = used = 0
    cuts[0] = 0
    for message in range(len(sizes)):
        size = sizes[message]
        if size > room:
            return -(message + 1)
        if message > first and (
            used + size > room
            or message - first == messages_max
            or record_index[message] // packet_records != record_index[message - 1] // packet_records
        ):
            packets += 1
            cuts[packets] = first = message
            used = 0
        used += size
    if len(sizes):
        packets += 1
        cuts[packets] = len(sizes)
    return packets


@_compiled(types.void(GIVEN_ROWS, GIVEN_BYTES, GIVEN_INDEXES, BYTES))
def join_packets(heads, data, bounds, records):  # type: ignore[no-untyped-def]
    """Write the packets' records one after the other: its head, then its part of the data, which bounds divides."""
    at = 0
    for packet in range(len(heads)):
        for place in range(heads.shape[1]):
            records[at + place] = heads[packet, place]
        at += heads.shape[1]
        begin = bounds[packet]
        size = bounds[packet + 1] - begin
        for place in range(size):
            records[at + place] = data[begin + place]
        at += size


@_compiled(types.void(GIVEN_ROWS, GIVEN_INDEXES, BYTES))
def place_frames(frames, starts, data):  # type: ignore[no-untyped-def]
    """Write each frame at its start."""
    for row in range(len(frames)):
        start = starts[row]
        for place in range(frames.shape[1]):
            data[start + place] = frames[row, place]
