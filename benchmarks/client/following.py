"""A cluster with a long history and then a live stream, and what subscribers of it measure in turn."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tandemfeed.deploy.cluster.calibration import calibrate
from tandemfeed.deploy.cluster.cluster import START_TIMEOUT_S, Cluster
from tandemfeed.deploy.cluster.topology import SUBSCRIBER, FeedLayout, Shape
from tandemfeed.deploy.drills.source import JournalLead, make_recording, prepare_journal

SHAPE = Shape(streams_per_channel=2, backups=1)
MESSAGES_PER_PACKET = 20  # in source packets
SPARE_S = 120.0  # of live stream, for the starts of the subscribers
HISTORY_RATE_FACTOR = 2.0  # of the borne rate: while history is made, no subscriber runs


def figures(history_count: int, pairs: int, seconds: float, minutes: float) -> dict[str, object]:
    """Recovery, latency, several subscriptions of one process, and memory.

    Args:
        history_count: messages to recover.
        pairs: how often the latencies of a bare receiver and of subscriptions are measured, in turn.
        seconds: for how long each time.
        minutes: for how long memory is watched.
    """
    rate = calibrate(SHAPE).rate / 2
    live_count = int(rate * ((3 * pairs + 2) * seconds + 60 * minutes + SPARE_S + pairs * 15))
    with tempfile.TemporaryDirectory(prefix="tandemfeed-bench-") as name, Cluster(Path(name), SHAPE) as cluster:
        (feed,) = cluster.feeds
        _start_with_history(cluster, feed, history_count, live_count, 4 * rate)
        subscriber = _Subscribers(cluster, feed)
        recovered = {
            shape: subscriber.measure(f"recover-{shape}", "--messages", str(history_count))
            for shape in ("arrays", "tables", "attributes")
        }
        cluster.start_gateway(feed, rate).await_event("ready", START_TIMEOUT_S)
        cluster.processes[feed.gateway].send_line("start")
        latencies: dict[str, list[dict[str, float]]] = {"bare": [], "client": [], "client-udp": []}
        for _ in range(pairs):
            for kind, measured in latencies.items():
                sockets = "udp" if kind.endswith("-udp") else "zeromq"
                timed = subscriber.measure(f"latency-{kind}", "--seconds", str(seconds), "--datagrams", sockets)
                measured.append(timed)
        many = [subscriber.measure("many", "--seconds", str(seconds), "--subscriptions", str(n)) for n in (1, 10)]
        memory = subscriber.measure("memory", "--seconds", str(60 * minutes))
    medians = {kind: [each["p50_us"] for each in found] for kind, found in latencies.items()}
    return {
        "recovery": {"messages": history_count, **recovered},
        "latency": {
            "messages_per_s": rate,
            "ratio": _ratio(medians["client"], medians["bare"]),
            "ratio_udp": _ratio(medians["client-udp"], medians["bare"]),
            **{f"{kind.replace('-', '_')}_us": round(statistics.median(each), 1) for kind, each in medians.items()},
        },
        "subscriptions_of_one_process": many,
        "memory": memory,
    }


def _ratio(client_us: list[float], bare_us: list[float]) -> float:
    return round(statistics.median(client / bare for client, bare in zip(client_us, bare_us, strict=True)), 3)


def _start_with_history(cluster: Cluster, feed: FeedLayout, history_count: int, live_count: int, rate: float) -> None:
    """Start the cluster; return when its adapters have a history of so many messages, and the gateway has stopped."""
    recording = make_recording(cluster.folder, source=None, message_count=history_count + live_count)
    prepare_journal(recording, feed, cluster.folder / "cluster.toml", cluster.journal(feed), MESSAGES_PER_PACKET)
    cluster.start_admin()
    for name in cluster.shape.adapter_names:
        cluster.start_adapter(feed, name).await_event("ready", START_TIMEOUT_S)
    cluster.watches[feed.feed_id].await_healthy(START_TIMEOUT_S)
    gateway = cluster.start_gateway(feed, rate)
    gateway.await_event("ready", START_TIMEOUT_S)
    gateway.send_line("start")
    with JournalLead(cluster.journal(feed)) as lead:
        while lead.message_count() > live_count:
            cluster.run_for(0.2)
    cluster.stop(feed.gateway)


class _Subscribers:
    """Runs one measurement after another, each in a process."""

    def __init__(self, cluster: Cluster, feed: FeedLayout) -> None:
        settings = (cluster.folder / "cluster.toml").read_text()
        group = settings.split('groups = { 1 = "')[1].split('"')[0]  # of the first adapter, which is active
        self._command = [sys.executable, "-m", "tandemfeed.benchmarks.client.subscriber"]
        self._options = ["--feed", feed.name, "--group", group, *cluster.connection(SUBSCRIBER, feed.client)]

    def measure(self, kind: str, *options: str) -> dict[str, Any]:
        """The figures of one subscriber."""
        sys.stderr.write(f"{kind}\n")
        command = [*self._command, kind.removesuffix("-udp"), *self._options, *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
