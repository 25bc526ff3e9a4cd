"""`file`: converts files, one after another or several at a time, and reports what was wrong with them."""

from __future__ import annotations

import argparse
import datetime
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.kernel.kernel_source import kernel_source
from tandemfeed.adapter.conversion.table.reasons import REFUSALS as REFUSALS_OF_MESSAGES
from tandemfeed.adapter.convert_command.captures.compile_ahead import compile_captures_reported
from tandemfeed.adapter.convert_command.documents import Documents
from tandemfeed.adapter.convert_command.input.findings import REFUSED, report_findings
from tandemfeed.adapter.convert_command.input.inputs import Input, Line
from tandemfeed.adapter.convert_command.input.reading import CAPTURE_READERS, READERS, default_reader
from tandemfeed.adapter.convert_command.output.outputs import KINDS
from tandemfeed.adapter.convert_command.recordings.independence import (
    recordings_in,
    require_own_streams,
    with_sessions,
)
from tandemfeed.adapter.convert_command.recordings.recording import Outcome, convert_recording, input_of
from tandemfeed.adapter.convert_command.recordings.side_by_side import convert_side_by_side
from tandemfeed.adapter.convert_command.recordings.staging import Staging
from tandemfeed.journal.commands.streams import Streams
from tandemfeed.transport.ending import run_until_signal

BUCKETS_MAX = 256
JOBS_MAX = 1_024
BYTES_SHOWN = 40  # bytes shown of a refused message


def add_file_arguments(task: argparse.ArgumentParser) -> None:
    """Add the options of the task."""
    task.add_argument(
        "inputs",
        type=Path,
        nargs="+",
        metavar="input",
        help="a file to convert, also compressed with gzip or zstd, which its content shows (of CSV files, the ending "
        ".gz or .zst). Each file continues the one before it; captures are read in the order of their packets' times. "
        "See --jobs",
    )
    task.add_argument("--to", required=True, type=Path, metavar="FOLDER", help="output folder, created if missing")
    task.add_argument(
        "--as", dest="kind", choices=KINDS, default="parquet", help="output format (default: %(default)s)"
    )
    task.add_argument(
        "--partition",
        dest="buckets",
        type=_buckets,
        default=0,
        metavar="BUCKETS",
        help="add Parquet files in folders by day, message type and this many buckets of instruments",
    )
    task.add_argument(
        "--jobs",
        type=_jobs,
        default=0,
        metavar="N",
        help="the inputs do not continue each other: convert each on its own, N at a time, with state that begins "
        "empty. Captures with a stream in common stay together. Parquet files become folders of a file per input",
    )
    task.add_argument("--reader", choices=sorted(READERS), help="the file's layout (default: by the source format)")
    task.add_argument(
        "--session",
        dest="sessions",
        action="append",
        type=_trading_day,
        metavar="YYYYMMDD",
        help="trading day, for times since midnight; with --jobs it may be given once for each input, in their order",
    )
    task.add_argument("--symbol", default="", help="symbol of a file that does not contain it")
    task.add_argument(
        "--strict",
        action="store_true",
        help="stop at the first datagram or message that is refused or missing",
    )
    task.add_argument(
        "--line",
        dest="lines",
        action="append",
        type=_line,
        default=[],
        metavar="ADDRESS[:PORT]",
        help="read only what a capture contains for this destination (may be given several times; default: all)",
    )
    units = ("s", "ms", "us", "ns")
    task.add_argument("--time-unit", default="ns", choices=units, help="unit of a tick table's times")


def _trading_day(text: str) -> int:
    """A day YYYYMMDD, as a number."""
    try:
        return int(datetime.datetime.strptime(text, "%Y%m%d").strftime("%Y%m%d"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a day YYYYMMDD, such as 20260131") from None


def _buckets(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= BUCKETS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of buckets from 1 to {BUCKETS_MAX}")
    return int(text)


def _jobs(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= JOBS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes from 1 to {JOBS_MAX}")
    return int(text)


def _line(text: str) -> Line:
    try:
        return Line.parse(text)
    except ValueError as reason:
        raise argparse.ArgumentTypeError(f"{text!r}: {reason}; give ADDRESS or ADDRESS:PORT") from None


def run(documents: Documents, arguments: argparse.Namespace) -> int:
    """Convert the inputs; returns the exit status.

    Raises:
        FormatError, OSError, InputsContinueEachOther, ConversionFailed: nothing was written.
    """
    name = arguments.reader or default_reader(documents.source_format)
    if (wrong := _refusal(documents, arguments, name)) or name is None:
        Streams.of_process().note(f"convert: {wrong}")
        return REFUSED
    return run_until_signal(lambda: _convert(documents, arguments, name), _say_why_it_ended)


def _say_why_it_ended(number: signal.Signals) -> None:
    Streams.of_process().note(f"convert: ended by {number.name}; nothing was written")


def _convert(documents: Documents, arguments: argparse.Namespace, name: str) -> int:
    console = Console(stderr=True)
    converter = CompiledConverter(documents.table, report=partial(console.print, markup=False))
    if name in CAPTURE_READERS:
        compile_captures_reported(partial(console.print, markup=False))
    given = input_of(documents, arguments, arguments.inputs)
    began = time.perf_counter()
    with Staging(arguments.to) as staging, _progress(given.paths, console) as advance:
        if arguments.jobs:
            outcome = _side_by_side(given, name, arguments, staging, advance)
        else:
            outcome = convert_recording(
                documents, converter, given, name, (arguments.sessions or [0])[0], arguments, staging.folder, advance
            )
        if documents.made_model is not None:  # any SBE tool reads the files by it
            (staging.folder / "message-model.xml").write_bytes(documents.made_model)
        staging.publish()
    result = outcome.result
    _report(outcome, time.perf_counter() - began, console)
    refused = sum(outcome.counts[reason.name.lower()] for reason in REFUSALS_OF_MESSAGES)
    if result.read and refused == result.read:
        what = f"none of the {result.read:,} messages follows the source format {documents.source_format.name!r}"
        advice = "choose another reader, source format or --session"
        Streams.of_process().note(f"convert: {given.paths[0]}: {what}; {advice}")
        return REFUSED
    return report_findings(outcome.findings, arguments, refused, console)


def _refusal(documents: Documents, arguments: argparse.Namespace, reader: str | None) -> str:
    """Why these options cannot be used together; empty if they can."""
    sessions = arguments.sessions or []
    if reader is None:
        return f"give --reader, one of {', '.join(sorted(READERS))}"
    if len(sessions) > 1 and (not arguments.jobs or len(sessions) != len(arguments.inputs)):
        what = f"--session is given {len(sessions)} times, for {len(arguments.inputs)} inputs"
        return f"{what}; give it once, or with --jobs once for each input"
    if not sessions and kernel_source(documents.table).zones:
        return "give --session YYYYMMDD; this table reads times since midnight"
    if arguments.lines and reader not in CAPTURE_READERS:
        return f"--line selects from captures; the reader {reader} reads none"
    if arguments.buckets and arguments.kind != "parquet":
        return f"--partition writes Parquet; it cannot be combined with --as {arguments.kind}"
    return ""


def _side_by_side(
    given: Input, reader: str, arguments: argparse.Namespace, staging: Staging, advance: Callable[[int, int], None]
) -> Outcome:
    recordings = with_sessions(recordings_in(given, reader), given.paths, arguments.sessions or [0])
    folders = [staging.recording(number) for number in range(len(recordings))]
    outcomes = convert_side_by_side(recordings, folders, reader, arguments, arguments.jobs, advance)
    require_own_streams(recordings, [each.findings for each in outcomes])
    staging.join(len(recordings))
    return Outcome.of_all(outcomes)


@contextmanager
def _progress(paths: Sequence[Path], console: Console) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; yields what is called with the bytes and the number of converted messages."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(paths[0].name, total=sum(path.stat().st_size for path in paths), status="")
        read = 0

        def advance(size: int, message_count: int) -> None:
            nonlocal read
            read += message_count
            progress.update(bar, advance=size, status=f"{read:,} messages")

        yield advance


def _report(outcome: Outcome, seconds: float, console: Console) -> None:
    result = outcome.result
    rate = result.read / seconds if seconds else 0.0
    console.print(f"{result.read:,} messages read, {result.written:,} written, {rate:,.0f} per second")
    for reason, count in outcome.counts.items():
        if count:
            console.print(f"  {reason}: {count:,}")
    for name, failure in outcome.failures.items():
        console.print(f"  function {name} failed: {failure}", markup=False)
    for origin, letter in result.refused:
        name = letter.message or f"type {letter.type_id}"
        shown = letter.frame[:BYTES_SHOWN].hex(" ")
        console.print(f"  message {origin}, {name}: {letter.reason.name.lower()}: {shown}")
