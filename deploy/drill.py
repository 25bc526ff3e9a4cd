"""`tandemfeed drill`: rounds of one fault on a running cluster, and a ledger of what a client saw."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from deploy.demo import VAR
from deploy.play import Fault, kill_active, kill_backup, kill_driver, make_recording, play
from deploy.processes import ProcessFailed
from deploy.report import is_clean, print_report, render_html


@dataclass(frozen=True, slots=True)
class Drill:
    """A fault that can be drilled.

    Attributes:
        round_s: seconds of play a round needs, for the fault and for what follows it.
        ahead_batches_max: 0, or how close Spark is kept to the sending, where it must still be at work.
    """

    strike: Any
    text: str
    round_s: float
    ahead_batches_max: int = 0


DRILLS = {
    "kill-active": Drill(kill_active, "SIGKILL of the active adapter; it comes back as backup", 5.0),
    "kill-backup": Drill(kill_backup, "SIGKILL of the backup; it comes back", 5.0),
    "kill-driver": Drill(kill_driver, "SIGKILL of Spark's driver in mid-batch; started again", 12.0, 4),
}
LEAD_S = 3.0


def main(argv: Sequence[str] | None = None) -> int:
    """Play ticks through a cluster on this machine and repeat one fault; exit status as of the demo."""
    faults = "; ".join(f"{name}: {drill.text}" for name, drill in DRILLS.items())
    parser = argparse.ArgumentParser(prog="tandemfeed drill", description=main.__doc__, epilog=faults)
    parser.add_argument("--fault", choices=sorted(DRILLS), default="kill-active", help="default %(default)s")
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="default %(default)s")
    parser.add_argument("--rate", type=float, default=20_000.0, metavar="N", help="messages a second (%(default)g)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of the moments of the faults")
    parser.add_argument("--keep", action="store_true", help="keep the cluster's folder: logs, journals, recordings")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as one JSON object")
    parser.add_argument(
        "--html", type=Path, default=VAR / "drill-report.html", metavar="FILE", help="default %(default)s"
    )
    arguments = parser.parse_args(argv)
    console = Console(stderr=True, highlight=False)
    began = time.monotonic()

    def say(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:6.1f} s[/]  {line}")

    drill = DRILLS[arguments.fault]
    seconds = LEAD_S + drill.round_s * arguments.rounds
    chance = random.Random(arguments.seed)
    moments = [LEAD_S + drill.round_s * (number + chance.uniform(0, 0.3)) for number in range(arguments.rounds)]
    VAR.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="drill-", dir=VAR))
    try:
        say("making the recording")
        recording = make_recording(folder, source=None, message_count=int(arguments.rate * seconds))
        strikes = [Fault(moment / seconds, drill.strike) for moment in moments]
        title = f"tandemfeed drill: {arguments.fault}, {arguments.rounds} rounds"
        report = play(folder, recording, arguments.rate, strikes, say, title, drill.ahead_batches_max)
    except ProcessFailed as failed:
        console.print(f"drill: {failed}", markup=False)
        console.print(f"its folder is kept: {folder}")
        return 2
    figures = report.figures() | {"fault": arguments.fault, "rounds": arguments.rounds, "seed": arguments.seed}
    figures |= ledger(figures)
    print_report(title, figures)
    _print_ledger(figures)
    arguments.html.write_text(render_html(report, figures))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures) + "\n")
    if is_clean(figures) and not arguments.keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        say(f"the cluster's folder is kept: {folder}")
    return 0 if is_clean(figures) else 1


def ledger(figures: dict[str, Any]) -> dict[str, Any]:
    """The stalls of all rounds together, in milliseconds."""
    stalls = sorted(each["stall_ms"] for each in figures["takeovers"])
    if not stalls:
        return {"stall_ms": None}
    p99 = stalls[min(len(stalls) - 1, len(stalls) * 99 // 100)]
    return {"stall_ms": {"p50": statistics.median(stalls), "p99": p99, "max": stalls[-1]}}


def _print_ledger(figures: dict[str, Any]) -> None:
    table = Table(title="rounds")
    for heading in ("round", "what was done", "stall"):
        table.add_column(heading)
    takeovers = figures["takeovers"]
    for number, what in enumerate(figures["faults"]):
        stall = f"{takeovers[number]['stall_ms']:.1f} ms" if len(takeovers) == len(figures["faults"]) else ""
        table.add_row(str(number + 1), what, stall)
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
