"""What a contribution gateway stores: items of the queue, and records of a source stream's journal.

Per source stream, below the gateway's folder::

    queue-N/     accepted messages that are not decided yet, in a PersistentQueue
    stream-N/    BEGIN, then CARRIED, then the decisions: OPENED NUMBERED CANCELLED …

The journal decides: what it has of an item counts, whatever the queue says. Its records (little-endian; the first byte
is the kind; lists are MessagePack)::

    BEGIN      kind, pad[7], (feed, session, source_stream_id)
    CARRIED    kind, pad[7], (identity, producer, instance, next number) of each producer of the session before
    OPENED     kind, pad[7], (identity, producer, instance)
    CANCELLED  kind, pad[7], keys
    ENDED      kind, pad[7], nil: the next session has begun, with what was pending
    NUMBERED   kind, pad[3], keys_size u32, event_at_ns i64, last source_seq u64, source packet (sent_at_ns 0), keys

Keys name contributions: (item_id, identity, producer, number) each. A NUMBERED record without its keys is a PACKET
record of a source journal.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from tandemfeed.feedcore.wire.source_packet import SOURCE_HEADER_SIZE, encode_source_header
from tandemfeed.spark_feed.contributions.book import Contribution, Producer
from tandemfeed.spark_feed.journaling.records import BEGIN_HEAD, PACKET_HEAD, RecordKind
from tandemfeed.transport.sealing.source_sealing import SOURCE_SEAL_SIZE

NUMBERED_HEAD = struct.Struct("<B3xIqQ")
PACKET_MESSAGES_MAX = 256
assert NUMBERED_HEAD.size == PACKET_HEAD.size


class Kind(IntEnum):
    """The first byte of a record; BEGIN and NUMBERED are those of a source journal."""

    BEGIN = RecordKind.BEGIN
    NUMBERED = RecordKind.PACKET
    OPENED = 16
    CANCELLED = 17
    CARRIED = 18
    ENDED = 19


class Key(NamedTuple):
    """Names a contribution in the journal."""

    item_id: int
    identity: str
    producer: str
    number: int


class CarriedProducer(NamedTuple):
    """A producer as a session leaves it."""

    identity: str
    name: str
    instance: bytes
    next_number: int


class Item(NamedTuple):
    """A contribution in the queue."""

    identity: str
    producer: str
    number: int
    release_at_ns: int
    message: bytes

    def encode(self) -> bytes:
        """As an item of the queue."""
        return msgspec.msgpack.encode(self)


def contribution_of(item_id: int, item: bytes) -> Contribution:
    """The contribution that an item of the queue is."""
    found = msgspec.msgpack.decode(item, type=Item)
    return Contribution(
        item_id, Producer(found.identity, found.producer), found.number, found.release_at_ns, found.message
    )


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """The source stream that contributions become."""

    feed: str
    feed_id: int
    session: int
    source_stream_id: int
    datagram_size_max: int

    @property
    def frames_size_max(self) -> int:
        """Bytes of a packet's frames."""
        return self.datagram_size_max - SOURCE_HEADER_SIZE - SOURCE_SEAL_SIZE

    def begin_record(self) -> bytes:
        """The journal's first record."""
        return _other(Kind.BEGIN, (self.feed, self.session, self.source_stream_id))


class Numbered(NamedTuple):
    """A decision to number messages."""

    first_source_seq: int
    contributions: list[Contribution]
    record: bytes


def opened_record(producer: Producer, instance: bytes) -> bytes:
    """A decision about who contributes under a producer's name."""
    return _other(Kind.OPENED, (*producer, instance))


def carried_record(producers: Iterable[CarriedProducer]) -> bytes:
    """The producers with which a session begins."""
    return _other(Kind.CARRIED, list(producers))


def carried_in(record: bytes) -> list[CarriedProducer]:
    """What a CARRIED record says."""
    return msgspec.msgpack.decode(record[BEGIN_HEAD.size :], type=list[CarriedProducer])


def ended_record() -> bytes:
    """The end of a session."""
    return _other(Kind.ENDED, None)


def session_in(record: bytes) -> int:
    """The session of a BEGIN record."""
    return msgspec.msgpack.decode(record[BEGIN_HEAD.size :], type=tuple[str, int, int])[1]


def cancelled_record(contributions: Iterable[Contribution]) -> bytes:
    """A decision to cancel messages."""
    return _other(Kind.CANCELLED, _keys(contributions))


def numbered(
    place: StreamPlace, contributions: Sequence[Contribution], next_source_seq: int, frames: Sequence[bytes], at_ns: int
) -> list[Numbered]:
    """Number messages and pack them.

    Args:
        frames: of the messages.
        at_ns: wall clock.
    """
    found, start, size = list[Numbered](), 0, 0
    for place_in_list in range(len(frames) + 1):
        is_end = place_in_list == len(frames)
        if place_in_list > start and (
            is_end
            or size + len(frames[place_in_list]) > place.frames_size_max
            or place_in_list - start == PACKET_MESSAGES_MAX
        ):
            part = list(contributions[start:place_in_list])
            first = next_source_seq + start
            found.append(
                Numbered(first, part, _numbered_record(place, part, first, frames[start:place_in_list], at_ns))
            )
            start, size = place_in_list, 0
        if not is_end:
            size += len(frames[place_in_list])
    return found


def packet_record(record: bytes) -> bytes:
    """A NUMBERED record as a PACKET record of a source journal."""
    return record[: len(record) - NUMBERED_HEAD.unpack_from(record)[1]]


def keys_in(record: bytes) -> list[Key]:
    """The contributions of a NUMBERED or CANCELLED record."""
    size = NUMBERED_HEAD.unpack_from(record)[1]
    encoded = record[len(record) - size :] if record[0] == Kind.NUMBERED else record[BEGIN_HEAD.size :]
    return msgspec.msgpack.decode(encoded, type=list[Key])


def opened_in(record: bytes) -> tuple[Producer, bytes]:
    """What an OPENED record says."""
    identity, name, instance = msgspec.msgpack.decode(record[BEGIN_HEAD.size :], type=tuple[str, str, bytes])
    return Producer(identity, name), instance


def _numbered_record(
    place: StreamPlace, contributions: Sequence[Contribution], first: int, frames: Sequence[bytes], at_ns: int
) -> bytes:
    header = encode_source_header(
        feed_id=place.feed_id,
        source_stream_id=place.source_stream_id,
        message_count=len(frames),
        session=place.session,
        first_source_seq=first,
        sent_at_ns=0,
    )
    keys = msgspec.msgpack.encode(_keys(contributions))
    head = NUMBERED_HEAD.pack(Kind.NUMBERED, len(keys), at_ns, first + len(frames) - 1)
    return b"".join((head, header, *frames, keys))


def _keys(contributions: Iterable[Contribution]) -> list[Key]:
    return [Key(each.item_id, *each.producer, each.number) for each in contributions]


def _other(kind: Kind, content: Any) -> bytes:
    return BEGIN_HEAD.pack(kind) + msgspec.msgpack.encode(content)
