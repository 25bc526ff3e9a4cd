"""A gateway of a folder of journals: what it finds there, when it continues, what it fills of the former session."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tandemfeed.feedcore.range_set import RangeSet
from tandemfeed.feedcore.wire.source_packet import SourceFlag, decode_source_packet
from tandemfeed.spark_feed.journaling.end_session import end_session
from tandemfeed.spark_feed.journaling.records import POSITION_NAME
from tandemfeed.spark_feed.sending.gateway import PAUSE_NS, GatewayCollector, SourceGateway
from tandemfeed.spark_feed.sending.publication import Clock, since_boot_ns
from tandemfeed.spark_feed.sending.sessions.journals import SessionJournals
from tandemfeed.spark_feed.sending.sessions.order import END_PATIENCE_NS, FoundJournal
from tandemfeed.v1 import admin_pb2, common_pb2
from tests.spark_feed.sending.gateway_material import DELAY_NS, DELAYED, REAL_TIME, ManualClock, running_gateway
from tests.spark_feed.source_material import FEED, journal_without_spark, make_recording

COUNT = 300
FIRST, SECOND, THIRD = FEED.session, FEED.session + 1, FEED.session + 2
PATIENCE_S = 60.0
EVERYTHING = RangeSet([(1, 10_000)])


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    make_recording(tmp_path / "recording", COUNT, 100)
    return tmp_path / "recording"


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    (tmp_path / "journals").mkdir()
    return tmp_path / "journals"


def _make(recording: Path, journal: Path, session: int, *, is_ended: bool = True) -> None:
    """Put a journal into its folder, as a whole."""
    made = recording.parent / f"made-{journal.name}"
    journal_without_spark(recording, made, session=session, is_ended=is_ended)
    os.rename(made, journal)


# ---- what is found ----


def test_the_journals_of_the_feed_are_found_and_others_are_passed_over_with_one_warning(
    recording: Path, journals: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = SessionJournals(journals, FEED.name, FEED.source_stream_ids, POSITION_NAME)
    others = SessionJournals(journals, "bonds", FEED.source_stream_ids, POSITION_NAME)
    (journals / "not-a-journal").mkdir()
    (journals / "a-file").touch()
    (journals / "empty" / "commits").mkdir(parents=True)
    assert folder.look() == []
    _make(recording, journals / "monday", FIRST)
    _make(recording, journals / ".hidden", SECOND)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert folder.look() == [FoundJournal(FIRST, journals / "monday")]
            assert others.look() == []
    (warning,) = caplog.messages
    assert "contains feed equities with source streams [1, 2]; expected bonds" in warning
    (journals / "monday" / POSITION_NAME).write_bytes(b"x")
    assert folder.look() == [FoundJournal(FIRST, journals / "monday", is_begun=True)]
    shutil.rmtree(journals / "monday")
    _make(recording, journals / "tuesday", THIRD)
    assert folder.look() == [FoundJournal(THIRD, journals / "tuesday")]


def test_a_folder_that_does_not_exist_yet_or_cannot_be_read_has_no_journals(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert SessionJournals(tmp_path / "later", FEED.name, FEED.source_stream_ids, POSITION_NAME).look() == []
    assert caplog.messages == []
    (tmp_path / "file").touch()
    unreadable = SessionJournals(tmp_path / "file", FEED.name, FEED.source_stream_ids, POSITION_NAME)
    assert [unreadable.look() for _ in range(3)] == [[], [], []]
    (warning,) = caplog.messages
    assert warning.startswith(f"cannot read {tmp_path / 'file'}")


# ---- what a gateway does ----


def _gateway(
    journals: Path,
    session: int = 0,
    description: common_pb2.FeedDescription = REAL_TIME,
    clock: Clock = since_boot_ns,
    clock_ns: Callable[[], int] = time.monotonic_ns,
) -> AbstractContextManager[SourceGateway]:
    options = {"journals": journals, "session": session, "clock_ns": clock_ns}
    return running_gateway(journals.parent, description, clock, **options)


class SteppedClock:
    """Monotonic time, and what a test adds."""

    added_ns = 0

    def __call__(self) -> int:
        return time.monotonic_ns() + self.added_ns


def _turn_until(gateway: SourceGateway, is_there: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not is_there():
        assert time.monotonic() < give_up_at, (gateway.session, gateway.has_sent_all)
        gateway._turn()
        time.sleep(gateway._wait_s())


def _report(gateway: SourceGateway) -> admin_pb2.SourceReport:
    report = admin_pb2.SourceReport()
    gateway.describe(report)
    return report


def _filled(gateway: SourceGateway, session: int) -> tuple[int, int]:
    """How many messages of a session adapters receive, and how many streams' ends."""
    datagrams = [each for stream in (1, 2) for each in gateway.replay._of_session(session, stream, EVERYTHING)]
    packets = [decode_source_packet(each, gateway._description.feed_id) for each in datagrams]
    assert {packet.session for packet in packets} <= {session}
    ends = [packet for packet in packets if packet.flags & SourceFlag.END_OF_STREAM]
    return sum(packet.message_count for packet in packets), len(ends)


@pytest.mark.processes
def test_a_gateway_waits_until_an_adapter_has_begun_the_session_and_fills_the_former_one(
    recording: Path, journals: Path
) -> None:
    with _gateway(journals) as gateway:
        gateway._turn()
        assert (gateway.session, _filled(gateway, FIRST)) == (0, (0, 0))
        assert _report(gateway).waiting_reason.startswith("nothing is sent")
        for session in (THIRD, SECOND, FIRST):
            _make(recording, journals / str(session), session)
        _turn_until(gateway, lambda: gateway.session == SECOND and gateway.has_sent_all)
        assert (_filled(gateway, FIRST), _filled(gateway, SECOND)) == ((COUNT, 2), (COUNT, 0))
        looked_at_ns = gateway._look_at_ns
        _turn_until(gateway, lambda: gateway._look_at_ns > looked_at_ns)
        assert gateway.session == SECOND  # no adapter has begun it
        gateway.on_answer(admin_pb2.SourceReported(feed_session=SECOND))
        _turn_until(gateway, lambda: gateway.session == THIRD and gateway.has_sent_all)
        assert [_filled(gateway, session) for session in (FIRST, SECOND, THIRD)] == [(0, 0), (COUNT, 2), (COUNT, 0)]
        assert (_report(gateway).session, _report(gateway).has_sent_all) == (THIRD, True)
        gauges = {family.name: family.samples[0].value for family in GatewayCollector(gateway).collect()}
        assert (gauges["tandemfeed_source_session"], gauges["tandemfeed_source_session_is_sent"]) == (THIRD, 1)
    with _gateway(journals) as restarted:
        _turn_until(restarted, lambda: restarted.session != 0)
        assert (restarted.session, _filled(restarted, SECOND), _filled(restarted, THIRD)) == (
            THIRD,
            (COUNT, 2),
            (COUNT, 0),
        )


@pytest.mark.processes
def test_a_session_without_an_end_keeps_the_next_one_waiting_until_a_gateway_is_told_to_begin_it(
    recording: Path, journals: Path
) -> None:
    _make(recording, journals / "first", FIRST, is_ended=False)
    _make(recording, journals / "second", SECOND)
    clock = SteppedClock()
    with _gateway(journals, clock_ns=clock) as gateway:
        _turn_until(
            gateway, lambda: sum(gateway.core.next_source_seqs.values()) == COUNT + 2 if gateway.session else False
        )
        gateway._look_at_ns = 0
        gateway._turn()
        assert _report(gateway).waiting_reason == ""
        clock.added_ns += 2 * END_PATIENCE_NS  # a pause of the gateway, which is no fault of the source job
        gateway._turn()
        assert _report(gateway).waiting_reason == ""
        for _ in range(END_PATIENCE_NS // PAUSE_NS):
            clock.added_ns += PAUSE_NS
            gateway._turn()
        assert gateway.session == FIRST
        assert f"the journal of session {FIRST} has no end" in _report(gateway).waiting_reason
    with _gateway(journals, session=SECOND) as gateway:
        _turn_until(gateway, lambda: gateway.has_sent_all)
        assert (gateway.session, _filled(gateway, FIRST)) == (SECOND, (COUNT, 2))


@pytest.mark.processes
def test_an_operator_who_ends_a_session_lets_the_waiting_gateway_go_on(recording: Path, journals: Path) -> None:
    _make(recording, journals / "first", FIRST, is_ended=False)
    _make(recording, journals / "second", SECOND)
    with _gateway(journals) as gateway:
        _turn_until(
            gateway, lambda: sum(gateway.core.next_source_seqs.values()) == COUNT + 2 if gateway.session else False
        )
        assert gateway.session == FIRST
        end_session(journals / "first")
        _turn_until(gateway, lambda: gateway.session == SECOND and gateway.has_sent_all)
        assert (_filled(gateway, FIRST), _filled(gateway, SECOND)) == ((COUNT, 2), (COUNT, 0))


@pytest.mark.processes
def test_a_journal_that_another_gateway_sends_is_tried_again(
    recording: Path, journals: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _make(recording, journals / "first", FIRST)
    _make(recording, journals / "second", SECOND)
    with _gateway(journals) as gateway:
        with _gateway(journals, session=SECOND) as other:
            _turn_until(other, lambda: other.session == SECOND)
            _turn_until(gateway, lambda: any("another gateway sends from" in text for text in caplog.messages))
            assert gateway.session == FIRST
        _turn_until(gateway, lambda: gateway.session == SECOND)
        assert sum("another gateway sends from" in text for text in caplog.messages) == 1


@pytest.mark.processes
def test_a_delayed_gateway_changes_its_session_when_the_end_of_the_present_one_is_old_enough(
    recording: Path, journals: Path
) -> None:
    clock = ManualClock()
    for session in (FIRST, SECOND):
        _make(recording, journals / str(session), session)
    with _gateway(journals, clock=clock) as real_time:
        _turn_until(real_time, lambda: real_time.session == SECOND and real_time.has_sent_all)
    clock.now_ns += DELAY_NS - 1
    with _gateway(journals, description=DELAYED, clock=clock) as delayed:
        _turn_until(delayed, lambda: delayed.heartbeat_count > 20)
        assert (delayed.session, delayed.packet_count) == (FIRST, 0)
        clock.now_ns += 1
        _turn_until(delayed, lambda: delayed.session == SECOND and delayed.has_sent_all)
        assert (_filled(delayed, FIRST), _filled(delayed, SECOND)) == ((COUNT, 2), (COUNT, 0))
