"""`tandemfeed drill`: injects faults into a running cluster, round after round, and reports what a client received."""

from __future__ import annotations

import argparse
import inspect
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from rich.console import Console

from tandemfeed.client_lib.stream.sockets.transport_choice import Transport
from tandemfeed.deploy.cluster.calibration import RATE_MAX, calibrate
from tandemfeed.deploy.cluster.processes import ProcessFailed, kill_processes
from tandemfeed.deploy.cluster.topology import Shape
from tandemfeed.deploy.demo.demo import VAR
from tandemfeed.deploy.drills.ledger import is_clean
from tandemfeed.deploy.drills.ledger_report import print_ledger, print_rounds, render_ledger
from tandemfeed.deploy.drills.rounds import DrillPlan, DrillResult, run_drill
from tandemfeed.deploy.drills.witness import RECORD, SHAPES
from tandemfeed.deploy.faults.context import FaultUnavailable, Say
from tandemfeed.deploy.faults.table import FAULTS
from tandemfeed.transport.ending import remove_folder, run_until_signal, undone_by_signal
from tandemfeed.transport.multicast.sockets import Datagrams

ALL = "all"
ROUNDS_DEFAULT = 10
FAILED = ": failed; the error is above"


def main(argv: Sequence[str] | None = None) -> int:
    """Play ticks through a cluster on this machine, inject a fault in every round,
    and report what a client received.

    Exit status: 0 if no message was lost, repeated, reordered or changed; 1 if one
    was; 2 if a drill could not run; 130 or 143 if SIGINT or SIGTERM ended it."""
    arguments = _parser().parse_args(argv)
    try:
        plans = _plans(arguments)
    except ValueError as wrong:
        _parser().error(str(wrong))
    console = Console(stderr=True, highlight=False)
    VAR.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="drill-", dir=VAR)).absolute()
    with ExitStack() as undone:
        for undo in (partial(remove_folder, folder), kill_processes):  # the processes first
            undone.enter_context(undone_by_signal(undo))
        return run_until_signal(
            lambda: _drill(arguments, plans, folder, console),
            lambda _: console.print("drill: interrupted; all its processes have ended"),
        )


def _drill(arguments: argparse.Namespace, plans: list[DrillPlan], folder: Path, console: Console) -> int:
    began = time.monotonic()

    def say(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:6.1f} s[/]  {line}")

    rows: list[dict[str, Any]] = []
    results: list[DrillResult] = []
    refused: list[str] = []
    try:
        if arguments.rate is None:
            plans = _at_borne_rate(plans, say)
        for plan in plans:
            files = folder / (plan.name if plan.reading == RECORD else f"{plan.name}-{plan.reading}")
            try:
                result = run_drill(plan, files, say)
            except FaultUnavailable as unavailable:
                shutil.rmtree(files, ignore_errors=True)
                refused.append(f"{plan.name}: {unavailable}")
                say(f"skipped {refused[-1]}")
                continue
            except ProcessFailed as failed:
                refused.append(f"{plan.name}{FAILED}")
                console.print(f"drill: {plan.name}: {failed}", markup=False)
                continue
            rows.append(result.row)
            results.append(result)
            print_rounds(result, console)
            if is_clean(result.row) and not arguments.keep:
                shutil.rmtree(files, ignore_errors=True)
    except ProcessFailed as failed:
        shutil.rmtree(folder, ignore_errors=True)
        console.print(f"drill: {failed}", markup=False)
        return 2
    print_ledger(rows, refused)
    _write(arguments, plans[0].rate, rows, results, refused)
    if any(folder.iterdir()):
        say(f"logs and journals are in {folder}")
    else:
        folder.rmdir()
    if not all(is_clean(row) for row in rows):
        return 1
    return 2 if refused and (arguments.fault != ALL or len(rows) == 0 or _has_failed(refused)) else 0


def _has_failed(refused: Sequence[str]) -> bool:
    return any(each.endswith(FAILED) for each in refused)


def _plans(arguments: argparse.Namespace) -> list[DrillPlan]:
    shape = Shape(
        arguments.feeds,
        arguments.channels,
        arguments.streams_per_channel,
        arguments.backups,
        arguments.lease_ms,
    )
    for option in ("rounds", "subscribers"):
        if (value := getattr(arguments, option)) < 1:
            raise ValueError(f"--{option} is {value}; it must be at least 1")
    if arguments.observe < 0:
        raise ValueError(f"--observe is {arguments.observe}; it must be 0 or more")
    rate = RATE_MAX if arguments.rate is None else arguments.rate
    if rate <= 0:
        raise ValueError(f"--rate is {arguments.rate:g}; it must be greater than 0")
    names = list(FAULTS) if arguments.fault == ALL else [arguments.fault]
    plan = DrillPlan(
        "",
        FAULTS[names[0]],
        arguments.rounds,
        rate,
        arguments.seed,
        shape,
        transport=arguments.transport,
        datagrams=arguments.datagrams,
        subscribers=arguments.subscribers,
        observe=arguments.observe,
    )
    return [
        replace(plan, name=name, fault=FAULTS[name], reading=reading)
        for name in names
        for reading in (SHAPES if arguments.shape == ALL else [arguments.shape])
    ]


def _at_borne_rate(plans: Sequence[DrillPlan], say: Say) -> list[DrillPlan]:
    """The same drills, at the rate that this machine bears.

    Raises:
        ProcessFailed: the calibration failed.
    """
    borne = calibrate(plans[0].shape)
    say(f"{borne.rate:,.0f} messages per second, {borne.reason}")
    return [replace(plan, rate=borne.rate, packets_per_s_max=borne.packets_per_s) for plan in plans]


def _parser() -> argparse.ArgumentParser:
    faults = "\n".join(f"  {name:<24} {fault.text}" for name, fault in FAULTS.items())
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="tandemfeed drill",
        description=inspect.cleandoc(main.__doc__ or ""),
        epilog=f"faults:\n{faults}\n  {ALL:<24} each fault in turn",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--fault",
        choices=[*FAULTS, ALL],
        default="kill-active",
        metavar="NAME",
        help="fault to inject, from the list below (default %(default)s)",
    )
    for option, default, text in (
        ("--rounds", ROUNDS_DEFAULT, "number of rounds; each injects the fault once"),
        ("--backups", 1, "backup adapters per feed"),
        ("--channels", 1, "channels per feed"),
        ("--streams-per-channel", 2, "source streams per channel"),
        ("--feeds", 1, "number of feeds; rounds take them in turn"),
        ("--subscribers", 1, "clients of each feed; all check what they receive"),
        (
            "--observe",
            0,
            "messages that a reader beside each feed catches up again and again, paused at times; 0: none",
        ),
        ("--seed", 1, "seed of the times of the faults and of the choice of the backup"),
    ):
        parser.add_argument(option, type=int, default=default, metavar="N", help=f"{text} (default %(default)s)")
    parser.add_argument(
        "--rate",
        type=float,
        metavar="N",
        help=f"messages per second, per feed (default: what this machine bears, up to {RATE_MAX:,.0f})",
    )
    parser.add_argument(
        "--lease-ms", type=int, default=300, metavar="MS", help="term of a lease in milliseconds (default %(default)s)"
    )
    parser.add_argument(
        "--transport",
        choices=get_args(Transport),
        default="multicast",
        help="how the client receives the adapters (default %(default)s)",
    )
    parser.add_argument(
        "--datagrams",
        choices=get_args(Datagrams),
        default="zeromq",
        help="whose sockets multicast: ZeroMQ's or the kernel's own (default %(default)s)",
    )
    parser.add_argument(
        "--shape",
        choices=[*SHAPES, ALL],
        default=RECORD,
        metavar="NAME",
        help=f"how the client's application reads and checks: {', '.join(SHAPES)}, or all (default %(default)s)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the clusters' folders: logs, journals, recordings")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the ledger to FILE as a JSON array")
    parser.add_argument(
        "--html",
        type=Path,
        default=VAR / "drill-report.html",
        metavar="FILE",
        help="write the ledger, with plots, to FILE (default %(default)s)",
    )
    return parser


def _write(
    arguments: argparse.Namespace,
    rate: float,
    rows: list[dict[str, Any]],
    results: list[DrillResult],
    refused: list[str],
) -> None:
    settings = {
        "rate": rate,
        "backups": arguments.backups,
        "channels": arguments.channels,
        "streams_per_channel": arguments.streams_per_channel,
        "feeds": arguments.feeds,
        "lease_ms": arguments.lease_ms,
        "transport": arguments.transport,
        "datagrams": arguments.datagrams,
        "shape": arguments.shape,
        "subscribers": arguments.subscribers,
        "observe": arguments.observe,
        "seed": arguments.seed,
    }
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([row | {"settings": settings} for row in rows]) + "\n")
    arguments.html.parent.mkdir(parents=True, exist_ok=True)
    arguments.html.write_text(render_ledger(rows, results, refused, settings))


if __name__ == "__main__":
    raise SystemExit(main())
