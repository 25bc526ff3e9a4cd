"""One gateway sends three sessions without a restart to real adapters, of which one is killed and returns late."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tandemfeed.admin_server.server import AdminServer
from tandemfeed.client_lib import connect
from tandemfeed.feedcore.merge.effects import SessionChanged
from tests.adapter.processes.adapter_processes import SESSION, AdapterUnderTest
from tests.adapter.processes.gateway_process import start_gateway
from tests.adapter.processes.test_new_day_of_processes import Reader
from tests.admin_server.cluster_files import Server, secret_of
from tests.spark_feed.source_material import journal_without_spark, make_recording

pytestmark = pytest.mark.processes

MESSAGE_COUNT = 1_500
RATE = 1_500
PATIENCE_S = 120.0


class _Gateway:
    """A gateway process, and the events that it has announced."""

    def __init__(self, server: Server, journals: Path) -> None:
        self.process = start_gateway(server, "equities", RATE, journals=journals)
        self.events: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def await_event(self, event: str, session: int = 0) -> None:
        """Wait until it has announced an event, of a session if one is given."""

        def is_there() -> bool:
            return any(each["event"] == event and session in (0, each.get("session")) for each in self.events)

        with self._changed:
            assert self._changed.wait_for(is_there, PATIENCE_S), self.events

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.events.append(json.loads(line))
                self._changed.notify_all()
        self.process.stdout.close()


@contextmanager
def _gateway(server: Server, journals: Path) -> Iterator[_Gateway]:
    gateway = _Gateway(server, journals)
    try:
        gateway.await_event("ready")
        yield gateway
    finally:
        if gateway.process.poll() is None:
            gateway.stop()


def _make_journal(folder: Path, session: int) -> Path:
    """The journal of a session, where no gateway looks."""
    recording = folder / f"recording-{session}"
    make_recording(recording, MESSAGE_COUNT, 500, seed=session)
    journal_without_spark(recording, folder / f"made-{session}", session=session)
    return folder / f"made-{session}"


def _check(reader: Reader, sessions: list[int]) -> None:
    """Check that every message of the sessions was delivered once and in order."""
    found = [session for session, _, _ in reader.delivered]
    assert found == sorted(found)
    for session in sessions:
        for stream in (1, 2):
            seqs = [seq for each, of, seq in reader.delivered if (each, of) == (session, stream)]
            assert seqs == list(range(1, len(seqs) + 1))
        assert found.count(session) == MESSAGE_COUNT
    assert reader.changes == [SessionChanged(1, session, session + 1, is_complete=True) for session in sessions[:-1]]


def test_three_sessions_follow_each_other_through_one_gateway_with_an_adapter_killed_at_the_change(
    server: AdminServer, tmp_path: Path
) -> None:
    sessions = [SESSION, SESSION + 1, SESSION + 2]
    made = [_make_journal(tmp_path, session) for session in sessions]
    journals = tmp_path / "journals"
    journals.mkdir()
    with ExitStack() as opened:
        adapters = {name: AdapterUnderTest(server, name, tmp_path) for name in "ab"}
        opened.callback(lambda: [adapter.stop() for adapter in adapters.values()])
        adapters["a"].await_state("active")
        adapters["b"].await_state("synchronized")
        ca = (server.folder.path / "ca.pem").read_bytes()
        client = opened.enter_context(
            connect(admin=server.endpoint, ca=ca, identity="reader", secret=secret_of(server, "reader"))
        )
        reader = Reader(opened.enter_context(client.subscribe(feed="equities", start="first")))
        gateway = opened.enter_context(_gateway(server, journals))  # before there is any journal
        os.rename(made[0], journals / "first")
        gateway.await_event("session", sessions[0])
        os.rename(made[1], journals / "second")  # early: the first session is being sent
        gateway.await_event("session", sessions[1])
        adapters["a"].kill()
        reader.read_until(2 * MESSAGE_COUNT)
        adapters["b"].await_state("active")
        gateway.await_event("sent", sessions[1])
        adapters["a"] = AdapterUnderTest(server, "a", tmp_path)  # joins after the end of the second session
        adapters["a"].await_state("synchronized")
        os.rename(made[2], journals / "third")  # late: the gateway has waited for it
        reader.read_until(3 * MESSAGE_COUNT)
        adapters["a"].await_log("the session has changed")
        _check(reader, sessions)
        order = [(each["event"], each.get("session")) for each in gateway.events if each["event"] != "ready"]
        assert order[:5] == [
            *[(event, session) for session in sessions[:2] for event in ("session", "sent")],
            ("session", sessions[2]),
        ]
        assert gateway.stop() == 0


def test_a_gateway_that_is_killed_in_a_session_continues_in_it_and_then_with_the_next_one(
    server: AdminServer, tmp_path: Path
) -> None:
    sessions = [SESSION, SESSION + 1, SESSION + 2]
    journals = tmp_path / "journals"
    journals.mkdir()
    for session in sessions:
        os.rename(_make_journal(tmp_path, session), journals / str(session))
    with ExitStack() as opened:
        adapter = AdapterUnderTest(server, "a", tmp_path)
        opened.callback(adapter.stop)
        adapter.await_state("active")
        ca = (server.folder.path / "ca.pem").read_bytes()
        client = opened.enter_context(
            connect(admin=server.endpoint, ca=ca, identity="reader", secret=secret_of(server, "reader"))
        )
        reader = Reader(opened.enter_context(client.subscribe(feed="equities", start="first")))
        with _gateway(server, journals) as killed:
            reader.read_until(MESSAGE_COUNT + MESSAGE_COUNT // 3)
            killed.stop(signal.SIGKILL)
        gateway = opened.enter_context(_gateway(server, journals))
        reader.read_until(3 * MESSAGE_COUNT)
        _check(reader, sessions)
        assert [each["session"] for each in gateway.events if each["event"] == "session"] == sessions[1:]
