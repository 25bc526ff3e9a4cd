"""Compiled digests of what datagrams contain, and a memory of what was delivered under which number.

A number that comes again is a copy only if its content is the same. The memory has a fixed size for any number of
streams and messages: a message's place follows from its stream and number, and what is delivered later takes the place
of what was delivered long before. The first numbers of a stream have places of their own, because a stream that starts
again begins with them.
"""

from __future__ import annotations

import numpy as np
from numba import types

from tandemfeed.adapter.conversion.formats.captures.line_merge import Known
from tandemfeed.adapter.convert_command.captures.header_kernels import frame_end
from tandemfeed.adapter.convert_command.captures.rows import APART, COUNT, FRAMES, SIZE, START, STATUS, Words
from tandemfeed.adapter.convert_command.output.frame_kernels import digest_of
from tandemfeed.adapter.kernel_cache import compiled, compiled_part

DIGEST_SIZE = 64  # bytes of a packet or message that are compared: numbers, times, the first values
FIRST_NUMBERS = 1 << 10  # of each stream, which have places of their own
FIRST_PLACES, PLACES = 1 << 16, 1 << 22
KEY, DIGEST = 0, 1  # columns of the memory
STREAM_SHIFT = 44  # numbers have fewer bits, except made-up ones

SAME, OTHER, UNKNOWN = map(int, Known)
BYTES = types.Array(types.uint8, 1, "C", readonly=True)
WORDS, WORDS_2 = types.Array(types.int64, 1, "C"), types.Array(types.int64, 2, "C")


def memory() -> Words:
    """A memory of nothing. The operating system provides its pages when they are used."""
    return np.zeros((FIRST_PLACES + PLACES, 2), np.int64)


@compiled_part
def place_of(stream, number):  # type: ignore[no-untyped-def]
    """Where the memory has a message."""
    if number < FIRST_NUMBERS:
        return (stream * FIRST_NUMBERS + number) & (FIRST_PLACES - 1)
    return FIRST_PLACES + ((stream * 2_654_435_761 + number) & (PLACES - 1))


@compiled_part
def key_of(stream, number):  # type: ignore[no-untyped-def]
    """What distinguishes a message from the others that have its place; never 0."""
    return ((stream + 1) << STREAM_SHIFT) ^ number


@compiled_part
def note_content(data, at, end, stream, number, count, is_by_packet, settings, known):  # type: ignore[no-untyped-def]
    """Note what `count` messages from `number` on contain; of a packet, what all of them do.

    Args:
        data, at, end: they fill `data[at:end]`.
        settings: of the protocol.
        known: the memory.
    """
    if is_by_packet:
        place = place_of(stream, number)
        known[place, KEY] = key_of(stream, number)
        known[place, DIGEST] = np.int64(digest_of(data, at, end - at))
        return
    for _ in range(count):
        after, place = frame_end(data, at, settings), place_of(stream, number)
        known[place, KEY] = key_of(stream, number)
        known[place, DIGEST] = np.int64(digest_of(data, at, after - at))
        at, number = after, number + 1


@compiled_part
def is_known(data, at, end, stream, number, count, is_by_packet, settings, known):  # type: ignore[no-untyped-def]
    """True if all of these messages were delivered under their numbers; see `note_content`. No message is known."""
    if count == 0:
        return True
    for _ in range(1 if is_by_packet else count):
        after, place = end if is_by_packet else frame_end(data, at, settings), place_of(stream, number)
        if known[place, KEY] != key_of(stream, number):
            return False
        if known[place, DIGEST] != np.int64(digest_of(data, at, after - at)):
            return False
        at, number = after, number + 1
    return True


@compiled(types.none(BYTES, types.int64, types.int64, types.boolean, WORDS, WORDS_2, WORDS), nogil=True)
def compare_contents(frames, stream, number, is_by_packet, settings, known, found):  # type: ignore[no-untyped-def]
    """Compare messages with what was delivered under their numbers; see `note_content`.

    Args:
        frames: the messages, and nothing else.
        found: receives SAME, OTHER or UNKNOWN for each.
    """
    at = 0
    for each in range(found.size):
        after, place = frames.size if is_by_packet else frame_end(frames, at, settings), place_of(stream, number)
        if known[place, KEY] != key_of(stream, number):
            found[each] = UNKNOWN
        else:
            is_same = known[place, DIGEST] == np.int64(digest_of(frames, at, after - at))
            found[each] = SAME if is_same else OTHER
        at, number = after, number + 1


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
            end = frame_end(data, at, settings)
        digest = np.uint64(14_695_981_039_346_656_037)
        for place in range(at, min(end, at + DIGEST_SIZE)):
            digest = (digest ^ np.uint64(data[place])) * np.uint64(1_099_511_628_211)  # FNV-1a
        digests[number] = np.int64(digest | np.uint64(1))
