"""The client library: how fast applications read, recover a history, and receive live messages; and what others do.

`reading` decodes in memory. `following` starts a cluster, and measures subscribers in processes of their own
(`subscriber`): recovery of a history, latency beside a bare DGRAM receiver in turn, and memory over time at half of the
rate that this machine bears.
"""

from __future__ import annotations

import argparse


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure everything."""
    from tandemfeed.benchmarks.client import following, reading  # not for each subscriber

    return {
        "reading": reading.figures(),
        **following.figures(arguments.history, arguments.pairs, arguments.seconds, arguments.minutes),
    }
