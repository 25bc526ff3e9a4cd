"""The demo's run: a recording played to its end by the Spark job, through a cluster, while faults happen to it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from client_lib.record import DeliveryRecord
from deploy.cluster import Cluster, start_cluster
from deploy.content import count_wrong, expected_content
from deploy.faults.ends import DRIVER_TIMEOUT_S
from deploy.faults.scene import Fault, Say, Scene
from deploy.processes import ProcessFailed
from deploy.report import Report
from deploy.source import Recording, packet_size

END_GRACE_S = 45.0
SOURCE_GRACE_S = 180.0  # Spark's numbering yields to what is in the path of a tick: on a busy machine the source waits


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault at a share of the play's length."""

    at_share: float
    fault: Fault


def play(folder: Path, recording: Recording, rate: float, strikes: Iterable[Strike], say: Say, title: str) -> Report:
    """Start a cluster, play, strike, and judge.

    Args:
        rate: messages a second.

    Raises:
        ProcessFailed: something did not work as it must (a lost message is not that: the report says it).
    """
    record_path = folder / "delivered"
    done: list[str] = []
    with Cluster(folder) as cluster:
        (feed,) = cluster.feeds
        start_cluster(cluster, rate, {feed.feed_id: record_path})
        say("admin server, adapters a and b, gateway and client are ready; starting Spark")
        stream_count = cluster.shape.stream_count
        messages_max = packet_size(rate, stream_count)
        job = cluster.start_job(feed, recording.folder, split=recording.split, packet_messages_max=messages_max)
        job.await_event("ready", DRIVER_TIMEOUT_S)
        duration_s = recording.message_count / rate
        say(f"playing {recording.message_count:,} messages at {rate:,.0f} a second: about {duration_s:.0f} s")
        cluster.processes[feed.gateway].say("start")
        began = time.monotonic()
        for strike in strikes:
            cluster.hold(max(0.0, began + strike.at_share * duration_s - time.monotonic()))
            at_s = time.monotonic() - began
            what = strike.fault.strike(Scene(cluster, feed, say, random.Random(1), rate, folder))
            done.append(f"{at_s:.1f} s: {what}")
            say(done[-1])
        sent = _await_end(cluster, duration_s)
        say(f"the source has sent {sent['messages']:,} messages")
    record = DeliveryRecord.load(record_path)
    expected = expected_content(recording.folder, recording.split, stream_count)
    wrong = count_wrong(np.load(record_path.with_suffix(".npy")), expected)
    per_stream = {int(stream): int(count) for stream, count in sent["per_stream"].items()}
    recorded = {stream: len(rows) for stream, rows in expected.items()}
    if per_stream != recorded:
        raise ProcessFailed(f"the source sent {per_stream} messages per source stream, the recording has {recorded}")
    return Report(title, per_stream, record, wrong, rate, tuple(done))


def _await_end(cluster: Cluster, duration_s: float) -> dict[str, Any]:
    """Until the source has sent everything and the client has recorded it; what the source says it sent."""
    (feed,) = cluster.feeds
    client = cluster.processes[feed.client]
    try:
        sent = cluster.processes[feed.gateway].await_event("sent", duration_s + SOURCE_GRACE_S)
        client.await_event("recorded", END_GRACE_S)
        client.wait(END_GRACE_S)
    except ProcessFailed:
        cluster.check()  # whoever crashed is the better story
        raise
    return sent
