"""The lifeline reports to the admin server that an adapter was killed; an orderly end is not reported."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemfeed.admin_server.server import AdminServer
from tandemfeed.transport.scheduling import LAST_THREADS_MAX
from tests.adapter.processes.adapter_processes import WAIT_S, AdapterUnderTest
from tests.admin_server.cluster_files import running_server

pytestmark = pytest.mark.processes


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdminServer]:
    with running_server(tmp_path) as running:
        yield running


def endings(server: AdminServer) -> list[int]:
    """The incarnations whose end a lifeline reported."""
    events = [json.loads(line) for line in (server.folder.path / "audit.jsonl").read_text().splitlines()]
    return [event["incarnation"] for event in events if event["event"] == "ended"]


def await_ending(server: AdminServer) -> list[int]:
    """Wait until an end is reported."""
    pause, waited_s = threading.Event(), 0.0
    while not (found := endings(server)):
        assert waited_s < WAIT_S, "no lifeline reported an end"
        pause.wait(0.02)  # the log is a file, so it must be polled
        waited_s += 0.02
    return found


def niced(pid: int) -> int:
    """The number of threads of a process that have a higher nice value than this one."""
    threads = [int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()]
    own = os.getpriority(os.PRIO_PROCESS, 0)
    return sum(os.getpriority(os.PRIO_PROCESS, thread) > own for thread in threads)


def test_nothing_of_a_running_adapter_stays_in_the_background_in_which_it_started(
    server: AdminServer, tmp_path: Path
) -> None:
    adapter = AdapterUnderTest(server, "a", tmp_path)
    adapter.await_state("active")
    adapter.await_log("guarded")
    (lifeline,) = Path(f"/proc/{adapter.process.pid}/task/{adapter.process.pid}/children").read_text().split()
    processors = len(os.sched_getaffinity(0))
    assert niced(adapter.process.pid) <= min(processors, LAST_THREADS_MAX)  # the threads that end last
    assert niced(int(lifeline)) == 0
    assert adapter.stop() == 0


def test_a_killed_adapter_is_reported_and_one_that_stops_is_not(server: AdminServer, tmp_path: Path) -> None:
    adapter = AdapterUnderTest(server, "a", tmp_path)
    adapter.await_state("active")
    assert adapter.stop() == 0
    assert endings(server) == []
    adapter = AdapterUnderTest(server, "a", tmp_path)
    adapter.await_state("active")
    adapter.await_log("guarded")
    adapter.kill()
    (incarnation,) = await_ending(server)
    known = server.brokers["equities"].adapters()
    assert incarnation == next(each.incarnation for each in known if each.name == "a")
