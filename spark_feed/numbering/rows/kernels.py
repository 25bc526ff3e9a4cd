"""The compiled loops over messages and packets."""

from __future__ import annotations

from numba import types

from tandemfeed.spark_feed.compiling import compiler_for

BYTES = types.Array(types.uint8, 1, "C")
GIVEN_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
GIVEN_ROWS = types.Array(types.uint8, 2, "C", readonly=True)
INDEXES = types.Array(types.int64, 1, "C")
GIVEN_INDEXES = types.Array(types.int64, 1, "C", readonly=True)
GIVEN_VALUES = types.Array(types.int64, 2, "C", readonly=True)
SIZES = types.Array(types.uint32, 1, "C")
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


@_compiled(types.void(GIVEN_INDEXES, GIVEN_INDEXES, GIVEN_INDEXES, INDEXES, INDEXES))
def divide_rows(streams, messages, frame_sizes, row_bounds, data_bounds):  # type: ignore[no-untyped-def]
    """Where each stream's rows and data begin, and the last one's end, if they are ordered by stream."""
    row_bounds[:] = 0
    data_bounds[:] = 0
    for row in range(len(streams)):
        row_bounds[streams[row] + 1] += 1
        data_bounds[streams[row] + 1] += frame_sizes[messages[row]]
    for stream in range(1, len(row_bounds)):
        row_bounds[stream] += row_bounds[stream - 1]
        data_bounds[stream] += data_bounds[stream - 1]


@_compiled(
    types.void(
        *(GIVEN_INDEXES,) * 3, GIVEN_ROWS, GIVEN_VALUES, *(GIVEN_INDEXES,) * 3, GIVEN_VALUES, GIVEN_INDEXES,
        GIVEN_ROWS, INDEXES, SIZES, BYTES,
    )
)  # fmt: skip
def frame_rows(  # type: ignore[no-untyped-def]
    streams, messages, symbols, texts, values, row_bounds, data_bounds, frame_sizes, steps, step_bounds, templates,
    order, sizes, data,
):  # fmt: skip
    """Write each row's frame to its stream's part of the data, and say in `order` and `sizes` which rows these are.

    A frame is its message's template, filled in the steps of that message: (column of `values`, offset, size, 1 if its
    first byte is the highest). The column -1 is the symbol's text.
    """
    next_row, next_data = row_bounds.copy(), data_bounds.copy()
    for row in range(len(streams)):
        stream, message = streams[row], messages[row]
        place, at, size = next_row[stream], next_data[stream], frame_sizes[message]
        next_row[stream] += 1
        next_data[stream] += size
        order[place] = row
        sizes[place] = size
        for byte in range(size):
            data[at + byte] = templates[message, byte]
        for step in range(step_bounds[message], step_bounds[message + 1]):
            column, offset, width = steps[step, 0], at + steps[step, 1], steps[step, 2]
            if column < 0:
                for byte in range(width):
                    data[offset + byte] = texts[symbols[row], byte]
                continue
            value = values[column, row]
            if steps[step, 3]:
                for byte in range(width):
                    data[offset + width - 1 - byte] = (value >> (8 * byte)) & 255
            elif width == 8:  # of a constant size, so that the compiler makes a single store of it
                for byte in range(8):
                    data[offset + byte] = (value >> (8 * byte)) & 255
            elif width == 4:
                for byte in range(4):
                    data[offset + byte] = (value >> (8 * byte)) & 255
            else:
                for byte in range(width):
                    data[offset + byte] = (value >> (8 * byte)) & 255
