"""`tandemfeed bars` of a live feed: each bar once and exact, although the active adapter is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tandemfeed.feedcore.documents.source_format import load_source_format
from tests.adapter.processes.adapter_processes import EXAMPLES, SourceByHand
from tests.adapter.processes.clusters import Cluster, Feed, running_cluster

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(900)]
PATIENCE_S = 300.0
FIRST_SECOND = 1_790_000_000
PER_SECOND = 10
TRADE = load_source_format(EXAMPLES / "source-format.xml").messages["trade"]


def send_second(source: SourceByHand, second: int) -> None:
    """Trades of one second: prices 1 … 10, each of its number's size."""
    numbers = np.arange(1, PER_SECOND + 1)
    times = (FIRST_SECOND + second) * 1_000_000_000 + numbers * 1_000_000
    values = {"symbol": np.full(PER_SECOND, b"ABC"), "event_at_ns": times}
    rows = TRADE.encode(values | {"price": numbers * 1_000_000_000, "size": numbers}, PER_SECOND)
    source.send_frames(1, [row.tobytes() for row in rows])


def start_command(cluster: Cluster, folder: Path) -> subprocess.Popen[str]:
    state = cluster.server.folder.path
    command = [
        sys.executable, "-m", "tandemfeed.deploy.command", "bars", "--feed", "equities", "--start", "earliest",
        "--admin", cluster.server.endpoint, "--ca", str(state / "ca.pem"), "--identity", "reader",
        "--secret-file", str(state / "secrets" / "reader.secret"), "--width", "1 second", "--late", "0 seconds",
        "--quotes", "", "--out", str(folder / "bars"), "--checkpoint", str(folder / "checkpoint"),
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"TANDEMFEED_LEASH": "1"})


def written(folder: Path) -> list[dict[str, object]]:
    """The bars that the query has committed: of the files that its log lists."""
    log = folder / "bars" / "trades" / "_spark_metadata"
    entries = [line for batch in log.glob("[0-9]*") for line in batch.read_text().splitlines()[1:]]
    paths = {json.loads(entry)["path"].removeprefix("file://") for entry in entries}
    return sorted((row for path in paths for row in pq.read_table(path).to_pylist()), key=lambda row: row["begin_at"])


def wait_for(is_there: Callable[[], bool], command: subprocess.Popen[str], story: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not is_there():
        assert time.monotonic() < end_s, story()
        assert command.poll() is None, "the command ended"
        time.sleep(0.2)


def test_bars_of_a_live_feed_are_exact_over_a_takeover(tmp_path: Path) -> None:
    with running_cluster(tmp_path, Feed("ab")) as cluster:
        cluster.start_adapters("ab")
        active = cluster.await_active("equities", synchronized_count=1).active.adapter_id
        for second in range(3):
            send_second(cluster.source, second)
        command = start_command(cluster, tmp_path)
        try:
            wait_for(lambda: len(written(tmp_path)) >= 2, command, lambda: written(tmp_path))
            cluster.kill("ab"[active - 1])
            cluster.await_active("equities", other_than=active)
            for second in range(3, 6):
                send_second(cluster.source, second)
            wait_for(lambda: len(written(tmp_path)) >= 5, command, lambda: written(tmp_path))
            command.send_signal(signal.SIGTERM)
            assert command.wait(PATIENCE_S) == 0
        finally:
            command.kill()
            command.communicate()
    found = written(tmp_path)
    sizes = range(1, PER_SECOND + 1)
    vwap = (Decimal(sum(size * size for size in sizes)) / sum(sizes)).quantize(Decimal("1e-9"))
    assert len(found) == 5  # the newest may still get trades
    for second, bar in enumerate(found):
        assert bar["begin_at"].timestamp() == FIRST_SECOND + second  # type: ignore[attr-defined]
        assert (bar["open"], bar["close"], bar["low"], bar["high"]) == (1, PER_SECOND, 1, PER_SECOND)
        assert (bar["trade_count"], bar["volume"], bar["vwap"]) == (PER_SECOND, sum(sizes), vwap)
