"""`tandemfeed bench NAME`: describe the machine, run a benchmark, and print its figures as one JSON object."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tandemfeed.benchmarks.machine import describe_machine
from tandemfeed.deploy.hiccups.meter import HiccupMeter

BENCHMARKS = {
    "adapter": "rate and latency of one adapter and of a bare forwarder",
    "admin": "subscriptions, logins, revocations, a million patterns",
    "captures": "files to Parquet and SBE, beside independent decoders",
    "client": "reading, recovery, latency, memory; databento, msgspec",
    "client.idle": "processor time of a client's start, and while it is idle",
    "conversion": "compiled kernels: tick table, ITCH books, many symbols",
    "journal": "append, read and recovery; SQLite, LMDB, a plain file",
    "merge": "the client's merge alone: processor time per packet",
    "page_store": "SQLite and LMDB as the page store of the transactional store",
    "queue_checkpoint": "checkpoint intervals of the persistent queue",
    "spark": "the source job on one and two cores; Spark's own scan",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a benchmark and print its figures as JSON."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="tandemfeed bench",
        description=main.__doc__,
        epilog="benchmarks: " + "; ".join(f"{name} ({text})" for name, text in BENCHMARKS.items()),
    )
    parser.add_argument(
        "name", nargs="?", choices=sorted(BENCHMARKS), metavar="NAME", help="the benchmark to run; without it, list all"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    parser.add_argument(
        "--pairs",
        type=int,
        default=5,
        metavar="N",
        help="how often to measure both sides in turn (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds", type=float, default=3.0, metavar="S", help="how long to measure each side (default: %(default)s)"
    )
    parser.add_argument(
        "--history", type=int, default=1_000_000, metavar="N", help="client: messages to recover (default: %(default)s)"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=0.5,
        metavar="M",
        help="client: time to watch memory (default: %(default)s)",
    )
    parser.add_argument(
        "--baseline", type=Path, metavar="DIR", help="client.idle: measure the client of this checkout too, in turn"
    )
    arguments = parser.parse_args(argv)
    if arguments.name is None:
        for name, text in BENCHMARKS.items():
            print(f"{name:<17} {text}")
        return 0
    machine = describe_machine()
    print(f"running on {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB", file=sys.stderr)
    benchmark = importlib.import_module(f"tandemfeed.benchmarks.{arguments.name}")
    with tempfile.TemporaryDirectory(prefix="tandemfeed-hiccups-") as folder, HiccupMeter(Path(folder)) as meter:
        figures: dict[str, object] = benchmark.run(arguments)
        machine["hiccups_ms"] = meter.stop().figures()
    text = json.dumps({"benchmark": arguments.name, **figures, "machine": machine})
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")
    print(text)
    return 0
