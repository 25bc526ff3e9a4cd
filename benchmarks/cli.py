"""`tandemfeed bench NAME`: run a benchmark, say where, print its figures as one JSON object last."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import describe_machine

BENCHMARKS = {
    "adapter": "one adapter against a bare DGRAM forwarder: rate and latency",
    "conversion": "the kernels alone: tick table, ITCH with order books, a million symbols, second start",
    "journal": "append, read, latency, durable puts and recovery, beside SQLite, LMDB, a file and memcpy",
    "merge": "the merge of the client, alone: processor time a packet",
    "page_store": "the transactional store's page store: SQLite beside LMDB",
    "queue_checkpoint": "the persistent queue's checkpoint interval: puts a second against recovery",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a benchmark."""
    parser = argparse.ArgumentParser(
        prog="tandemfeed bench",
        description=main.__doc__,
        epilog="benchmarks: " + "; ".join(f"{name} ({text})" for name, text in BENCHMARKS.items()),
    )
    parser.add_argument("name", nargs="?", choices=sorted(BENCHMARKS), help="which")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="A/B pairs (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="of each side (default %(default)s)")
    arguments = parser.parse_args(argv)
    if arguments.name is None:
        for name, text in BENCHMARKS.items():
            print(f"{name:<12} {text}")
        return 0
    machine = describe_machine()
    print(f"on {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB", file=sys.stderr)
    figures: dict[str, object] = importlib.import_module(f"benchmarks.{arguments.name}").run(arguments)
    text = json.dumps({"benchmark": arguments.name, **figures, "machine": machine})
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")
    print(text)
    return 0
