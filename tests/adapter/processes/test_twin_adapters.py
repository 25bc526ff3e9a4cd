"""The same adapter started twice, as real processes: one continues, the other ends and gives the reason."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemfeed.adapter.cli import REPLACED_STATUS
from tandemfeed.admin_server.server import AdminServer
from tests.adapter.processes.adapter_processes import WAIT_S, AdapterUnderTest
from tests.admin_server.cluster_files import PATIENT, running_server

pytestmark = pytest.mark.processes


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdminServer]:
    with running_server(tmp_path, cluster_text=PATIENT) as running:
        yield running


def grants(server: AdminServer) -> int:
    """The number of granted leases."""
    return sum(event.event == "lease granted" for event in server.brokers["equities"].history())


def last_words(adapter: AdapterUnderTest) -> str:
    """The output of a process that was replaced, after its end."""
    assert adapter.process.wait(WAIT_S) == REPLACED_STATUS
    adapter.await_end()
    return "".join(log.get("text", "") for log in adapter.logs)


def test_a_second_process_ends_with_a_reason_and_the_first_continues_undisturbed(
    server: AdminServer, tmp_path: Path
) -> None:
    first = AdapterUnderTest(server, "a", tmp_path / "first")
    try:
        first.await_state("active")
        twin = AdapterUnderTest(server, "a", tmp_path / "twin", is_awaited=False)
        text = last_words(twin)
        assert "adapter: another process has been registered as a since" in text
        assert f"process {first.process.pid} on host" in text
        assert "start this one with --replace" in text
        assert (grants(server), first.moves()[-1]) == (1, "active")
    finally:
        assert first.stop() == 0


def test_a_process_with_replace_ends_the_first_which_stays_out(server: AdminServer, tmp_path: Path) -> None:
    first = AdapterUnderTest(server, "a", tmp_path / "first")
    first.await_state("active")
    heir = AdapterUnderTest(server, "a", tmp_path / "heir", extra=["--replace"])
    try:
        assert "this process was replaced: since" in last_words(first)
        heir.await_state("active")
        assert grants(server) == 2
    finally:
        assert heir.stop() == 0


def test_a_process_that_was_stopped_by_a_signal_gives_way_and_ends_when_it_wakes(
    server: AdminServer, tmp_path: Path
) -> None:
    first = AdapterUnderTest(server, "a", tmp_path / "first")
    first.await_state("active")
    first.signal(signal.SIGSTOP)
    heir = AdapterUnderTest(server, "a", tmp_path / "heir")
    try:
        heir.await_state("active")
        first.signal(signal.SIGCONT)
        assert "this process was replaced: since" in last_words(first)
        assert grants(server) == 2
    finally:
        assert heir.stop() == 0


def test_a_killed_process_that_restarts_immediately_is_registered(server: AdminServer, tmp_path: Path) -> None:
    first = AdapterUnderTest(server, "a", tmp_path)
    first.await_state("active")
    first.kill()
    again = AdapterUnderTest(server, "a", tmp_path)
    try:
        again.await_state("active")
    finally:
        assert again.stop() == 0
