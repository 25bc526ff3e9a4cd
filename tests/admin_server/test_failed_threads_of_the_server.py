"""What follows when a thread of the admin server fails: the process ends, or its status says that it is unhealthy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemfeed.admin_server.command.admin_command import main as admin
from tandemfeed.admin_server.feed.keys.key_ring import KeyRing
from tandemfeed.admin_server.records import notes as notes_module
from tandemfeed.admin_server.records.notes import NOTES, Notes
from tandemfeed.admin_server.server import AdminServer
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.runtime.threads import failed_threads
from tests.admin_server.adapter_by_hand import Adapter
from tests.admin_server.cluster_files import PATIENT, running_server
from tests.admin_server.conftest import EndedProcess


@pytest.fixture
def server(tmp_path: Path, ended_process: EndedProcess) -> Iterator[AdminServer]:
    with running_server(tmp_path, cluster_text=PATIENT) as running:
        yield running


def await_failed(name: str) -> None:
    deadline = time.monotonic() + 30
    while name not in failed_threads():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def fail(*_: object, **__: object) -> None:
    raise ValueError("broken")


def test_without_its_timers_the_server_ends(
    server: AdminServer, ended_process: EndedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = server.brokers["equities"]._state
    monkeypatch.setattr(state._subscribers, "run_timers", fail)
    state.announce()
    assert ended_process.reasons() == ["lease-equities: broken"]
    server.stop()


def status_of(server: AdminServer, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    folder = server.folder.path
    known = ["--admin", server.endpoint, "--ca", str(folder / "ca.pem"), "--identity", "operator"]
    secret = ["--secret-file", str(folder / "secrets" / "operator.secret")]
    status = 0
    try:
        status = admin(["status", *options, *known, *secret])
    except SystemExit as ended:
        status = int(ended.code or 0)
    return status, capsys.readouterr().out


def test_a_server_that_can_make_no_more_keys_continues_and_its_status_says_so(
    server: AdminServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = server.brokers["equities"]
    adapter = Adapter(server, "a")
    epoch = adapter.await_order("lease_granted").lease_granted.epoch
    monkeypatch.setattr(KeyRing, "pause_ns", lambda _: 0)
    monkeypatch.setattr(KeyRing, "refresh", fail)
    broker.announce()
    await_failed("keys-equities")
    text = "thread keys-equities of the admin server has failed: restart the server, and see its log"
    _, shown = status_of(server, capsys)
    assert f"CRITICAL: {text}" in " ".join(shown.split())
    status, shown = status_of(server, capsys, "--check")
    assert status == 2
    assert text in shown
    adapter.report(ReplicaState.ACTIVE, 5, renew_epoch=epoch)
    assert adapter.await_order("lease_renewed").lease_renewed.epoch == epoch
    adapter.vanish()


def test_notes_that_are_no_longer_flushed_make_the_server_unhealthy_and_are_still_taken(
    tmp_path: Path, ended_process: EndedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes_module, "FLUSH_INTERVAL_S", 0.001)
    monkeypatch.setattr(notes_module, "flush", fail)
    notes = Notes(tmp_path / NOTES)
    notes.note_lease(1, 1, 1)
    await_failed("lease notes")
    notes.note_lease(1, 2, 1)
    assert notes_module.read_notes(tmp_path / NOTES).of(1).lease == (2, 1)
    notes.close()
