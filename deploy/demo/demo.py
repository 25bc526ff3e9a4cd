"""`tandemfeed demo`: a whole cluster that survives two kills of its active adapter, in under two minutes."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import get_args

from rich.console import Console

from tandemfeed.deploy.cluster.calibration import RATE_MAX, calibrate
from tandemfeed.deploy.cluster.processes import ProcessFailed, kill_processes
from tandemfeed.deploy.cluster.topology import Shape
from tandemfeed.deploy.demo.play import AHEAD_S, Pace, PlannedFault, play
from tandemfeed.deploy.demo.report import is_clean, print_report, render_html
from tandemfeed.deploy.drills.source import make_recording
from tandemfeed.deploy.faults.table import FAULTS
from tandemfeed.transport.ending import remove_folder, run_until_signal, undone_by_signal
from tandemfeed.transport.multicast.sockets import Datagrams

SECONDS = 35.0
VAR = Path("var")  # in the current folder


def main(argv: Sequence[str] | None = None) -> int:
    """Play ticks through a cluster on this machine, kill the active adapter twice, and report what a client received.

    Exit status: 0 if no message was lost, repeated, reordered or changed; 1 if one was; 2 if the demo could not run;
    130 or 143 if SIGINT or SIGTERM ended it."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tandemfeed demo", description=main.__doc__)
    parser.add_argument(
        "--input", type=Path, metavar="FILE", help="play a Parquet, CSV or DBN file (default: generated ticks)"
    )
    parser.add_argument(
        "--rate",
        type=float,
        metavar="N",
        help=f"messages per second (default: what this machine bears, up to {RATE_MAX:,.0f}; less if FILE is too small "
        "to last --seconds)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        metavar="S",
        help="seconds of play (default %(default)g)",
    )
    parser.add_argument(
        "--ahead",
        type=float,
        default=AHEAD_S,
        metavar="S",
        help="seconds of play that Spark must have numbered before the play begins (default %(default)g)",
    )
    parser.add_argument(
        "--datagrams",
        choices=get_args(Datagrams),
        default="zeromq",
        help="whose sockets multicast: ZeroMQ's or the kernel's own (default %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as a JSON object")
    parser.add_argument(
        "--html",
        type=Path,
        default=VAR / "demo-report.html",
        metavar="FILE",
        help="write the report, with a plot, to FILE (default %(default)s)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the cluster's folder: logs, journals, recording")
    arguments = parser.parse_args(argv)
    for option in ("rate", "seconds", "ahead"):
        value = getattr(arguments, option)
        if value is not None and value <= 0:
            parser.error(f"--{option} is {value:g}; it must be greater than 0")
    console = Console(stderr=True, highlight=False)
    VAR.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="demo-", dir=VAR)).absolute()
    with ExitStack() as undone:
        for undo in (partial(remove_folder, folder), kill_processes):  # the processes first
            undone.enter_context(undone_by_signal(undo))
        return run_until_signal(
            lambda: _play(arguments, folder, console),
            lambda _: console.print("demo: interrupted; all its processes have ended"),
        )


def _play(arguments: argparse.Namespace, folder: Path, console: Console) -> int:
    began = time.monotonic()

    def say(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:6.1f} s[/]  {line}")

    try:
        rate, packets_per_s_max = arguments.rate, float("inf")
        if rate is None:
            borne = calibrate(Shape())
            rate, packets_per_s_max = borne.rate, borne.packets_per_s
            say(f"{rate:,.0f} messages per second, {borne.reason}")
        say("generating ticks" if arguments.input is None else f"reading {arguments.input}")
        recording = make_recording(folder, source=arguments.input, message_count=int(rate * arguments.seconds))
        if arguments.rate is None:
            rate = min(rate, recording.message_count / arguments.seconds)
        kill = FAULTS["kill-active"]
        report = play(
            folder,
            recording,
            Pace(rate, arguments.ahead, packets_per_s_max),
            [PlannedFault(0.25, kill), PlannedFault(0.65, kill)],
            say,
            "tandemfeed demo: two kills of the active adapter",
            datagrams=arguments.datagrams,
        )
    except ProcessFailed as failed:
        console.print(f"[red]demo:[/] {failed}", markup=False)
        console.print(f"logs and journals are in {folder}")
        return 2
    figures = report.figures()
    print_report(report.title, figures)
    arguments.html.parent.mkdir(parents=True, exist_ok=True)
    arguments.html.write_text(render_html(report, figures))
    say(f"wrote the report to {arguments.html}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures) + "\n")
    if arguments.keep or not is_clean(figures):
        say(f"logs and journals are in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if is_clean(figures) else 1
