"""What a log says: which packets it has, who contributes, and what is pending.

A log begins with what the session before left (CARRIED, ACCEPTED), and then BEGIN. Without BEGIN it is worth nothing,
so a crash while a session begins carries nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tandemfeed.spark_feed.contributions.book import Contribution, ContributionBook, Producer
from tandemfeed.spark_feed.contributions.records import (
    CarriedProducer,
    Key,
    Kind,
    StreamPlace,
    accepted_in,
    accepted_record,
    carried_in,
    carried_record,
    keys_in,
    opened_in,
    stream_in,
    term_in,
)
from tandemfeed.spark_feed.journaling.records import packet_numbers

CARRIED_PER_SEGMENT = 1_000  # messages, so that a segment fits in a block


class JournalOfOtherStream(Exception):
    """The log belongs to another feed, session or source stream, or its session has ended; the text says what to do."""


class JournaledPacket(NamedTuple):
    """Where the log has a packet."""

    first_source_seq: int
    message_count: int
    journal_index: int


class Carried(NamedTuple):
    """What a session leaves to the next one: what is pending, and who contributes."""

    producers: Sequence[CarriedProducer] = ()
    pending: Sequence[Contribution] = ()


@dataclass(slots=True)
class Recovery:
    """What the log has of a stream.

    Attributes:
        next_item_id: of the next accepted message.
    """

    packets: list[JournaledPacket] = field(default_factory=list)
    next_source_seq: int = 1
    next_item_id: int = 1


class Recovered(NamedTuple):
    """What the log has.

    Attributes:
        term: the last one.
        end_index: after the last record.
    """

    term: int
    end_index: int
    streams: dict[int, Recovery]


def recover(
    entries: Iterable[tuple[int, bytes]],
    places: Mapping[int, StreamPlace],
    books: Mapping[int, ContributionBook],
    now_ns: int,
) -> Recovered:
    """Fill the books from a log's records.

    Raises:
        JournalOfOtherStream
    """
    found = {stream_id: Recovery() for stream_id in places}
    pending: dict[int, dict[Key, Contribution]] = {stream_id: {} for stream_id in places}
    term, end_index, begin = 0, 0, next(iter(places.values())).begin_record()
    for index, record in entries:
        end_index = index + 1
        match record[0]:
            case Kind.BEGIN:
                if record != begin:
                    raise JournalOfOtherStream("the log is of another feed or session: give another folder")
                continue
            case Kind.ENDED:
                raise JournalOfOtherStream("the log is of a session that has ended: give the folder of the next one")
            case Kind.TERM:
                term = term_in(record)
                continue
        stream_id = stream_in(record)
        if stream_id not in places:
            raise JournalOfOtherStream(
                f"the log has messages of source stream {stream_id}, which takes no contributions: give another folder"
            )
        _restore(index, record, books[stream_id], found[stream_id], pending[stream_id], now_ns)
    for stream_id, left in pending.items():
        for each in left.values():
            books[stream_id].restore_pending(each, now_ns)
    return Recovered(term, end_index, found)


def first_segments(places: Mapping[int, StreamPlace], carried: Mapping[int, Carried]) -> Iterator[list[bytes]]:
    """With what a log begins: segments of a limited size, the last one with BEGIN."""
    for stream_id, left in carried.items():
        yield [carried_record(stream_id, left.producers)]
        for begin in range(0, len(left.pending), CARRIED_PER_SEGMENT):
            part = left.pending[begin : begin + CARRIED_PER_SEGMENT]
            renumbered = [replace(each, item_id=begin + at) for at, each in enumerate(part, 1)]
            yield [accepted_record(stream_id, renumbered)]
    yield [next(iter(places.values())).begin_record()]


def _restore(
    index: int,
    record: bytes,
    book: ContributionBook,
    found: Recovery,
    pending: dict[Key, Contribution],
    now_ns: int,
) -> None:
    match record[0]:
        case Kind.CARRIED:
            for each in carried_in(record):
                producer = Producer(each.identity, each.name)
                book.opened(producer, each.instance, now_ns)
                book.restore_decided(producer, each.next_number - 1, is_cancelled=False, now_ns=now_ns)
        case Kind.OPENED:
            book.opened(*opened_in(record), now_ns)
        case Kind.ACCEPTED:
            for accepted in accepted_in(record):
                pending[Key(*accepted.producer, accepted.number)] = accepted
                found.next_item_id = max(found.next_item_id, accepted.item_id + 1)
        case Kind.NUMBERED | Kind.CANCELLED:
            is_cancelled = record[0] == Kind.CANCELLED
            for key in keys_in(record):
                pending.pop(key, None)
                producer = Producer(key.identity, key.producer)
                book.restore_decided(producer, key.number, is_cancelled=is_cancelled, now_ns=now_ns)
            if not is_cancelled:
                _, first, count = packet_numbers(record)
                found.packets.append(JournaledPacket(first, count, index))
                found.next_source_seq = first + count
