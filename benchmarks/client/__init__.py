"""The client library: how fast applications read, recover a history, and receive live messages; and what others do.

`reading` decodes in memory. `following` starts a cluster, and measures subscribers in processes of their own
(`subscriber`): recovery of a history, latency beside a bare DGRAM receiver in turn, and memory over time at half of the
rate that this machine bears. `idle` can be run alone, and beside the client of another checkout:
`./run bench client.idle --baseline DIR`.
"""

from __future__ import annotations

import argparse


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure everything."""
    from tandemfeed.benchmarks.client import following, idle, reading  # not for each subscriber

    return {
        "reading": reading.figures(),
        "idle": idle.run(arguments),
        **following.figures(arguments.history, arguments.pairs, arguments.seconds, arguments.minutes),
    }
