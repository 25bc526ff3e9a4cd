"""Encodes messages: version, kind, session, fields, CRC-32C. docs/journal-replication.md defines every byte.

Every length is checked before use; a frame with too many or too few bytes is refused. Invariants:
`decode(encode(message)) == message`, and `encode(decode(frame)) == frame`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import google_crc32c
import numpy as np

from tandemfeed.journal.format.layout import COUNT_MASK, HAS_TABLE
from tandemfeed.journal.replication.limits import (
    BODY_SIZE_MAX,
    FRAME_SIZE_MAX,
    PIECE_SIZE_MAX,
    TAIL_COUNT_MAX,
    TEXT_SIZE_MAX,
)
from tandemfeed.journal.replication.wire.messages import (
    Acknowledge,
    Heartbeat,
    Hello,
    Message,
    Piece,
    Position,
    Probe,
    Probed,
    Reason,
    Refused,
    Segment,
    SegmentDigest,
    Segments,
    Welcome,
)

VERSION = 1
HEAD = struct.Struct("<BBQ")  # version, kind, session
CRC = struct.Struct("<I")
SEGMENT_HEAD = struct.Struct("<QQQIII")  # cycle, first sequence, appended at, count and flags, record size, body size
DIGEST = struct.Struct("<QQ16s")
HELLO = struct.Struct("<16s")
WELCOME = struct.Struct("<16sqQBQ")  # leader, epoch offset, block size, is encrypted, oldest index; two texts
POSITION = struct.Struct("<16sQB")  # follower, next index, number of digests
INDEX = struct.Struct("<Q")  # the only field of a probe and of a heartbeat
PROBED = struct.Struct("<QB")  # index, number of digests: 0 or 1
SEGMENTS = struct.Struct("<QI")  # from index, number of segments
PIECE = struct.Struct("<QQ")  # from index, offset; then a segment head with the size of the whole body, then data
TAKEN = struct.Struct("<Q")  # bytes received; after the index in an acknowledgement
REFUSED = struct.Struct("<BQ")  # reason, index; a text
TEXT = struct.Struct("<H")


INDEX_END = 1 << 63  # indices, sequences and times have 63 bits


class BadMessage(ValueError):
    """A frame that is not a valid message; the text says why."""


def check_segment(segment: Segment) -> None:
    """Refuse a segment whose body contradicts its head: once appended, it could never be read correctly.

    Raises:
        BadMessage
    """
    count, body = segment.count_and_flags & COUNT_MASK, segment.body
    _check_head(segment)
    if not segment.count_and_flags & HAS_TABLE:
        if len(body) != count * segment.record_size:
            raise BadMessage(f"the segment has {len(body)} bytes, not {count} records of {segment.record_size}")
        return
    if len(body) < 4 * count:
        raise BadMessage(f"the segment's {len(body)} bytes are too few for a table of {count} records")
    ends = np.frombuffer(body, "<u4", count)
    if int(ends[-1]) != len(body) - 4 * count or (ends[1:] < ends[:-1]).any():
        raise BadMessage("the table of a segment's records does not ascend to the end of its body")


def _check_head(segment: Segment) -> None:
    _check_indices(segment.cycle, segment.first_sequence, segment.appended_at_ns)
    if segment.count_and_flags & ~(COUNT_MASK | HAS_TABLE):
        raise BadMessage(f"the segment has unknown flags: {segment.count_and_flags:#010x}")
    if not segment.count_and_flags & COUNT_MASK:
        raise BadMessage("the segment has no records")


def _check_indices(*values: int) -> None:
    for value in values:
        if value >= INDEX_END:
            raise BadMessage(f"{value:#x} is not an index, a sequence or a time of 63 bits")


def encode(message: Message) -> bytes:
    """A message as one frame.

    Raises:
        struct.error, AssertionError: the caller's fields are out of bounds.
    """
    kind, write = _WRITERS[type(message)]
    pieces = [HEAD.pack(VERSION, kind, message.session), *write(message)]
    frame = b"".join(pieces)
    assert len(frame) + CRC.size <= FRAME_SIZE_MAX, f"{type(message).__name__} of {len(frame)} bytes"
    return frame + CRC.pack(google_crc32c.value(frame))


def decode(frame: bytes) -> Message:
    """The message in a frame.

    Raises:
        BadMessage: the frame is not a valid message.
    """
    if not HEAD.size + CRC.size <= len(frame) <= FRAME_SIZE_MAX:
        raise BadMessage(f"a frame of {len(frame)} bytes; expected {HEAD.size + CRC.size} to {FRAME_SIZE_MAX}")
    version, kind, session = HEAD.unpack_from(frame)
    if version != VERSION:
        raise BadMessage(f"replication format {version}; expected {VERSION}: run the same release on both sides")
    if CRC.unpack_from(frame, len(frame) - CRC.size)[0] != google_crc32c.value(frame[: -CRC.size]):
        raise BadMessage("the frame was damaged in transit: its CRC does not match")
    read = _READERS.get(kind)
    if read is None:
        raise BadMessage(f"a frame of the unknown kind {kind}")
    fields = _Fields(frame)
    message = read(session, fields)
    if fields.left:
        raise BadMessage(f"{fields.left} unexpected bytes after {type(message).__name__}")
    return message


class _Fields:
    """Reads a frame's fields in order, within its bounds."""

    def __init__(self, frame: bytes) -> None:
        self._frame = frame
        self._place = HEAD.size
        self._end = len(frame) - CRC.size

    @property
    def left(self) -> int:
        return self._end - self._place

    def take(self, form: struct.Struct) -> tuple[Any, ...]:
        return form.unpack(self.bytes(form.size))

    def bytes(self, size: int) -> bytes:
        if size > self.left:
            raise BadMessage(f"{size} bytes announced, but only {self.left} present")
        self._place += size
        return self._frame[self._place - size : self._place]

    def text(self) -> str:
        (size,) = self.take(TEXT)
        if size > TEXT_SIZE_MAX:
            raise BadMessage(f"a text of {size} bytes; the maximum is {TEXT_SIZE_MAX}")
        try:
            return self.bytes(size).decode()
        except UnicodeDecodeError:
            raise BadMessage("a text is not UTF-8") from None

    def index(self) -> int:
        (value,) = self.take(INDEX)
        _check_indices(value)
        return int(value)

    def digest(self) -> SegmentDigest:
        first_index, next_index, digest = self.take(DIGEST)
        _check_indices(first_index, next_index)
        return SegmentDigest(first_index, next_index, digest)


def _text(text: str) -> bytes:
    data = text.encode()[:TEXT_SIZE_MAX]
    data = data.decode(errors="ignore").encode()  # never ends within a character
    return TEXT.pack(len(data)) + data


def _digest(found: SegmentDigest) -> bytes:
    return DIGEST.pack(found.first_index, found.next_index, found.digest)


def _segment_head(segment: Segment, body_size: int) -> bytes:
    return SEGMENT_HEAD.pack(
        segment.cycle,
        segment.first_sequence,
        segment.appended_at_ns,
        segment.count_and_flags,
        segment.record_size,
        body_size,
    )


def _write_welcome(message: Welcome) -> list[bytes]:
    head = WELCOME.pack(
        message.leader_id, message.epoch_offset_s, message.block_size, message.is_encrypted, message.oldest_index
    )
    return [head, _text(message.roll_cycle), _text(message.time_zone)]


def _read_welcome(session: int, fields: _Fields) -> Welcome:
    leader_id, epoch_offset_s, block_size, is_encrypted, oldest_index = fields.take(WELCOME)
    _check_indices(oldest_index)
    if is_encrypted > 1:
        raise BadMessage(f"is_encrypted is {is_encrypted}; it must be 0 or 1")
    roll_cycle, time_zone = fields.text(), fields.text()
    return Welcome(
        session, leader_id, roll_cycle, epoch_offset_s, time_zone, block_size, bool(is_encrypted), oldest_index
    )


def _write_position(message: Position) -> list[bytes]:
    assert len(message.tail) <= TAIL_COUNT_MAX
    head = POSITION.pack(message.follower_id, message.next_index, len(message.tail))
    return [head, *map(_digest, message.tail)]


def _read_position(session: int, fields: _Fields) -> Position:
    follower_id, next_index, count = fields.take(POSITION)
    _check_indices(next_index)
    if count > TAIL_COUNT_MAX:
        raise BadMessage(f"{count} digests; the maximum is {TAIL_COUNT_MAX}")
    return Position(session, follower_id, next_index, tuple(fields.digest() for _ in range(count)))


def _write_probed(message: Probed) -> list[bytes]:
    found = message.found
    return [PROBED.pack(message.index, found is not None), _digest(found) if found else b""]


def _read_probed(session: int, fields: _Fields) -> Probed:
    index, count = fields.take(PROBED)
    _check_indices(index)
    if count > 1:
        raise BadMessage(f"{count} digests; expected at most 1")
    return Probed(session, index, fields.digest() if count else None)


def _write_segments(message: Segments) -> list[bytes]:
    pieces = [SEGMENTS.pack(message.from_index, len(message.segments))]
    for segment in message.segments:
        assert len(segment.body) <= PIECE_SIZE_MAX
        pieces += (_segment_head(segment, len(segment.body)), segment.body)
    return pieces


def _read_segments(session: int, fields: _Fields) -> Segments:
    from_index, count = fields.take(SEGMENTS)
    _check_indices(from_index)
    if count * SEGMENT_HEAD.size > fields.left:
        raise BadMessage(f"{count} segments announced, which do not fit in {fields.left} bytes")
    segments = []
    for _ in range(count):
        cycle, first, at_ns, flags, record_size, body_size = fields.take(SEGMENT_HEAD)
        segment = Segment(cycle, first, at_ns, flags, record_size, fields.bytes(body_size))
        check_segment(segment)
        segments.append(segment)
    return Segments(session, from_index, tuple(segments))


def _write_piece(message: Piece) -> list[bytes]:
    assert 0 < len(message.data) <= PIECE_SIZE_MAX
    assert message.offset + len(message.data) <= message.body_size <= BODY_SIZE_MAX
    head = PIECE.pack(message.from_index, message.offset)
    return [head, _segment_head(message.segment, message.body_size), message.data]


def _read_piece(session: int, fields: _Fields) -> Piece:
    from_index, offset = fields.take(PIECE)
    cycle, first, at_ns, flags, record_size, body_size = fields.take(SEGMENT_HEAD)
    segment = Segment(cycle, first, at_ns, flags, record_size, b"")
    _check_head(segment)
    _check_indices(from_index)
    size = fields.left
    if not 0 < size <= PIECE_SIZE_MAX:
        raise BadMessage(f"a piece of {size} bytes; expected 1 to {PIECE_SIZE_MAX}")
    if offset + size > body_size:
        raise BadMessage(f"a piece from {offset} to {offset + size} of a body of {body_size} bytes")
    return Piece(session, from_index, segment, body_size, offset, fields.bytes(size))


def _read_refused(session: int, fields: _Fields) -> Refused:
    reason, index = fields.take(REFUSED)
    _check_indices(index)
    if reason not in Reason._value2member_map_:
        raise BadMessage(f"unknown reason for a refusal: {reason}")
    return Refused(session, Reason(reason), index, fields.text())


_WRITERS: dict[type[Any], tuple[int, Callable[[Any], list[bytes]]]] = {
    Hello: (1, lambda m: [HELLO.pack(m.leader_id)]),
    Welcome: (2, _write_welcome),
    Position: (3, _write_position),
    Probe: (4, lambda m: [INDEX.pack(m.index)]),
    Probed: (5, _write_probed),
    Segments: (6, _write_segments),
    Piece: (7, _write_piece),
    Acknowledge: (8, lambda m: [INDEX.pack(m.next_index), TAKEN.pack(m.taken_size)]),
    Heartbeat: (9, lambda m: [INDEX.pack(m.next_index)]),
    Refused: (10, lambda m: [REFUSED.pack(m.reason, m.index), _text(m.text)]),
}
_READERS: dict[int, Callable[[int, _Fields], Message]] = {
    1: lambda session, fields: Hello(session, *fields.take(HELLO)),
    2: _read_welcome,
    3: _read_position,
    4: lambda session, fields: Probe(session, fields.index()),
    5: _read_probed,
    6: _read_segments,
    7: _read_piece,
    8: lambda session, fields: Acknowledge(session, fields.index(), *fields.take(TAKEN)),
    9: lambda session, fields: Heartbeat(session, fields.index()),
    10: _read_refused,
}
