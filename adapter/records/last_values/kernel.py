"""The compiled pass over output packets that keeps the last message of each type and key.

One call takes many packets of a journal's block, without the interpreter lock, so the loop's thread is not delayed. It
never grows an array: it stops before a packet for which there may be no room.

Invariant: the table has the messages of exactly the source messages before `NEXT_INPUT`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit, types

from tandemfeed.feedcore.documents.message_model import PREFIX_SIZE
from tandemfeed.feedcore.wire import output_packet, sbe_header
from tandemfeed.feedcore.wire.output_packet import (
    ANNOUNCEMENT_BIT,
    HEARTBEAT_BIT,
    OUTPUT_FRAME_SIZE,
    OUTPUT_HEADER_SIZE,
    OUTPUT_LAYOUT,
    OUTPUT_MAGIC,
    PROVISIONAL_BIT,
    RUN_LAYOUT,
    RUN_SIZE,
)
from tandemfeed.feedcore.wire.position import SEQ_MAX
from tandemfeed.feedcore.wire.sbe_header import SBE_HEADER_LAYOUT
from tandemfeed.journal.compiled.compiling import compile_into
from tandemfeed.journal.compiled.memory import load8, load32, load64, store8, store64
from tandemfeed.journal.compiled.places import cache_places, kernel_folder

# Of `state`, an int64 array. RECORD: of the batch, the first that was not taken.
CHANNEL, SESSION, ADAPTER, EPOCH, NEXT_INPUT, NEXT_MESSAGE, COUNT, VALUES_END, RECORD = range(9)
STATE_SIZE = 9
# The columns of `entries`, an int64 array with a row for each type and key. ROOM: the bytes that it has in `values`.
TEMPLATE, KEY_SIZE, PLACE, LENGTH, ROOM, INPUT, MESSAGE, STREAM, SOURCE, OF_EPOCH, SENT_AT, HASH = range(12)
ENTRY_WIDTH = 12
# What `take` returns. GAP: the next packet begins after the table's position. FULL: an array must grow.
DONE, UNTIL_REACHED, GAP, FULL, DAMAGED = range(5)
UNBOUNDED = SEQ_MAX
UNKNOWN_TEMPLATE = -1  # instead of a key's offset
FREE = -1

_NOT_NUMBERED = HEARTBEAT_BIT | PROVISIONAL_BIT | ANNOUNCEMENT_BIT
_FLAGS_AT = OUTPUT_LAYOUT.offsets["flags"]
_IDS_AT = OUTPUT_LAYOUT.offsets["channel_id"]  # and the adapter's: two uint16 are read as one uint32
_SESSION_AT, _EPOCH_AT = OUTPUT_LAYOUT.offsets["session"], OUTPUT_LAYOUT.offsets["epoch"]
_COUNTS_AT = OUTPUT_LAYOUT.offsets["message_count"]  # and of runs
_FIRST_MESSAGE_AT = OUTPUT_LAYOUT.offsets["first_message_seq"]
_FIRST_INPUT_AT = OUTPUT_LAYOUT.offsets["first_input_seq"]
_SENT_AT = OUTPUT_LAYOUT.offsets["source_sent_at_ns"]
_FIRST_SOURCE_AT = RUN_LAYOUT.offsets["first_source_seq"]  # before it: stream, counts of source and own messages
_IDENTITY_AT = OUTPUT_FRAME_SIZE + SBE_HEADER_LAYOUT.offsets["templateId"]  # and the schema's
assert list(OUTPUT_LAYOUT.places("channel_id", "adapter_id")) == [4, 5]
assert list(OUTPUT_LAYOUT.places("message_count", "run_count")) == [10, 11]
assert RUN_LAYOUT.places("source_stream_id", "source_count", "message_count") == (0, 1, 2)
assert SBE_HEADER_LAYOUT.places("templateId", "schemaId") == (1, 2)


@njit
def _hash(address, size, template):  # type: ignore[no-untyped-def]
    """Of a type and key (FNV-1a)."""
    mixed = np.uint64(14695981039346656037) ^ np.uint64(template)
    for place in range(size):
        mixed = (mixed ^ np.uint64(load8(address + place))) * np.uint64(1099511628211)
    return np.int64((mixed ^ (mixed >> np.uint64(29))) >> np.uint64(1))


@njit
def _are_equal(one, other, size):  # type: ignore[no-untyped-def]
    for place in range(size):  # noqa: SIM110  numba compiles no generators in `all`
        if load8(one + place) != load8(other + place):
            return False
    return True


@njit
def _copy(target, source, size):  # type: ignore[no-untyped-def]
    place = 0
    while place + 8 <= size:
        store64(target + place, load64(source + place))
        place += 8
    while place < size:
        store8(target + place, load8(source + place))
        place += 1


@njit
def _slot_of(key, key_size, key_offset, template, mixed, slots, entries, values):  # type: ignore[no-untyped-def]
    """The slot of a type and key: its own, or the free one where it belongs."""
    slot = mixed & (len(slots) - 1)
    while slots[slot] != FREE:
        entry = slots[slot]
        if entries[entry, HASH] == mixed and entries[entry, TEMPLATE] == template:
            known = values + entries[entry, PLACE] + PREFIX_SIZE + key_offset
            if entries[entry, KEY_SIZE] == key_size and _are_equal(key, known, key_size):
                return slot
        slot = (slot + 1) & (len(slots) - 1)
    return slot


@njit
def _put(message, length, template, columns, state, slots, entries, values):  # type: ignore[no-untyped-def]
    """Store a message, and return its entry."""
    key_offset, key_size = columns[0, template], columns[1, template]
    if length < PREFIX_SIZE + key_offset + key_size:  # of an older version of the model, which lacks the field
        key_size = 0
    key = message + PREFIX_SIZE + key_offset
    mixed = _hash(key, key_size, template)
    slot = _slot_of(key, key_size, key_offset, template, mixed, slots, entries, values)
    entry = slots[slot]
    if entry == FREE:
        slots[slot] = entry = state[COUNT]
        state[COUNT] += 1
        entries[entry, TEMPLATE], entries[entry, KEY_SIZE] = template, key_size
        entries[entry, HASH], entries[entry, ROOM] = mixed, 0
    if length > entries[entry, ROOM]:
        room = length if entries[entry, ROOM] == 0 else 2 * length  # what grows once, grows again
        entries[entry, PLACE], entries[entry, ROOM] = state[VALUES_END], room
        state[VALUES_END] += room
    entries[entry, LENGTH] = length
    _copy(values + entries[entry, PLACE], message, length)
    return entry


@njit
def _take_packet(packet, size, end_input, schema, columns, state, sources, slots, entries, values):  # type: ignore[no-untyped-def]
    """Take what a packet has from NEXT_INPUT to before `end_input`; False if it is damaged."""
    input_seq, message_seq = load64(packet + _FIRST_INPUT_AT), load64(packet + _FIRST_MESSAGE_AT)
    epoch, sent_at, reached = load32(packet + _EPOCH_AT), load64(packet + _SENT_AT), message_seq
    run, end = packet + OUTPUT_HEADER_SIZE, packet + size
    frame = frames = run + (load32(packet + _COUNTS_AT) >> 16) * RUN_SIZE
    while run < frames:
        counts, source_seq = load64(run), load64(run + _FIRST_SOURCE_AT)
        stream, source_count, message_count = counts & 0xFFFF, counts >> 16 & 0xFFFF, counts >> 32 & 0xFFFF
        for _ in range(message_count):
            head = load32(frame) if frame + OUTPUT_FRAME_SIZE <= end else 0
            length, offset = head & 0xFFFF, head >> 16
            if length < OUTPUT_FRAME_SIZE or frame + length > end:
                return False
            if input_seq + offset < end_input:
                reached = message_seq + 1
                if input_seq + offset >= state[NEXT_INPUT] and length >= PREFIX_SIZE:
                    identity = load32(frame + _IDENTITY_AT)
                    template = identity & 0xFFFF
                    if identity >> 16 == schema and columns[0, template] != UNKNOWN_TEMPLATE:
                        entry = _put(frame, length, template, columns, state, slots, entries, values)
                        entries[entry, INPUT], entries[entry, MESSAGE] = input_seq + offset, message_seq
                        entries[entry, STREAM], entries[entry, SOURCE] = stream, source_seq + offset
                        entries[entry, OF_EPOCH], entries[entry, SENT_AT] = epoch, sent_at
            frame += length
            message_seq += 1
        if end_input > input_seq:
            sources[stream] = source_seq + min(source_count, end_input - input_seq)
        input_seq += source_count
        run += RUN_SIZE
    state[NEXT_INPUT], state[NEXT_MESSAGE], state[EPOCH] = end_input, reached, epoch
    return True


@njit
def _end_of(packet, run_count):  # type: ignore[no-untyped-def]
    """One past the last `input_seq` of a packet."""
    end = load64(packet + _FIRST_INPUT_AT)
    for run in range(run_count):
        end += load32(packet + OUTPUT_HEADER_SIZE + run * RUN_SIZE) >> 16
    return end


def _take(data, starts, sizes, until_input, schema, columns, state, sources, slots, entries, values, room):  # type: ignore[no-untyped-def]
    for record in range(state[RECORD], len(starts)):
        state[RECORD] = record
        packet, size = data + starts[record], sizes[record]
        if size < OUTPUT_HEADER_SIZE or load32(packet) != OUTPUT_MAGIC or load8(packet + _FLAGS_AT) & _NOT_NUMBERED:
            continue
        ids, run_count = load32(packet + _IDS_AT), load32(packet + _COUNTS_AT) >> 16
        if ids & 0xFFFF != state[CHANNEL] or load32(packet + _SESSION_AT) != state[SESSION] or run_count == 0:
            continue
        if OUTPUT_HEADER_SIZE + run_count * RUN_SIZE > size:
            return DAMAGED
        first_input = load64(packet + _FIRST_INPUT_AT)
        if first_input >= until_input:
            return UNTIL_REACHED
        end_input = min(_end_of(packet, run_count), until_input)
        if end_input <= state[NEXT_INPUT]:
            continue
        if first_input > state[NEXT_INPUT]:
            return GAP
        count_max = state[COUNT] + (load32(packet + _COUNTS_AT) & 0xFFFF)
        if 2 * count_max > len(slots) or count_max > len(entries) or state[VALUES_END] + 2 * size > room:
            return FULL
        state[ADAPTER] = ids >> 16
        if not _take_packet(packet, size, end_input, schema, columns, state, sources, slots, entries, values):
            return DAMAGED
    state[RECORD] = len(starts)
    return DONE


def _refill(slots, entries, count):  # type: ignore[no-untyped-def]
    for entry in range(count):
        slot = entries[entry, HASH] & (len(slots) - 1)
        while slots[slot] != FREE:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = entry


_SOURCES = (__file__, output_packet.__file__, sbe_header.__file__)  # numba notices only changes of this file
_DIGEST = hashlib.sha256(b"".join(Path(file).read_bytes() for file in _SOURCES)).hexdigest()[:16]
_FOLDER = kernel_folder(_DIGEST, *cache_places())
_INT, _NUMBERS, _TABLE = types.int64, types.Array(types.int64, 1, "C"), types.Array(types.int64, 2, "C")
_ARRAYS = _TABLE, _NUMBERS, _NUMBERS, _NUMBERS, _TABLE
_SIGNATURE = _INT(_INT, _NUMBERS, _NUMBERS, _INT, _INT, *_ARRAYS, _INT, _INT)
# take(data, starts, sizes, until_input, schema_id, columns, state, sources, slots, entries, values, room): take the
# packets of a batch from state[RECORD] on, as far as they continue the table and begin before `until_input`. `data` and
# `values` are addresses; `columns` has the offset and the size of each template's key, `sources` the next source_seq of
# each source stream; `room` is the size of what is at `values`.
take: Any = compile_into(_FOLDER, _take, _SIGNATURE, nogil=True)
# refill(slots, entries, count): put the first entries into slots that are all free.
refill: Any = compile_into(_FOLDER, _refill, types.void(_NUMBERS, _TABLE, types.int64), nogil=True)
