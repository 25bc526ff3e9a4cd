"""`tandemfeed convert`: check | explain | compile | file | sniff | dead-letters."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.formats.chunks import FrameChunk
from tandemfeed.adapter.conversion.formats.tick_table import TableOptions
from tandemfeed.adapter.conversion.kernel.kernel_source import kernel_source
from tandemfeed.adapter.conversion.table.reasons import REFUSALS as REFUSALS_OF_MESSAGES
from tandemfeed.adapter.conversion.table.user_functions import BadUserFunction
from tandemfeed.adapter.convert_command import compiling, dead_letters, sniffing
from tandemfeed.adapter.convert_command.captures.compile_ahead import compile_captures_reported
from tandemfeed.adapter.convert_command.converting import Result, convert_all
from tandemfeed.adapter.convert_command.documents import Documents, add_document_arguments, load_documents
from tandemfeed.adapter.convert_command.explaining import explain, users_functions
from tandemfeed.adapter.convert_command.findings import report_findings
from tandemfeed.adapter.convert_command.inputs import READ_ERRORS, Findings, Input, Line
from tandemfeed.adapter.convert_command.outputs import KINDS, open_output
from tandemfeed.adapter.convert_command.packet_values import reads_packet
from tandemfeed.adapter.convert_command.partitions import Partitioning
from tandemfeed.adapter.convert_command.reading import CAPTURE_READERS, READERS, default_reader
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.journal.commands.options import REFUSALS

BUCKETS_MAX = 256
BYTES_SHOWN = 40  # bytes shown of a refused message


def main(argv: Sequence[str] | None = None) -> int:
    """Check the documents of a conversion, explain or compile its table, convert a file, or show refused messages."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tandemfeed convert", description=main.__doc__)
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK")
    for name, summary in (
        ("check", "load and check the three documents; an error names file, line and reason"),
        ("explain", "print the table as readable text"),
        ("file", "convert a file to SBE, Parquet, Arrow or CSV"),
    ):
        task = tasks.add_parser(name, allow_abbrev=False, help=summary, description=summary)
        add_document_arguments(task)
        if name == "explain":
            task.add_argument("--source", action="store_true", help="print the kernel's generated source instead")
        if name == "file":
            _add_file_arguments(task)
    sniffing.add_to(tasks)
    compiling.add_to(tasks)
    dead_letters.add_to(tasks)
    arguments = parser.parse_args(argv)
    try:
        status = _run(parser, arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (DocumentError, BadUserFunction, dead_letters.NotADeadLetter, *READ_ERRORS, *REFUSALS) as refused:
        print(f"convert: {refused}", file=sys.stderr)
        return 2
    return status


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    if arguments.task == "dead-letters":
        return dead_letters.run(arguments)
    if arguments.task == "sniff":
        return sniffing.run(arguments)
    if arguments.task == "compile":
        return compiling.run(parser, arguments)
    documents = load_documents(parser, arguments, arguments.shipped)
    return {"check": _check, "explain": _explain, "file": _file}[arguments.task](documents, arguments)


def _add_file_arguments(task: argparse.ArgumentParser) -> None:
    task.add_argument(
        "inputs",
        type=Path,
        nargs="+",
        metavar="input",
        help="a file to convert, also compressed with gzip or zstd, which its content shows (of CSV files, the ending "
        ".gz or .zst). Each file continues the one before it; captures are read in the order of their packets' times",
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
    task.add_argument("--reader", choices=sorted(READERS), help="the file's layout (default: by the source format)")
    task.add_argument(
        "--session", type=_trading_day, default=0, metavar="YYYYMMDD", help="trading day, for times since midnight"
    )
    task.add_argument("--symbol", default="", help="symbol of a file that does not contain it")
    task.add_argument(
        "--strict", action="store_true", help="stop at the first bad datagram or missing message of a capture"
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


def _line(text: str) -> Line:
    try:
        return Line.parse(text)
    except ValueError as reason:
        raise argparse.ArgumentTypeError(f"{text!r}: {reason}; give ADDRESS or ADDRESS:PORT") from None


def _check(documents: Documents, _: argparse.Namespace) -> int:
    table = documents.table
    print(
        f"{table.document}: valid; {len(documents.source_format.messages)} source messages, "
        f"{len(documents.model.schema.messages)} output messages, {len(table.conversions)} conversions"
    )
    for line in users_functions(table):
        print(line)
    for warning in (*documents.source_format.warnings, *documents.model.schema.warnings):
        print(f"warning: {warning}")
    return 0


def _explain(documents: Documents, arguments: argparse.Namespace) -> int:
    if arguments.source:
        print(kernel_source(documents.table).text)
        return 0
    for line in explain(documents.table):
        print(line)
    return 0


def _file(documents: Documents, arguments: argparse.Namespace) -> int:
    name = arguments.reader or default_reader(documents.source_format)
    if name is None:
        print(f"convert: give --reader, one of {', '.join(sorted(READERS))}", file=sys.stderr)
        return 2
    if not arguments.session and kernel_source(documents.table).zones:
        print("convert: give --session YYYYMMDD; this table reads times since midnight", file=sys.stderr)
        return 2
    if arguments.lines and name not in CAPTURE_READERS:
        print(f"convert: --line selects from captures; the reader {name} reads none", file=sys.stderr)
        return 2
    if arguments.buckets and arguments.kind != "parquet":
        print(f"convert: --partition writes Parquet; it cannot be combined with --as {arguments.kind}", file=sys.stderr)
        return 2
    console = Console(stderr=True)
    converter = CompiledConverter(documents.table, report=partial(console.print, markup=False))
    if name in CAPTURE_READERS:
        compile_captures_reported(partial(console.print, markup=False))
    given = Input(
        tuple(arguments.inputs),
        documents.source_format,
        TableOptions(arguments.symbol, arguments.time_unit),
        tuple(arguments.lines),
        keeps_times=reads_packet(documents.table, "sent_at_ns"),
        keeps_streams=reads_packet(documents.table, "source_stream_id"),
    )
    output = open_output(arguments.to, documents.model, arguments.kind, _partitioning(arguments))
    if documents.made_model is not None:  # any SBE tool reads the files by it
        (arguments.to / "message-model.xml").write_bytes(documents.made_model)
    findings, began = Findings(), time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        total = sum(path.stat().st_size for path in given.paths)
        bar = progress.add_task(given.paths[0].name, total=total, status="")

        def advance(chunk: FrameChunk, result: Result) -> None:
            progress.update(bar, advance=len(chunk.frames), status=f"{result.read:,} messages")

        result = convert_all(
            converter, given, name, output, findings, session=arguments.session, is_strict=arguments.strict,
            on_chunk=advance,
        )  # fmt: skip
    _report(converter, result, time.perf_counter() - began, console)
    counts = converter.counts()
    if result.read and sum(counts[reason.name.lower()] for reason in REFUSALS_OF_MESSAGES) == result.read:
        what = f"none of the {result.read:,} messages follows the source format {documents.source_format.name!r}"
        advice = "choose another reader, source format or --session"
        print(f"convert: {given.paths[0]}: {what}; {advice}", file=sys.stderr)
        return 2
    return report_findings(findings, arguments, result.written, console)


def _partitioning(arguments: argparse.Namespace) -> Partitioning | None:
    if not arguments.buckets:
        return None
    day = datetime.datetime.strptime(str(arguments.session), "%Y%m%d").date() if arguments.session else None
    return Partitioning(arguments.buckets, day=day)


def _report(converter: CompiledConverter, result: Result, seconds: float, console: Console) -> None:
    rate = result.read / seconds if seconds else 0.0
    console.print(f"{result.read:,} messages read, {result.written:,} written, {rate:,.0f} per second")
    for reason, count in converter.counts().items():
        if count:
            console.print(f"  {reason}: {count:,}")
    for name, failure in converter.function_failures().items():
        console.print(f"  function {name} failed: {failure}", markup=False)
    for origin, letter in result.refused:
        name = letter.message or f"type {letter.type_id}"
        shown = letter.frame[:BYTES_SHOWN].hex(" ")
        console.print(f"  message {origin}, {name}: {letter.reason.name.lower()}: {shown}")
