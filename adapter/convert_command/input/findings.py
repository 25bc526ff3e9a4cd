"""Reports what was wrong with the input of `convert file`, and decides its exit status."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tandemfeed.adapter.convert_command.input.inputs import Findings, StreamReport

SHOWN_MAX = 5
MISSING_FILE, STREAMS_FILE = "missing.csv", "streams.csv"
COMPLETE, REFUSED, INCOMPLETE = 0, 2, 3  # exit statuses


def report_findings(findings: Findings, arguments: argparse.Namespace, refused: int, console: Console) -> int:
    """Print what was refused or is missing, and write what is missing to a table; returns the exit status.

    Args:
        refused: the number of messages that were refused.
    """
    for text in _lines(findings):
        console.print(f"  {text}", markup=False, highlight=False)
    missing = [(stream, first, end - 1, end - first) for stream, first, end in findings.missing]
    _write(arguments.to / MISSING_FILE, ("stream", "first", "last", "count"), missing)
    _write(arguments.to / STREAMS_FILE, StreamReport._fields, findings.streams)
    if findings.all_were_refused:
        count = findings.datagram_count
        text = f"none of the {count:,} datagrams follows the format that the reader expects"
        advice = "`tandemfeed convert sniff` names a reader that fits"
        files = ", ".join(str(path) for path in arguments.inputs)
        console.print(f"convert: {files}: {text}; {advice}", markup=False, highlight=False)
        return REFUSED
    if arguments.strict and (findings.is_incomplete or refused):
        console.print("convert: stopped, because of --strict; the output is incomplete")
        return REFUSED
    return INCOMPLETE if findings.is_incomplete or refused else COMPLETE


def _lines(findings: Findings) -> list[str]:
    lines = [f"{findings.duplicate_count:,} duplicates dropped"] if findings.duplicate_count else []
    lines += [f"stream {stream}: its numbers started again" for stream in findings.restarts[:SHOWN_MAX]]
    lines += _conflicts(findings)
    if findings.late_count:
        lines.append(f"{findings.late_count:,} came late: they follow later ones in the output")
    if findings.unnumbered_count:
        count = findings.unnumbered_count
        lines.append(f"{count:,} messages with sequence number 0: no gap or duplicate can be found among them")
    if findings.passed_over:
        lines.append(f"{findings.passed_over:,} frames without UDP passed over")
    if findings.cut_count:
        why = "the capture's snap length cut them off, or fragments are missing"
        lines.append(f"{findings.cut_count:,} UDP datagrams are not whole in the capture, and not converted: {why}")
    lines += [f"{count:,} datagrams refused: {reason}" for reason, count in findings.refused.most_common(SHOWN_MAX)]
    lines += findings.samples
    lines += [f"{text}; what precedes this is converted" for text in findings.damage]
    for stream, first, end in findings.missing[:SHOWN_MAX]:
        lines.append(f"stream {stream}: {end - first:,} missing, {first} to {end - 1}")
    if len(findings.missing) > SHOWN_MAX:
        lines.append(f"… and {len(findings.missing) - SHOWN_MAX:,} more; {MISSING_FILE} lists all")
    return lines


def _conflicts(findings: Findings) -> list[str]:
    """What was dropped although it is not, or may not be, a copy of what was delivered."""
    lines = []
    for stream, first, end in findings.conflicts[:SHOWN_MAX]:
        numbers = f"{first}" if end == first + 1 else f"{first} to {end - 1}"
        lines.append(f"stream {stream}: {numbers} came again with other content, which is not converted")
    if len(findings.conflicts) > SHOWN_MAX:
        count = len(findings.conflicts) - SHOWN_MAX
        lines.append(f"… and {count:,} more that came again with other content; {STREAMS_FILE} counts them by stream")
    if findings.forgotten_count:
        what = "duplicates came long after the first copy, and could not be compared with it"
        lines.append(f"{findings.forgotten_count:,} of the {what}")
    return lines


def _write(path: Path, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write a table; none, and not that of an earlier conversion either, if it has no rows."""
    if not rows:
        path.unlink(missing_ok=True)
        return
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
