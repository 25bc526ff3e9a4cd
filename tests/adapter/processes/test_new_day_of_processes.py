"""The source ends its day and begins the next one while real processes run: adapters, admin server, client library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tandemfeed.admin_server.server import AdminServer
from tandemfeed.client_lib import Batch, Subscription, connect
from tandemfeed.feedcore.merge.effects import SessionChanged
from tandemfeed.feedcore.wire.source_packet import SourceFlag
from tests.adapter.processes.adapter_processes import AdapterUnderTest, SourceByHand
from tests.admin_server.cluster_files import secret_of

pytestmark = pytest.mark.processes
Identity = tuple[int, int, int]  # session, source_stream_id, source_seq
PACKETS, SIZE = 10, 5  # per stream and session
DAY_NS = 86_400 * 1_000_000_000


class Reader:
    """Collects what a subscription delivers, in order."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self.delivered: list[Identity] = []
        self.changes: list[SessionChanged] = []

    def read_until(self, count: int) -> None:
        """Read until this number of source messages has been delivered in total."""
        while len(self.delivered) < count:
            items = self._subscription.poll(20)
            assert items, f"only {len(self.delivered)} of {count}: {self.changes}"
            for item in items:
                if isinstance(item, Batch):
                    session = item.packet.session
                    for run in item.sources():
                        seqs = range(run.first_source_seq, run.end_source_seq)
                        self.delivered += [(session, run.source_stream_id, seq) for seq in seqs]
                elif isinstance(item, SessionChanged):
                    self.changes.append(item)


def play(source: SourceByHand) -> None:
    for _ in range(PACKETS):
        source.send(1, SIZE)
        source.send(2, SIZE)


def check(reader: Reader, first_session: int) -> None:
    """Check that every message was delivered once and in order, the first session before the second."""
    sessions = [session for session, _, _ in reader.delivered]
    assert sessions == sorted(sessions)
    for session in (first_session, first_session + 1):
        for stream in (1, 2):
            seqs = [seq for each, of, seq in reader.delivered if (each, of) == (session, stream)]
            assert seqs == list(range(1, PACKETS * SIZE + 1))
    assert reader.changes == [SessionChanged(1, first_session, first_session + 1, is_complete=True)]


@pytest.mark.parametrize("is_active_killed", [False, True])
def test_a_new_day_loses_repeats_and_reorders_nothing(
    server: AdminServer, source: SourceByHand, tmp_path: Path, is_active_killed: bool
) -> None:
    adapters = {name: AdapterUnderTest(server, name, tmp_path) for name in "ab"}
    first_session = source.session
    try:
        adapters["a"].await_state("active")
        adapters["b"].await_state("synchronized")
        ca = (server.folder.path / "ca.pem").read_bytes()
        with (
            connect(admin=server.endpoint, ca=ca, identity="reader", secret=secret_of(server, "reader")) as client,
            client.subscribe(feed="equities", start="first") as subscription,
        ):
            reader = Reader(subscription)
            play(source)
            reader.read_until(2 * PACKETS * SIZE)
            if is_active_killed:
                adapters["a"].kill()
            source.beat(SourceFlag.END_OF_STREAM)
            source.begin_session()
            play(source)
            reader.read_until(4 * PACKETS * SIZE)
            check(reader, first_session)
            adapters["b"].await_log("the session has changed")
            assert subscription.grant.session >= first_session
    finally:
        for adapter in adapters.values():
            adapter.stop()


@pytest.mark.parametrize("start", ["a time", "a message", "a cursor"])
def test_a_subscription_that_begins_two_days_ago_delivers_all_sessions_since_then_and_continues_live(
    server: AdminServer, source: SourceByHand, tmp_path: Path, start: str
) -> None:
    """An adapter is killed in the first session and returns in the second, so neither adapter has every packet."""
    adapters = {name: AdapterUnderTest(server, name, tmp_path) for name in "ab"}
    first_session = source.session
    ca = (server.folder.path / "ca.pem").read_bytes()
    cursor = tmp_path / "cursor.json" if start == "a cursor" else None
    source.sent_at_ns = begin_ns = 1_795_305_600 * 1_000_000_000
    try:
        adapters["a"].await_state("active")
        adapters["b"].await_state("synchronized")
        with connect(admin=server.endpoint, ca=ca, identity="reader", secret=secret_of(server, "reader")) as client:
            with client.subscribe(feed="equities", start="first", cursor=cursor) as subscription:
                reader = Reader(subscription)
                play(source)
                reader.read_until(2 * PACKETS * SIZE)
            adapters["a"].kill()
            for day in (1, 2):
                source.beat(SourceFlag.END_OF_STREAM)
                source.begin_session()
                source.sent_at_ns += DAY_NS
                if day == 1:
                    source.beat()
                    adapters["b"].await_log("the session has changed")
                    adapters["a"] = AdapterUnderTest(server, "a", tmp_path)
                    adapters["a"].await_state("synchronized")
                play(source)
            given: Any = begin_ns if start == "a time" else {"equities.ticks": (first_session, 41)}
            with client.subscribe(feed="equities", start=given, cursor=cursor) as subscription:
                late = Reader(subscription)
                expected = {"a time": 6, "a message": 6, "a cursor": 4}[start] * PACKETS * SIZE
                late.read_until(expected - (40 if start == "a message" else 0))
                source.send(1, SIZE)
                late.read_until(len(late.delivered) + SIZE)
        check_sessions(late, first_session, is_first_whole=start == "a time", has_first=start != "a cursor")
        assert len(reader.delivered) == 2 * PACKETS * SIZE
    finally:
        for adapter in adapters.values():
            adapter.stop()


def check_sessions(reader: Reader, first_session: int, *, is_first_whole: bool, has_first: bool) -> None:
    """Check that three sessions followed each other, each delivered once and in order."""
    sessions = [session for session, _, _ in reader.delivered]
    assert sessions == sorted(sessions)
    for session in range(first_session, first_session + 3):
        for stream in (1, 2):
            seqs = [seq for each, of, seq in reader.delivered if (each, of) == (session, stream)]
            end = PACKETS * SIZE + 1 + (SIZE if (session, stream) == (first_session + 2, 1) else 0)
            if session > first_session or is_first_whole:
                assert seqs == list(range(1, end))
            elif has_first:
                assert seqs == list(range(seqs[0], end))
            else:
                assert seqs == []
    assert reader.changes == [
        SessionChanged(1, session, session + 1, is_complete=True) for session in (first_session, first_session + 1)
    ]


def test_an_adapter_that_starts_later_begins_in_the_session_that_the_server_remembers(
    server: AdminServer, source: SourceByHand, tmp_path: Path
) -> None:
    adapters = {"a": AdapterUnderTest(server, "a", tmp_path)}
    try:
        adapters["a"].await_state("active")
        play(source)
        source.beat(SourceFlag.END_OF_STREAM)
        source.begin_session()
        play(source)
        adapters["a"].await_log("the session has changed")
        adapters["b"] = AdapterUnderTest(server, "b", tmp_path)
        adapters["b"].await_state("synchronized")
        assert not any(log.get("event") == "the session has changed" for log in adapters["b"].logs)
    finally:
        for adapter in adapters.values():
            adapter.stop()
