"""A delayed feed: its gateway reads the source journal of a real-time feed, and sends nothing before its time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import zmq

from tandemfeed.feedcore.range_set import RangeSet
from tandemfeed.feedcore.wire.source_packet import SourceFlag, SourcePacket, decode_source_packet
from tandemfeed.spark_feed.journaling.committed_records import CommittedRecords
from tandemfeed.spark_feed.journaling.records import RecordKind, packet_place
from tandemfeed.spark_feed.sending import publication
from tandemfeed.spark_feed.sending.gateway import SourceGateway
from tandemfeed.spark_feed.sending.publication import Delay, DelayedRecords, PublicationLog
from tandemfeed.spark_feed.sending.sessions.sent_session import GatewayError
from tandemfeed.transport.multicast.zeromq import ZeromqReceiver
from tandemfeed.v1 import common_pb2
from tests.spark_feed.sending.gateway_material import (
    DELAY_NS,
    DELAYED,
    DELAYED_FEED_ID,
    REAL_TIME,
    SECOND,
    ManualClock,
    running_gateway,
)
from tests.spark_feed.source_material import (
    FEED,
    assert_gapless,
    frames_in,
    journal_without_spark,
    make_recording,
    records_of,
)

PATIENCE_S = 60.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


# ---- the log of what was sent in real time ----


def _logged(folder: Path, clock: ManualClock, *steps: tuple[int, int], boot: int = 1) -> None:
    """Note positions, each at a number of seconds after the former."""
    with closing(PublicationLog(folder, clock, boot)) as log:
        for seconds, position in steps:
            clock.now_ns += seconds * SECOND
            log.note(position)


def test_a_position_is_released_when_the_delay_has_passed_and_not_before(tmp_path: Path, clock: ManualClock) -> None:
    _logged(tmp_path, clock, (0, 10), (60, 20))
    with closing(Delay(tmp_path, DELAY_NS, clock=clock, boot=1)) as delay:
        clock.now_ns += 840 * SECOND - 1
        assert delay.released_position == 0
        clock.now_ns += 1
        assert delay.released_position == 10
        clock.now_ns += 60 * SECOND - 1
        assert delay.released_position == 10
        clock.now_ns += 1
        assert delay.released_position == 20


def test_what_is_sent_twice_keeps_its_first_time(tmp_path: Path, clock: ManualClock) -> None:
    _logged(tmp_path, clock, (0, 10))
    _logged(tmp_path, clock, (500, 8), (1, 10), (1, 12))  # the real-time gateway restarted at an older position
    with closing(Delay(tmp_path, DELAY_NS, clock=clock, boot=1)) as delay:
        clock.now_ns += 398 * SECOND
        assert delay.released_position == 10


def test_a_restarted_delayed_gateway_skips_what_it_has_sent(tmp_path: Path, clock: ManualClock) -> None:
    _logged(tmp_path, clock, *[(1, position) for position in range(1, 1_000)])
    with closing(Delay(tmp_path, DELAY_NS, 400, clock=clock, boot=1)) as delay:
        assert delay.released_position == 400
        clock.now_ns += 400 * SECOND
        assert delay.released_position == 499


def test_after_a_reboot_the_delay_begins_anew(tmp_path: Path, clock: ManualClock) -> None:
    """The clock since boot begins at zero again, and the wall clock may have been set meanwhile."""
    _logged(tmp_path, clock, (0, 10))
    clock.now_ns = 3 * SECOND
    with closing(Delay(tmp_path, DELAY_NS, clock=clock, boot=2)) as delay:
        assert delay.released_position == 0
        _logged(tmp_path, clock, (100, 20), boot=2)
        clock.now_ns += 800 * SECOND
        assert delay.released_position == 10
        clock.now_ns += 100 * SECOND
        assert delay.released_position == 20


def test_an_entry_that_another_machine_writes_meanwhile_is_not_taken_for_an_old_one(
    tmp_path: Path, clock: ManualClock
) -> None:
    _logged(tmp_path, clock, (0, 10))
    with closing(Delay(tmp_path, DELAY_NS, clock=clock, boot=1)) as delay:
        clock.now_ns += 900 * SECOND
        assert delay.released_position == 10
        _logged(tmp_path, clock, (0, 20), boot=7)
        clock.now_ns += SECOND
        assert delay.released_position == 10
        clock.now_ns += 900 * SECOND
        assert delay.released_position == 20


def test_a_torn_entry_is_not_believed_and_is_written_over(tmp_path: Path, clock: ManualClock) -> None:
    _logged(tmp_path, clock, (0, 10), (0, 20))
    path = tmp_path / publication.PUBLICATION_NAME
    with path.open("r+b") as file:
        file.truncate(publication.ENTRY_SIZE * 2 - 5)
    with closing(Delay(tmp_path, DELAY_NS, clock=clock, boot=1)) as delay:
        clock.now_ns += 900 * SECOND
        assert delay.released_position == 10
        _logged(tmp_path, clock, (0, 30))
        assert path.stat().st_size == publication.ENTRY_SIZE * 2
        clock.now_ns += 900 * SECOND
        assert delay.released_position == 30


def test_entries_about_a_removed_journal_release_nothing_of_the_next(site: _Site, clock: ManualClock) -> None:
    _logged(site.journal, clock, (0, 1 << 62))
    with closing(_Receiver(REAL_TIME)) as prompt, site.gateway(REAL_TIME) as gateway:
        _turn(gateway, prompt, lambda: bool(prompt.packets))
    clock.now_ns += DELAY_NS - 1
    with closing(Delay(site.journal, DELAY_NS, clock=clock)) as delay:
        assert delay.released_position == 0
        clock.now_ns += 1
        assert 0 < delay.released_position < 1 << 62


def test_a_full_disk_delays_more_and_disturbs_nothing(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with closing(PublicationLog(tmp_path, clock, 1)) as log, monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        log.note(10)
        patched.undo()
        clock.now_ns += 100 * SECOND
        log.note(10)
    with closing(Delay(tmp_path, DELAY_NS, clock=clock, boot=1)) as delay:
        clock.now_ns += 899 * SECOND
        assert delay.released_position == 0
        clock.now_ns += SECOND
        assert delay.released_position == 10


def test_nothing_is_released_before_a_real_time_gateway_exists(tmp_path: Path, clock: ManualClock) -> None:
    with closing(Delay(tmp_path, DELAY_NS, clock=clock, boot=1)) as delay:
        clock.now_ns += 10 * DELAY_NS
        assert delay.released_position == 0
        _logged(tmp_path, clock, (0, 10))
        assert delay.released_position == 0
        clock.now_ns += DELAY_NS
        assert delay.released_position == 10


def test_the_clock_counts_from_the_boot_of_this_machine() -> None:
    """Not the wall clock, which an operator or a time server can set."""
    assert publication.since_boot_ns() <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert publication.this_boot() == publication.this_boot() != 0


def test_a_delayed_reader_reads_every_record_once_and_none_too_early(tmp_path: Path, clock: ManualClock) -> None:
    make_recording(tmp_path / "recording", 400, 100)
    journal = tmp_path / "journal"
    journal_without_spark(tmp_path / "recording", journal)
    with CommittedRecords(journal, FEED.source_stream_ids) as everything:
        begin, *records = iter(everything.read, None)
    with ExitStack() as opened:
        log = opened.enter_context(closing(PublicationLog(journal, clock, 1)))
        delay = opened.enter_context(closing(Delay(journal, DELAY_NS, clock=clock, boot=1)))
        delayed = DelayedRecords(opened.enter_context(CommittedRecords(journal, FEED.source_stream_ids)), delay)
        assert delayed.read() == begin  # says only what is numbered
        noted = 0
        for entry in records:
            kind = entry.record[0]
            sent = packet_place(entry.record) + 1 if kind == RecordKind.PACKET else 400 + (kind == RecordKind.END)
            if kind != RecordKind.COMMIT and sent > noted:
                assert delayed.read() is None
                log.note(sent)
                noted = sent
                clock.now_ns += DELAY_NS - 1
                assert delayed.read() is None
                clock.now_ns += 1
            assert delayed.read() == entry
        assert delayed.read() is None


# ---- real gateways ----


class _Receiver:
    """Receives a feed's source packets, which are not sealed."""

    def __init__(self, description: common_pb2.FeedDescription) -> None:
        self._feed_id = description.feed_id
        self._context: zmq.Context[Any] = zmq.Context()
        groups = [stream.group for stream in description.source_streams]
        self._receivers = [ZeromqReceiver(self._context, "127.0.0.1", group) for group in groups]
        self.packets: list[SourcePacket] = []
        self.heartbeats: list[SourcePacket] = []

    def receive(self) -> None:
        for receiver in self._receivers:
            while (datagram := receiver.receive()) is not None:
                packet = decode_source_packet(datagram, self._feed_id)
                (self.heartbeats if packet.flags & SourceFlag.HEARTBEAT else self.packets).append(packet)

    @property
    def has_ended(self) -> bool:
        ended = {beat.source_stream_id for beat in self.heartbeats if beat.flags & SourceFlag.END_OF_STREAM}
        return ended == set(FEED.source_stream_ids)

    def close(self) -> None:
        for receiver in self._receivers:
            receiver.close()
        self._context.term()


class _Site:
    """A source journal, from which the gateways send."""

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        self._clock, self._folder, self.journal = clock, folder, folder / "journal"
        make_recording(folder / "recording", 600, 200)
        journal_without_spark(folder / "recording", self.journal)

    def gateway(
        self, description: common_pb2.FeedDescription, former_journal: Path | None = None
    ) -> AbstractContextManager[SourceGateway]:
        options = {"journal": self.journal, "former_journal": former_journal}
        return running_gateway(self._folder, description, self._clock, **options)


@pytest.fixture
def site(tmp_path: Path, clock: ManualClock) -> _Site:
    return _Site(tmp_path, clock)


def _turn(gateway: SourceGateway, receiver: _Receiver, until: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < give_up_at, "the gateway did not send in time"
        gateway._turn()
        receiver.receive()


def _filled(gateway: SourceGateway) -> list[bytes]:
    everything = RangeSet([(1, 10_000)])
    return [each for stream in FEED.source_stream_ids for each in gateway.replay._of_session(0, stream, everything)]


def test_a_delayed_gateway_sends_and_fills_nothing_before_the_delay_and_then_everything(
    site: _Site, clock: ManualClock
) -> None:
    with (
        closing(_Receiver(REAL_TIME)) as prompt,
        closing(_Receiver(DELAYED)) as late,
        site.gateway(REAL_TIME) as real_time,
        site.gateway(DELAYED) as delayed,
    ):
        _turn(real_time, prompt, lambda: prompt.has_ended)
        sent_at_ns = clock.now_ns
        real_time._stored_at_ns = 0
        real_time._turn()  # notes that everything is sent
        clock.now_ns = sent_at_ns + DELAY_NS - 1
        heard = len(late.heartbeats)
        _turn(delayed, late, lambda: len(late.heartbeats) > heard + 20)
        assert late.packets == []
        assert {beat.first_source_seq for beat in late.heartbeats} == {1}
        assert _filled(delayed) == []
        clock.now_ns = sent_at_ns + DELAY_NS
        _turn(delayed, late, lambda: late.has_ended)
        assert sum(assert_gapless(sorted(late.packets, key=lambda packet: packet[:2])).values()) == 600
        key = sorted(prompt.packets, key=lambda packet: packet[:2])
        assert [frames_in(each) for each in sorted(late.packets, key=lambda packet: packet[:2])] == [
            frames_in(each) for each in key
        ]
        assert [decode_source_packet(each, DELAYED_FEED_ID).message_count for each in _filled(delayed)]


def test_a_restarted_delayed_gateway_loses_nothing_and_is_never_early(site: _Site, clock: ManualClock) -> None:
    with closing(_Receiver(DELAYED)) as late:
        places = [packet_place(record) for record in records_of(site.journal) if record[0] == RecordKind.PACKET]
        half = places[len(places) // 2] + 1
        with closing(PublicationLog(site.journal, clock)) as log:
            log.note(half)
            clock.now_ns += 100 * SECOND
            log.note(600 + 1)  # the end of the streams counts as one more
        clock.now_ns += 800 * SECOND
        with site.gateway(DELAYED) as first:
            _turn(first, late, lambda: first.core.position == half)
            heard = len(late.heartbeats)
            _turn(first, late, lambda: len(late.heartbeats) > heard + 20)
            assert first.core.position == half
        clock.now_ns += 100 * SECOND - 1
        with site.gateway(DELAYED) as second:
            heard = len(late.heartbeats)
            _turn(second, late, lambda: len(late.heartbeats) > heard + 20)
            assert second.core.position == half
            clock.now_ns += 1
            _turn(second, late, lambda: late.has_ended)
            distinct = {packet[:2]: packet for packet in late.packets}
            assert sum(assert_gapless([distinct[key] for key in sorted(distinct)]).values()) == 600
            assert {decode_source_packet(each, DELAYED_FEED_ID).session for each in _filled(second)} == {FEED.session}


def test_adapters_fill_gaps_of_the_previous_session_only_when_all_of_it_is_old_enough(
    site: _Site, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former, site.journal = site.journal, tmp_path / "next-journal"
    with closing(PublicationLog(former, clock)) as log:
        log.note(600)
    next_day = common_pb2.FeedDescription()
    next_day.CopyFrom(DELAYED)
    next_day.session = FEED.session + 1
    with site.gateway(next_day, former) as gateway:
        wanted = (FEED.session, 1, RangeSet([(1, 100)]))
        clock.now_ns += DELAY_NS - 1
        assert list(gateway.replay._of_session(*wanted)) == []
        clock.now_ns += 1
        assert list(gateway.replay._of_session(*wanted))


def test_a_real_time_and_a_delayed_gateway_share_a_journal_and_two_delayed_ones_of_a_feed_do_not(site: _Site) -> None:
    with site.gateway(REAL_TIME), site.gateway(DELAYED), pytest.raises(OSError, match="another gateway sends from"):
        site.gateway(DELAYED).__enter__()


# ---- a feed to which clients contribute as well ----


def test_a_source_gateway_leaves_contributed_streams_to_their_gateway(site: _Site) -> None:
    both = common_pb2.FeedDescription()
    both.CopyFrom(REAL_TIME)
    both.source_streams.add(source_stream_id=99, group="239.192.8.99:5899", contribution_endpoint="127.0.0.1:7412")
    with closing(_Receiver(both)) as receiver, site.gateway(both) as gateway:
        _turn(gateway, receiver, lambda: receiver.has_ended)
        assert {beat.source_stream_id for beat in receiver.heartbeats} == set(FEED.source_stream_ids)
    del both.source_streams[:-1]
    with pytest.raises(GatewayError, match="run tandemfeed contribution-gateway"), site.gateway(both):
        pass
