"""One run: a recording played through a cluster while faults happen to it. The demo and the drills are both this."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from client_lib.record import DeliveryRecord
from deploy.cluster import Cluster, running_cluster
from deploy.content import count_wrong, expected_content
from deploy.processes import ProcessFailed
from deploy.report import Report

STREAM_COUNT = 2
PACKING_WINDOW_S = 0.002  # a packet waits at most about this long to fill: what low rates would otherwise cost
PACKET_MESSAGES_MAX = 36
RESYNC_TIMEOUT_S = 30.0
END_GRACE_S = 45.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Recording:
    """What is played. Attributes: split: how its rows become two source streams."""

    folder: Path
    message_count: int
    split: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Something done to the cluster at a share of the play's length; says what it did."""

    at_share: float
    strike: Callable[[Cluster, Say], str]


def make_recording(folder: Path, *, source: Path | None, message_count: int, symbols: int = 3_000) -> Recording:
    """Generate ticks, or ingest a file.

    Raises:
        ProcessFailed: with the command's own words.
    """
    out = folder / "recording"
    if source is None:
        arguments = ["generate", "--messages", str(message_count), "--symbols", str(symbols)]
    else:
        arguments = ["ingest", str(source), "--rows-per-file", "500"]
    command = [sys.executable, "-m", "deploy.command", "ticks", *arguments, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ProcessFailed(done.stderr.strip() or f"ticks ended with status {done.returncode}")
    manifest = json.loads(done.stdout.splitlines()[-1])
    is_single = manifest["symbol_count"] == 1
    return Recording(out, int(manifest["record_count"]), "index" if is_single else "letter")


def play(
    folder: Path,
    recording: Recording,
    rate: float,
    faults: Iterable[Fault],
    say: Say,
    title: str,
    ahead_batches_max: int = 0,
) -> Report:
    """Start a cluster, play, strike, and judge.

    Args:
        rate: messages a second.
        ahead_batches_max: how far Spark may be ahead of the sending; 0: as far as it gets.

    Raises:
        ProcessFailed: something did not work as it must (a lost message is not that: the report says it).
    """
    record_path = folder / "delivered"
    done: list[str] = []
    with running_cluster(folder, rate, record_path) as cluster:
        say("admin server, adapters a and b, gateway and client are ready; starting Spark")
        packet_messages_max = max(1, min(PACKET_MESSAGES_MAX, round(rate * PACKING_WINDOW_S / STREAM_COUNT)))
        job = cluster.start_job(
            recording.folder,
            split=recording.split,
            packet_messages_max=packet_messages_max,
            ahead_batches_max=ahead_batches_max,
        )
        job.await_event("ready", 120)
        duration_s = recording.message_count / rate
        say(f"playing {recording.message_count:,} messages at {rate:,.0f} a second: about {duration_s:.0f} s")
        cluster.processes["source-gateway"].say("start")
        began = time.monotonic()
        pause = threading.Event()
        for fault in faults:
            pause.wait(max(0.0, began + fault.at_share * duration_s - time.monotonic()))
            at_s = time.monotonic() - began
            cluster.check()
            what = fault.strike(cluster, say)
            done.append(f"{at_s:.1f} s: {what}")
            say(done[-1])
        sent = _await_end(cluster, duration_s)
        say(f"the source has sent {sent['messages']:,} messages")
    record = DeliveryRecord.load(record_path)
    expected = expected_content(recording.folder, recording.split, STREAM_COUNT)
    wrong = count_wrong(np.load(record_path.with_suffix(".npy")), expected)
    per_stream = {int(stream): int(count) for stream, count in sent["per_stream"].items()}
    recorded = {stream: len(rows) for stream, rows in expected.items()}
    if per_stream != recorded:
        raise ProcessFailed(f"the source sent {per_stream} messages per source stream, the recording has {recorded}")
    return Report(title, per_stream, record, wrong, rate, tuple(done))


def _await_end(cluster: Cluster, duration_s: float) -> dict[str, Any]:
    """Until the source has sent everything and the client has recorded it; what the source says it sent."""
    client = cluster.processes["client"]
    try:
        sent = cluster.processes["source-gateway"].await_event("sent", duration_s + END_GRACE_S)
        client.await_event("recorded", END_GRACE_S)
        client.wait(END_GRACE_S)
    except ProcessFailed:
        cluster.check()  # whoever crashed is the better story
        raise
    return sent


def kill_active(cluster: Cluster, say: Say) -> str:
    """SIGKILL the active, wait for the backup to take over, start the killed one again, wait until it is back."""
    watch = cluster.watch
    assert watch is not None
    watch.wait_for(lambda: sorted(watch.states.values()) == ["active", "synchronized"], RESYNC_TIMEOUT_S, "a pair")
    victim, epoch = watch.active, watch.epoch
    cluster.kill(f"adapter-{victim}")
    say(f"killed the active, adapter {victim}")
    watch.wait_for(lambda: watch.active not in ("", victim) and watch.epoch > epoch, RESYNC_TIMEOUT_S, "a takeover")
    heir = watch.active
    cluster.start_adapter(victim)
    watch.wait_for(lambda: watch.states.get(victim) == "synchronized", RESYNC_TIMEOUT_S, f"adapter {victim} back")
    return f"killed adapter {victim} (SIGKILL); adapter {heir} took over; {victim} is back as backup"


def kill_backup(cluster: Cluster, say: Say) -> str:
    """SIGKILL the backup and start it again."""
    watch = cluster.watch
    assert watch is not None
    watch.wait_for(lambda: "synchronized" in watch.states.values(), RESYNC_TIMEOUT_S, "a backup")
    victim = next(name for name, state in watch.states.items() if state == "synchronized")
    cluster.kill(f"adapter-{victim}")
    watch.wait_for(lambda: watch.states.get(victim) == "away", RESYNC_TIMEOUT_S, "its absence")
    cluster.start_adapter(victim)
    watch.wait_for(lambda: watch.states.get(victim) == "synchronized", RESYNC_TIMEOUT_S, f"adapter {victim} back")
    return f"killed the backup, adapter {victim} (SIGKILL); it is back"


def kill_driver(cluster: Cluster, say: Say) -> str:
    """SIGKILL Spark's driver, wherever in a batch it is, and start it again from its checkpoint."""
    if not cluster.processes["source-job"].is_running:
        return "Spark's driver had finished already: nothing to kill"
    cluster.kill("source-job")
    say("killed Spark's driver; starting it again")
    cluster.restart_job().await_event("ready", 120)
    return "killed Spark's driver (SIGKILL) and started it again from its checkpoint"
