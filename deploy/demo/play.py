"""One run of the demo: the Spark job plays a whole recording through a cluster while faults are injected."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tandemfeed.client_lib.recording.record import DeliveryRecord
from tandemfeed.deploy.cluster.cluster import Cluster, start_cluster
from tandemfeed.deploy.cluster.processes import ProcessFailed
from tandemfeed.deploy.demo.content import count_wrong, expected_content
from tandemfeed.deploy.demo.report import Report
from tandemfeed.deploy.drills.source import Recording, packet_size
from tandemfeed.deploy.faults.context import Fault, FaultContext, Say
from tandemfeed.deploy.faults.kills import DRIVER_TIMEOUT_S
from tandemfeed.deploy.hiccups.meter import HiccupMeter
from tandemfeed.journal.compiled.compile_report import ACTIVITY
from tandemfeed.transport.multicast.sockets import Datagrams

AHEAD_S = 5.0  # Spark numbers this much of the play in one or two micro-batches
AHEAD_MAX_S = 30.0  # beyond that, Spark waits for the gateway
END_GRACE_S = 45.0
SOURCE_GRACE_S = 180.0  # Spark runs at low priority, so on a busy machine the source may have to wait for it


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault and when to inject it, as a share of the run."""

    at_share: float
    fault: Fault


@dataclass(frozen=True, slots=True)
class Pace:
    """How to play.

    Attributes:
        rate: messages per second.
        ahead_s: seconds of play that must be numbered before the play begins.
        packets_per_s_max: what the machine bears.
    """

    rate: float
    ahead_s: float = AHEAD_S
    packets_per_s_max: float = math.inf


def play(
    folder: Path,
    recording: Recording,
    pace: Pace,
    faults: Iterable[PlannedFault],
    say: Say,
    title: str,
    *,
    datagrams: Datagrams = "zeromq",
) -> Report:
    """Start a cluster, play the recording, inject the faults, and report.

    Args:
        datagrams: whose sockets multicast.

    Raises:
        ProcessFailed: the cluster did not work. (Lost messages do not raise; they are in the report.)
    """
    record_path = folder / "delivered"
    done: list[str] = []

    def show_compilation(process: str, line: dict[str, Any]) -> None:
        if line.get("activity") == ACTIVITY:
            say(f"{process}: {line['event']}")

    with HiccupMeter(folder) as meter, Cluster(folder, datagrams=datagrams, on_log=show_compilation) as cluster:
        (feed,) = cluster.feeds
        rate, stream_count = pace.rate, cluster.shape.stream_count
        job = cluster.start_job(  # first, because Spark takes the longest to start
            feed,
            recording.folder,
            split=recording.split,
            packet_messages_max=packet_size(rate, stream_count, pace.packets_per_s_max),
            ahead_messages_max=int(max(AHEAD_MAX_S, 2 * pace.ahead_s) * rate),
        )
        start_cluster(cluster, rate, {feed.feed_id: record_path})
        say("the admin server, adapters a and b, the gateway and the client are ready")
        job.await_event("ready", DRIVER_TIMEOUT_S)
        cluster.await_ahead(feed, int(pace.ahead_s * rate))
        say(f"Spark has numbered the first {pace.ahead_s:g} s of the play, or all of it")
        duration_s = recording.message_count / rate
        say(f"playing {recording.message_count:,} messages at {rate:,.0f} per second, for about {duration_s:.0f} s")
        cluster.processes[feed.gateway].send_line("start")
        began = time.monotonic()
        for planned in faults:
            cluster.run_for(max(0.0, began + planned.at_share * duration_s - time.monotonic()))
            at_s = time.monotonic() - began
            what = planned.fault.inject(FaultContext(cluster, feed, say, random.Random(1), rate, folder))
            done.append(f"{at_s:.1f} s: {what}")
            say(done[-1])
        sent = _await_end(cluster, duration_s)
        hiccups = meter.stop()
        say(f"the source sent all {sent['messages']:,} messages")
    record = DeliveryRecord.load(record_path)
    expected = expected_content(recording.folder, recording.split, stream_count)
    wrong = count_wrong(np.load(record_path.with_suffix(".npy")), expected)
    per_stream = {int(stream): int(count) for stream, count in sent["per_stream"].items()}
    recorded = {stream: len(rows) for stream, rows in expected.items()}
    if per_stream != recorded:
        raise ProcessFailed(f"the source sent {per_stream} messages per source stream; the recording has {recorded}")
    return Report(title, per_stream, record, wrong, rate, hiccups, tuple(done))


def _await_end(cluster: Cluster, duration_s: float) -> dict[str, Any]:
    """Wait until the source has sent everything and the client has recorded it; returns the source's "sent" event."""
    (feed,) = cluster.feeds
    client = cluster.processes[feed.client]
    try:
        sent = cluster.processes[feed.gateway].await_event("sent", duration_s + SOURCE_GRACE_S)
        client.await_event("recorded", END_GRACE_S)
        client.wait(END_GRACE_S)
    except ProcessFailed:
        cluster.check()  # if a process crashed, report that instead
        raise
    return sent
