"""An adapter that returns to a stream that is running yields until it has caught up, and then runs as before."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.adapter.processes.adapter_processes import AdapterUnderTest
from tests.adapter.processes.clusters import Feed, Reader, running_cluster

WAIT_S = 60
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has nice values of threads"),
]


def nice_values(adapter: AdapterUnderTest) -> Counter[int]:
    """How many threads of an adapter have which nice value."""
    threads = os.listdir(f"/proc/{adapter.process.pid}/task")
    return Counter(os.getpriority(os.PRIO_PROCESS, int(each)) for each in threads)


def ends_of_joins(adapter: AdapterUnderTest) -> list[str]:
    return [log["why"] for log in adapter.logs if log.get("event") == "joined"]


def test_an_adapter_yields_while_it_returns_and_no_thread_does_afterwards(tmp_path: Path) -> None:
    with running_cluster(tmp_path, Feed("abc")) as cluster:
        cluster.start_adapters("a")
        cluster.await_active("equities")
        assert ends_of_joins(cluster.adapters["a"]) == []  # it was alone, and so needed at once
        cluster.start_adapters("b")
        cluster.await_active("equities", synchronized_count=1)
        with cluster.subscription() as subscription:
            reader = Reader(subscription)
            cluster.source.send(1, 20)
            reader.take(20)
            cluster.kill("b")
            for _ in range(20):
                cluster.source.send(1, 20)
            reader.take(400)
            cluster.start_adapters("b")
            cluster.await_active("equities", synchronized_count=1)
            cluster.start_adapters("c")  # which the others follow from now on
            cluster.await_active("equities", synchronized_count=2)
            cluster.source.send(1, 20)
            reader.take(20)
        returned = cluster.adapters["b"]
        (why,) = ends_of_joins(returned)
        assert why in ("caught up", "this machine is too busy")
        own = os.getpriority(os.PRIO_PROCESS, 0)
        give_up_at_s = time.monotonic() + WAIT_S
        while set(values := nice_values(returned)) != {own}:  # the thread in which the loop joined is ending
            assert time.monotonic() < give_up_at_s, values
            time.sleep(0.05)
