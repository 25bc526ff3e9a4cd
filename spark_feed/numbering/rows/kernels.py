"""The compiled loops over messages and packets."""

from __future__ import annotations

from numba import njit, types

from tandemfeed.journal.compiled import memory
from tandemfeed.journal.compiled.memory import address_of, load8, load64, store8, store32, store64
from tandemfeed.spark_feed.compiling import compiler_for

BYTES = types.Array(types.uint8, 1, "C")
GIVEN_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
ROWS = types.Array(types.uint8, 2, "C")
GIVEN_ROWS = types.Array(types.uint8, 2, "C", readonly=True)
INDEXES = types.Array(types.int64, 1, "C")
GIVEN_INDEXES = types.Array(types.int64, 1, "C", readonly=True)
GIVEN_OFFSETS = types.Array(types.int32, 1, "C", readonly=True)
GIVEN_VALUES = types.Array(types.int64, 2, "C", readonly=True)
SIZES = types.Array(types.uint32, 1, "C")
GIVEN_SIZES = types.Array(types.uint32, 1, "C", readonly=True)

_compiled = compiler_for(__file__, memory.__file__)


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


@njit
def _copy(source, target, size):  # type: ignore[no-untyped-def]
    """Copy bytes between addresses, by words."""
    words_end = size & ~7
    for place in range(0, words_end, 8):
        store64(target + place, load64(source + place))
    for place in range(words_end, size):
        store8(target + place, load8(source + place))


@_compiled(types.void(GIVEN_ROWS, GIVEN_BYTES, GIVEN_INDEXES, BYTES))
def join_packets(heads, data, bounds, records):  # type: ignore[no-untyped-def]
    """Write the packets' records one after the other: its head, then its part of the data, which bounds divides."""
    head, head_size, body, at = address_of(heads), heads.shape[1], address_of(data), address_of(records)
    for packet in range(len(heads)):
        _copy(head + packet * head_size, at, head_size)
        at += head_size
        size = bounds[packet + 1] - bounds[packet]
        _copy(body + bounds[packet], at, size)
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


@_compiled(types.void(GIVEN_BYTES, GIVEN_OFFSETS, ROWS))
def pad_texts(data, offsets, padded):  # type: ignore[no-untyped-def]
    """Copy texts, which offsets divide, to the rows of an array of zeros; a longer text is cut off."""
    for text in range(len(offsets) - 1):
        begin = offsets[text]
        for byte in range(min(offsets[text + 1] - begin, padded.shape[1])):
            padded[text, byte] = data[begin + byte]


@_compiled(
    types.void(
        *(GIVEN_INDEXES,) * 2, GIVEN_BYTES, *(GIVEN_INDEXES,) * 4, GIVEN_VALUES, GIVEN_INDEXES, GIVEN_ROWS, INDEXES,
        SIZES, BYTES,
    )
)  # fmt: skip
def frame_rows(  # type: ignore[no-untyped-def]
    streams, messages, texts, columns, row_bounds, data_bounds, frame_sizes, steps, step_bounds, templates,
    order, sizes, data,
):  # fmt: skip
    """Write each row's frame to its stream's part of the data, and say in `order` and `sizes` which rows these are.

    A frame is its message's template, filled in the steps of that message: (column, offset, size, how, place). How: 0
    the value, its lowest byte first; 1 the value, its highest byte first; 2 a text, whose code is the value and which
    is one of those that begin at `place` of the texts, each of this size.

    Args:
        columns: the addresses of arrays of int64, one value for each row.
    """
    next_row, next_data = row_bounds.copy(), data_bounds.copy()
    texts_at, data_at, templates_at = address_of(texts), address_of(data), address_of(templates)
    for row in range(len(streams)):
        stream, message = streams[row], messages[row]
        place, at, size = next_row[stream], data_at + next_data[stream], frame_sizes[message]
        next_row[stream] += 1
        next_data[stream] += size
        order[place] = row
        sizes[place] = size
        _copy(templates_at + message * templates.shape[1], at, size)
        for step in range(step_bounds[message], step_bounds[message + 1]):
            value = load64(columns[steps[step, 0]] + 8 * row)
            field, width, how = at + steps[step, 1], steps[step, 2], steps[step, 3]
            if how == 2:
                _copy(texts_at + steps[step, 4] + value * width, field, width)
            elif how == 1:
                for byte in range(width):
                    store8(field + width - 1 - byte, value >> (8 * byte))
            elif width == 8:
                store64(field, value)
            elif width == 4:
                store32(field, value)
            else:
                for byte in range(width):
                    store8(field + byte, value >> (8 * byte))
