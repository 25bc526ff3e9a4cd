"""What a client takes that receives nothing but heartbeats, and what its start takes, in processor time: beside the
client of another checkout in turn, if one is given. The cluster is this checkout's for both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tandemfeed.deploy.cluster.cluster import START_TIMEOUT_S, Cluster
from tandemfeed.deploy.cluster.topology import SUBSCRIBER, FeedLayout, Shape
from tandemfeed.deploy.drills.source import make_recording, prepare_journal

SHAPE = Shape(streams_per_channel=2, backups=1)
MESSAGE_COUNT = 1_000  # which the source does not send
RATE = 100.0
PROGRAM = Path(__file__).with_name("idle_subscriber.py")
CHECKOUT = Path(__file__).resolve().parents[2]


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure this checkout, and the one of `--baseline`."""
    return figures(arguments.pairs, arguments.seconds, arguments.baseline)


def figures(rounds: int, seconds: float, baseline: Path | None) -> dict[str, object]:
    """Medians for each checkout.

    Args:
        rounds: how often each checkout is measured, in turn.
        seconds: for how long a client idles each time.
        baseline: another checkout.
    """
    checkouts = {"here": CHECKOUT} | ({} if baseline is None else {"baseline": baseline.resolve()})
    found: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    with tempfile.TemporaryDirectory(prefix="tandemfeed-bench-") as name, Cluster(Path(name), SHAPE) as cluster:
        (feed,) = cluster.feeds
        _start(cluster, feed)
        with tempfile.TemporaryDirectory(prefix="tandemfeed-bytecode-") as bytecode:
            for checkout in checkouts.values():  # compiles its modules, as an installation does
                _measure(cluster, feed, checkout, 0.0, bytecode)
            for _ in range(rounds):
                for which, checkout in checkouts.items():
                    measured = _measure(cluster, feed, checkout, seconds, bytecode)
                    found[which].append(measured | {"load": os.getloadavg()[0]})
    return {
        which: {name: round(statistics.median(each[name] for each in measured), 4) for name in measured[0]}
        for which, measured in found.items()
    }


def _start(cluster: Cluster, feed: FeedLayout) -> None:
    """A healthy cluster whose source has begun to send heartbeats."""
    recording = make_recording(cluster.folder, source=None, message_count=MESSAGE_COUNT)
    prepare_journal(recording, feed, cluster.folder / "cluster.toml", cluster.journal(feed), MESSAGE_COUNT)
    cluster.start_admin()
    for name in cluster.shape.adapter_names:
        cluster.start_adapter(feed, name).await_event("ready", START_TIMEOUT_S)
    cluster.watches[feed.feed_id].await_healthy(START_TIMEOUT_S)
    cluster.start_gateway(feed, RATE).await_event("ready", START_TIMEOUT_S)


def _measure(cluster: Cluster, feed: FeedLayout, checkout: Path, seconds: float, bytecode: str) -> dict[str, float]:
    """The figures of one client."""
    options = cluster.connection(SUBSCRIBER, feed.client)
    settings = {
        f"TANDEMFEED_{name.removeprefix('--').replace('-', '_').upper()}": value
        for name, value in zip(options[::2], options[1::2], strict=True)
    }
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= settings | {"PYTHONPATH": str(checkout), "PYTHONPYCACHEPREFIX": bytecode}
    command = [sys.executable, str(PROGRAM), "--feed", feed.name, "--verify", "alarm", "--seconds", str(seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout)
    return found
