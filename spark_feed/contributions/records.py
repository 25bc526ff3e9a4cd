"""The records of a contribution gateway's log: what is accepted, opened, cancelled and numbered.

The log is one journal, in the folder `log` of a session's folder. A segment is a turn of the gateway: after any crash
it is there as a whole or not at all. Records (little-endian; the first byte is the kind; lists are MessagePack)::

    BEGIN      kind, pad[7], (feed, session)
    CARRIED    kind, pad[3], source_stream_id u32, (identity, producer, instance, next number) of the session before
    TERM       kind, pad[7], term: the records after it are of the gateway that was granted this term
    OPENED     kind, pad[3], source_stream_id u32, (identity, producer, instance)
    ACCEPTED   kind, pad[3], source_stream_id u32, items: accepted messages that stay pending
    CANCELLED  kind, pad[3], source_stream_id u32, keys
    ENDED      kind, pad[7], nil: the next session has begun, with what was pending
    NUMBERED   kind, pad[3], keys_size u32, event_at_ns i64, last source_seq u64, source packet (sent_at_ns 0), keys

Keys name contributions: (identity, producer, number) each. A message that is numbered in the turn that accepts it has
no ACCEPTED record. A NUMBERED record without its keys is a PACKET record of a source journal.
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
from tandemfeed.spark_feed.journaling.records import PACKET_HEAD, RecordKind, packet_numbers
from tandemfeed.transport.sealing.source_sealing import SOURCE_SEAL_SIZE

HEAD = struct.Struct("<B3xI")
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
    ACCEPTED = 20
    TERM = 21


class Key(NamedTuple):
    """Names a contribution."""

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
    """An accepted message in the log."""

    item_id: int
    identity: str
    producer: str
    number: int
    release_at_ns: int
    message: bytes


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
        """The log's first record."""
        return _other(Kind.BEGIN, 0, (self.feed, self.session))


class Numbered(NamedTuple):
    """A decision to number messages."""

    first_source_seq: int
    contributions: list[Contribution]
    record: bytes


def opened_record(stream_id: int, producer: Producer, instance: bytes) -> bytes:
    """A decision about who contributes under a producer's name."""
    return _other(Kind.OPENED, stream_id, (*producer, instance))


def opened_in(record: bytes) -> tuple[Producer, bytes]:
    """What an OPENED record says."""
    identity, name, instance = msgspec.msgpack.decode(record[HEAD.size :], type=tuple[str, str, bytes])
    return Producer(identity, name), instance


def accepted_record(stream_id: int, contributions: Iterable[Contribution]) -> bytes:
    """Messages that were accepted, and are pending."""
    items = [
        Item(each.item_id, *each.producer, each.number, each.release_at_ns, each.message) for each in contributions
    ]
    return _other(Kind.ACCEPTED, stream_id, items)


def accepted_in(record: bytes) -> list[Contribution]:
    """What an ACCEPTED record says."""
    return [
        Contribution(
            each.item_id, Producer(each.identity, each.producer), each.number, each.release_at_ns, each.message
        )
        for each in msgspec.msgpack.decode(record[HEAD.size :], type=list[Item])
    ]


def carried_record(stream_id: int, producers: Iterable[CarriedProducer]) -> bytes:
    """The producers with which a session begins."""
    return _other(Kind.CARRIED, stream_id, list(producers))


def carried_in(record: bytes) -> list[CarriedProducer]:
    """What a CARRIED record says."""
    return msgspec.msgpack.decode(record[HEAD.size :], type=list[CarriedProducer])


def term_record(term: int) -> bytes:
    """A gateway was granted a term."""
    return _other(Kind.TERM, 0, term)


def term_in(record: bytes) -> int:
    """What a TERM record says."""
    return msgspec.msgpack.decode(record[HEAD.size :], type=int)


def ended_record() -> bytes:
    """The end of a session."""
    return _other(Kind.ENDED, 0, None)


def session_in(record: bytes) -> int:
    """The session of a BEGIN record."""
    return msgspec.msgpack.decode(record[HEAD.size :], type=tuple[str, int])[1]


def cancelled_record(stream_id: int, contributions: Iterable[Contribution]) -> bytes:
    """A decision to cancel messages."""
    return _other(Kind.CANCELLED, stream_id, _keys(contributions))


def stream_in(record: bytes) -> int:
    """The source stream of a record; 0: of all."""
    if record[0] == Kind.NUMBERED:
        return packet_numbers(record)[0]
    stream_id: int = HEAD.unpack_from(record)[1]
    return stream_id


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
    encoded = record[HEAD.size :]
    if record[0] == Kind.NUMBERED:
        encoded = record[len(record) - NUMBERED_HEAD.unpack_from(record)[1] :]
    return msgspec.msgpack.decode(encoded, type=list[Key])


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
    return [Key(*each.producer, each.number) for each in contributions]


def _other(kind: Kind, stream_id: int, content: Any) -> bytes:
    return HEAD.pack(kind, stream_id) + msgspec.msgpack.encode(content)
