"""The ledger in readable form: printed tables, and an HTML page with the time between deliveries around each fault."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import rich.box
from rich.console import Console
from rich.table import Table

from tandemfeed.deploy.demo.report import CLEAN_TEXT, FAILED_TEXT, STYLE, WRONG_TEXT, GapPlot, colored, plot_panels
from tandemfeed.deploy.drills.ledger import MS, delivery_times, is_clean
from tandemfeed.deploy.drills.rounds import DrillResult

SHOWN_ROUNDS_MAX = 8
BEFORE_MS, AFTER_MS = 500.0, 1_500.0
HEADINGS = (
    "fault",
    "rounds",
    "lost",
    "dup.",
    "order",
    "stall p50",
    "stall p99",
    "stall max",
    "stall goal",
    "machine max",
    "source max",
    "transmit max",
    "normal p50",
    "normal max",
    "recovery max",
    "recovery machine",
)
# With fewer than a hundred rounds p99 is the maximum. The page shows all.
PRINTED = frozenset(HEADINGS[:6]) | {"stall max", "machine max", "source max"}


def print_ledger(rows: Sequence[Mapping[str, Any]], refused: Sequence[str], console: Console | None = None) -> None:
    """Print one row per fault."""
    console = console or Console()
    title = "ledger: what a client received; times in ms"
    table = Table(title=title, title_justify="left", box=rich.box.SIMPLE_HEAD)
    table.padding = 0
    for heading in HEADINGS:
        if heading in PRINTED:
            lines = heading.replace(" ", "\n")
            table.add_column(lines, justify="left" if heading == "fault" else "right", no_wrap=True)
    for row in rows:
        cells = [row["fault"], str(row["rounds"]), *(colored(row[name]) for name in LOSSES), *_stalls(row)]
        shown = zip(HEADINGS, cells, strict=True)
        table.add_row(*(cell for heading, cell in shown if heading in PRINTED))
    console.print(table)
    wrong = sum(row["content_wrong"] for row in rows)
    if wrong:
        console.print(f"{colored(wrong)} messages {WRONG_TEXT}")
    for each in refused:
        console.print(f"did not run: {each}", markup=False)
    if rows:
        clean = all(is_clean(row) for row in rows)
        console.print(CLEAN_TEXT if clean else FAILED_TEXT)


def print_rounds(result: DrillResult, console: Console) -> None:
    """Print one row per round: the longest pauses during the fault, and in the recovery, beside the machine's."""
    title = f"{result.row['fault']}: longest pauses, in ms"
    table = Table(title=title, title_justify="left", box=rich.box.SIMPLE_HEAD, padding=0)
    for heading in ("round", "lost", "dup.", "\norder", "\nstall", "\ntransmit", "\nsource", "\nmachine"):
        table.add_column(heading, justify="right")
    for part in ("stall", "machine"):
        table.add_column(f"recovery\n{part}", justify="right")
    for each in result.judged:
        stalls = [each.stall_ms, each.transmit_stall_ms, each.source_stall_ms, each.hiccup_ms]
        stalls += [each.return_stall_ms, each.return_hiccup_ms]
        counts = (each.lost, each.duplicated, each.out_of_order)
        table.add_row(str(each.number), *map(colored, counts), *(f"{stall:.1f}" for stall in stalls))
    console.print(table)


def render_ledger(
    rows: Sequence[Mapping[str, Any]],
    results: Sequence[DrillResult],
    refused: Sequence[str],
    settings: Mapping[str, Any],
) -> str:
    """The ledger as a self-contained HTML page."""
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in HEADINGS)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in _cells(row)) + "</tr>" for row in rows
    )
    sections = "".join(_section(result) for result in results)
    missing = "".join(f"<li>did not run: {html.escape(each)}</li>" for each in refused)
    clean = all(is_clean(row) for row in rows)
    verdict = CLEAN_TEXT if clean else FAILED_TEXT
    shape = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>tandemfeed drill</title>
<style>{STYLE}
.verdict {{ border-color: {"#2a8" if clean else "#c33"} }}
</style></head><body>
<h1>tandemfeed drill</h1>
<p class="verdict">{verdict}</p>
<p>{html.escape(shape)}. Times in ms.</p>
<table><tr>{head}</tr>{body}</table>
<ul>{missing}</ul>
{sections}
</body></html>
"""


LOSSES = ("lost", "duplicated", "out_of_order")


def _stalls(row: Mapping[str, Any]) -> list[str]:
    def part(name: str, which: str) -> str:
        if not row[name]:
            return ""
        stall_ms = row[name][which]
        return f"{stall_ms:.1f}" if stall_ms < 1_000 else f"{stall_ms:.0f}"

    aim = row["stall_aim_ms"]
    return [
        part("stall_ms", "p50"),
        part("stall_ms", "p99"),
        part("stall_ms", "max"),
        f"{aim:g}" if aim is not None else "normal",
        part("hiccup_ms", "max"),
        part("source_stall_ms", "max"),
        part("transmit_stall_ms", "max"),
        part("undisturbed_stall_ms", "p50"),
        part("undisturbed_stall_ms", "max"),
        part("return_stall_ms", "max"),
        part("return_hiccup_ms", "max"),
    ]


def _cells(row: Mapping[str, Any]) -> list[object]:
    return [row["fault"], row["rounds"], *(row[name] for name in LOSSES), *_stalls(row)]


def _section(result: DrillResult) -> str:
    items = "".join(
        f"<li>{html.escape(each.what)}: {each.stall_ms:.1f} ms (machine {each.hiccup_ms:.1f} ms)</li>"
        for each in result.judged
    )
    return f"<h2>{html.escape(str(result.row['fault']))}</h2><ol>{items}</ol>{plot_panels(_panels(result))}"


def _panels(result: DrillResult) -> list[GapPlot]:
    """One plot per round, of the channel with the fewest deliveries, where a stall shows best."""
    panels = []
    for each in result.rounds[:SHOWN_ROUNDS_MAX]:
        channels = result.deliveries[each.feed_id].record.channels.values()
        if not channels:
            continue
        times = min((delivery_times(channel) for channel in channels), key=len)
        first = np.searchsorted(times, each.fault_at_ns - int(BEFORE_MS * MS))
        end = np.searchsorted(times, each.fault_at_ns + int(AFTER_MS * MS))
        around = times[first:end]
        if len(around) > 1:
            at_ms, gap_ms = (around[1:] - each.fault_at_ns) / MS, np.diff(around) / MS
            machine = result.hiccups.around(each.fault_at_ns, AFTER_MS)
            limits_ms = (-BEFORE_MS, AFTER_MS)
            panels.append(GapPlot(f"round {each.number}: fault at 0 ms", at_ms, gap_ms, machine, limits_ms))
    return panels
