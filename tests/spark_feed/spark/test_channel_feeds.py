"""The buffer of a live query's channel, fed by scripted subscriptions; and the packets that go to the tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tandemfeed.client_lib.items import Batch, ChannelsChanged, Item
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.feedcore.merge.effects import Ended, Gap, SessionChanged, Takeover
from tandemfeed.feedcore.wire.lineage import EpochStart
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tandemfeed.feedcore.wire.packet_parts import first_messages_of
from tandemfeed.spark_feed.spark.errors import TableError
from tandemfeed.spark_feed.spark.live import channel_feed
from tandemfeed.spark_feed.spark.live.channel_feed import ChannelFeed
from tandemfeed.spark_feed.spark.live.live_feed import LiveFeed
from tandemfeed.spark_feed.spark.live.live_source import LiveReader
from tandemfeed.spark_feed.spark.live.positions import Position
from tandemfeed.spark_feed.spark.table.message_table import MessageTable
from tests.spark_feed.spark.output_material import MODEL_FILE, SESSION, packet

DECODER = Decoder(MODEL_FILE.read_bytes())
EARLIEST, FAR = Position(SESSION, 0, 1), Position(SESSION + 9, 0, 1)


class ScriptedSubscription:
    """Delivers a list of items, one a poll, then nothing."""

    def __init__(self, items: list[Item], start: int | None, epochs: tuple[EpochStart, ...], session: int) -> None:
        self.start, self.is_closed, self.grant = start, False, SimpleNamespace(session=session, message_model=b"")
        self._items, self._epochs = items, epochs

    def poll(self, _timeout_s: float) -> list[Item]:
        return [self._items.pop(0)] if self._items else []

    def statistics(self) -> Any:
        channel = SimpleNamespace(
            epoch=self._epochs[-1].epoch, next_message_seq=self.start or 1, epoch_starts=self._epochs,
            next_source_seqs={}, session=self.grant.session,
        )  # fmt: skip
        return SimpleNamespace(channels={1: channel})

    def stop(self) -> None:
        self.is_closed = True

    close = stop


def batch(given: OutputPacket, places: list[int] | None = None) -> Batch:
    return Batch(given, 5, 5, DECODER, None if places is None else np.array(places))


@contextmanager
def feed_of(
    items: list[Item],
    position: Position | None = EARLIEST,
    *,
    epochs: tuple[EpochStart, ...] = (EpochStart(1, 1, 1),),
    session: int = SESSION,
    may_lose: bool = False,
) -> Iterator[tuple[ChannelFeed, list[ScriptedSubscription]]]:
    made: list[ScriptedSubscription] = []

    def subscribe(start: int | None) -> Any:
        made.append(ScriptedSubscription(list(items), start, epochs, session))
        return made[-1]

    feed = ChannelFeed(1, subscribe, position, may_lose=may_lose)
    try:
        yield feed, made
    finally:
        feed.close()


def test_the_position_follows_source_messages_and_numbers() -> None:
    end = Position(SESSION, 1, 13, {1: 110, 2: 113})
    with feed_of([batch(packet(1, (3, 3))), batch(packet(7, (3, 3)))]) as (feed, _):
        assert feed.wait_until_reached(end, 10)
        assert feed.latest == end
        feed.forget(Position(SESSION, 1, 7, {1: 104, 2: 107}))
        assert [entry.after for entry in feed.entries()] == [end]


def test_provisional_numbers_are_no_place_to_begin() -> None:
    forwarded = packet(7, (3,), flags=OutputFlag.PROVISIONAL)
    with feed_of([batch(packet(1, (3, 3))), batch(forwarded)]) as (feed, _):
        assert feed.wait_until_reached(Position(SESSION, 1, 7, {1: 110}), 10)
        assert feed.latest.message_seq == 7


def test_after_a_takeover_while_the_query_was_stopped_reading_begins_at_the_new_epoch() -> None:
    epochs = (EpochStart(1, 1, 1), EpochStart(2, 4, 4))
    with feed_of([], Position(SESSION, 1, 7, {1: 104, 2: 107}), epochs=epochs) as (_, made):
        assert [(each.start, each.is_closed) for each in made] == [(7, True), (4, False)]


def test_a_query_of_what_is_there_now_ends_at_its_target_although_no_entry_reaches_it() -> None:
    start = Position(SESSION, 1, 1)
    with feed_of([]) as (feed, _):  # nothing of it is granted
        feed.end_at(Position(SESSION, 1, 1))
        assert feed.wait_for_more(start, 60)
        assert feed.entries() == []
    with feed_of([batch(packet(1, (3,))), batch(packet(4, (3,)))]) as (feed, _):
        assert feed.wait_until_reached(Position(SESSION, 1, 7, {1: 107}), 60)
        first = LiveFeed._after(feed, start, 1_000, Position(SESSION, 1, 4))
        assert first.message_seq == 4
        assert LiveFeed._after(feed, first, 1_000, Position(SESSION, 1, 4)) == first
        assert LiveFeed._after(feed, start, 1_000, Position(SESSION, 1, 6)).message_seq == 7


def test_missing_messages_end_the_query_unless_the_user_accepts_that() -> None:
    gap = Gap(1, 7, 9, 7, 9)
    with feed_of([batch(packet(1, (6,))), gap]) as (feed, _):
        feed.wait_until_reached(FAR, 10)
        with pytest.raises(TableError, match="failOnDataLoss"):
            feed.entries()
    with feed_of([batch(packet(1, (6,))), gap, batch(packet(9, (2,)))], may_lose=True) as (feed, _):
        assert feed.wait_until_reached(Position(SESSION, 1, 11, {1: 111}), 10)


def test_a_takeover_before_the_first_message_ends_the_query_because_it_may_begin_too_late() -> None:
    with feed_of([Takeover(1, 2, 2, 5, 0)], Position(SESSION, 1, 7, {})) as (feed, _):
        feed.wait_until_reached(FAR, 10)
        with pytest.raises(TableError, match="start the query again"):
            feed.entries()


def test_a_new_session_follows_the_old_one() -> None:
    items: list[Item] = [batch(packet(1, (6,))), Ended(1, 7, 7), SessionChanged(1, SESSION, SESSION + 1, True)]
    items += [ChannelsChanged((), ()), batch(packet(1, (2,))._replace(session=SESSION + 1))]
    end = Position(SESSION + 1, 1, 3, {1: 103})
    with feed_of(items) as (feed, _):
        assert feed.wait_until_reached(end, 10)
        assert [entry.after.is_ended for entry in feed.entries()] == [False, True, False, False]


@pytest.mark.parametrize("is_ended", [True, False])
def test_a_query_that_was_stopped_in_an_old_session_continues_only_if_it_had_all_of_it(is_ended: bool) -> None:
    position = Position(SESSION, 1, 7, {1: 107}, is_ended)
    if is_ended:
        with feed_of([], position, session=SESSION + 1) as (feed, made):
            assert feed.begin == Position(SESSION + 1, 0, 1)
            assert made[-1].start == 1
    else:
        with pytest.raises(TableError, match="before its end"), feed_of([], position, session=SESSION + 1):
            pass


def test_a_thread_that_fails_unexpectedly_fails_the_query_instead_of_letting_it_wait() -> None:
    broken: list[Any] = [batch(packet(1, (6,))), object.__new__(Batch)]  # of which any use raises
    with feed_of(broken) as (feed, _):
        assert feed.wait_until_reached(FAR, 60)
        with pytest.raises(TableError, match=r"channel 1: reading failed unexpectedly \(AttributeError"):
            feed.entries()


def test_a_subscription_that_ends_by_itself_fails_the_query() -> None:
    with feed_of([]) as (feed, made):
        made[0].is_closed = True
        assert feed.wait_for_more(EARLIEST, 60)
        with pytest.raises(TableError, match="channel 1: the subscription has ended; start the query again"):
            feed.entries()


class _Paused(threading.Condition):
    """A condition in whose first wait the process is paused: much time passes, and nothing can arrive."""

    is_paused = True

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        if timeout is not None and self.is_paused:
            self.is_paused = False
            return False
        return super().wait_for(predicate, timeout)


@pytest.mark.parametrize("wait", [ChannelFeed.wait_until_reached, ChannelFeed.wait_for_more])
def test_a_pause_of_the_process_does_not_use_up_the_patience_with_the_adapters(
    wait: Callable[[ChannelFeed, Position, float], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_feed, "threading", SimpleNamespace(Condition=_Paused))
    with feed_of([batch(packet(1, (6,)))]) as (feed, _):
        assert wait(feed, Position(SESSION, 1, 2), 60)


def test_a_task_has_the_messages_between_two_positions_and_only_granted_symbols() -> None:
    whole = packet(1, (3, 3))
    some = packet(7, (6,))
    only = [1, 3]  # messages 8 and 10
    frames = [first_messages_of(some, count) for count in (1, 2, 3, 4)]
    ends = [each.messages_offset for each in frames]
    sizes = [len(each.payload) - end for each, end in zip(frames, ends, strict=True)]
    body = some.payload[some.messages_offset :]
    kept = body[sizes[0] : sizes[1]] + body[sizes[2] : sizes[3]]
    filtered = batch(some._replace(payload=some.payload[: some.messages_offset] + kept), only)
    with feed_of([batch(whole), filtered]) as (feed, _):
        end = Position(SESSION, 1, 13, {1: 113, 2: 107})
        assert feed.wait_until_reached(end, 10)
        table = MessageTable(MODEL_FILE.read_bytes(), "QuoteTick")
        reader = LiveReader({}, table.schema)
        reader._table = table
        reader._feed = SimpleNamespace(  # type: ignore[assignment]
            channels={1: feed}, begin={1: EARLIEST}, wait_until_reached=lambda _: None, close=lambda: None
        )
        start = Position(SESSION, 1, 3, {1: 103})
        parts = reader.partitions({"1": start.as_json()}, {"1": end.as_json()})
        rows = [row for part in parts for found in reader.read(part) for row in found.to_pylist()]
    assert [(row["message_seq"], row["source_stream_id"], row["source_seq"]) for row in rows] == [
        (4, 2, 104), (6, 2, 106), (8, 1, 108), (10, 1, 110),
    ]  # fmt: skip
