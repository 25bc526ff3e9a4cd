"""How a contributed stream is opened: what its journal has decided, what its queue still has, and what the session
before it left.

The journal's first records are BEGIN and CARRIED, in one segment. Until they are there, the folder is empty to every
reader, so whatever the queue has then is of an opening that a crash ended, and is put again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tandemfeed.feedcore.range_set import RangeSet
from tandemfeed.journal import Journal
from tandemfeed.journal.persistent_queue import PersistentQueue
from tandemfeed.spark_feed.contributions.book import Contribution, ContributionBook, Producer
from tandemfeed.spark_feed.contributions.records import (
    CarriedProducer,
    Item,
    Kind,
    StreamPlace,
    carried_in,
    carried_record,
    contribution_of,
    keys_in,
    opened_in,
)
from tandemfeed.spark_feed.journaling.records import packet_numbers


class JournalOfOtherStream(Exception):
    """The journal belongs to another feed, session or source stream, or its session has ended; the text says what to
    do."""


class JournaledPacket(NamedTuple):
    """Where the journal has a packet."""

    first_source_seq: int
    message_count: int
    journal_index: int


class Carried(NamedTuple):
    """What a session leaves to the next one: what is pending, and who contributes."""

    producers: Sequence[CarriedProducer] = ()
    pending: Sequence[Contribution] = ()


class Recovery(NamedTuple):
    """What was found.

    Attributes:
        in_flight: items of the queue that were handed out and are pending.
        numbered_ids, cancelled_ids: items that are decided, as the queue does not know yet.
    """

    packets: list[JournaledPacket]
    next_source_seq: int
    in_flight: set[int]
    numbered_ids: list[int]
    cancelled_ids: list[int]


def recover(
    journal: Journal, queue: PersistentQueue, place: StreamPlace, book: ContributionBook, carried: Carried, now_ns: int
) -> Recovery:
    """Fill the book from the files; a new folder begins with what the former session left.

    Raises:
        JournalOfOtherStream
    """
    if next(iter(journal.records()), None) is None:
        _begin(journal, queue, place, carried)
    packets, numbered_ids, cancelled_ids = list[JournaledPacket](), RangeSet(), RangeSet()
    for index, record in journal.records():
        match record[0]:
            case Kind.BEGIN if record != place.begin_record():
                raise JournalOfOtherStream(
                    f"{journal.folder} is the journal of another feed, session or source stream than "
                    f"{place.feed}, {place.session}, {place.source_stream_id}: give another folder"
                )
            case Kind.ENDED:
                raise JournalOfOtherStream(
                    f"{journal.folder} is the journal of a session that has ended: give the folder of the next one"
                )
            case Kind.CARRIED:
                for each in carried_in(record):
                    _restore_producer(book, each, now_ns)
            case Kind.OPENED:
                book.opened(*opened_in(record), now_ns)
            case Kind.CANCELLED:
                _restore_decided(book, record, cancelled_ids, now_ns)
            case Kind.NUMBERED:
                _restore_decided(book, record, numbered_ids, now_ns)
                _, first, count = packet_numbers(record)
                packets.append(JournaledPacket(first, count, index))
    next_source_seq = packets[-1].first_source_seq + packets[-1].message_count if packets else 1
    found = Recovery(packets, next_source_seq, set(), [], [])
    _restore_pending(queue, book, found, numbered_ids, cancelled_ids, now_ns)
    return found


def _begin(journal: Journal, queue: PersistentQueue, place: StreamPlace, carried: Carried) -> None:
    queue.cancel_all()
    queue.put_many(
        Item(*each.producer, each.number, each.release_at_ns, each.message).encode() for each in carried.pending
    )
    journal.append_batch([place.begin_record(), carried_record(carried.producers)])
    journal.sync()


def _restore_producer(book: ContributionBook, each: CarriedProducer, now_ns: int) -> None:
    producer = Producer(each.identity, each.name)
    book.opened(producer, each.instance, now_ns)
    book.restore_decided(producer, each.next_number - 1, is_cancelled=False, now_ns=now_ns)


def _restore_decided(book: ContributionBook, record: bytes, ids: RangeSet, now_ns: int) -> None:
    is_cancelled = record[0] == Kind.CANCELLED
    for key in keys_in(record):
        ids.add(key.item_id, key.item_id + 1)
        producer = Producer(key.identity, key.producer)
        book.restore_decided(producer, key.number, is_cancelled=is_cancelled, now_ns=now_ns)


def _restore_pending(
    queue: PersistentQueue,
    book: ContributionBook,
    found: Recovery,
    numbered_ids: RangeSet,
    cancelled_ids: RangeSet,
    now_ns: int,
) -> None:
    while (entry := queue.get()) is not None:
        item_id, item = entry
        found.in_flight.add(item_id)
        if numbered_ids.covers(item_id, item_id + 1):
            found.numbered_ids.append(item_id)
        elif cancelled_ids.covers(item_id, item_id + 1):
            found.cancelled_ids.append(item_id)
        else:
            book.restore_pending(contribution_of(item_id, item), now_ns)
