"""`tandemfeed ticks`: makes recordings."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path

from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.spark_feed.progress_bar import terminal
from tandemfeed.spark_feed.recordings.generator import GeneratorOptions, TickGenerator
from tandemfeed.spark_feed.recordings.ingest.file_columns import IngestOptions
from tandemfeed.spark_feed.recordings.ingest.ingesting import ingest
from tandemfeed.spark_feed.recordings.ingest.progress import IngestProgress
from tandemfeed.spark_feed.recordings.ingest.times import TIME_UNITS
from tandemfeed.spark_feed.recordings.recording import KINDS, ROWS_PER_FILE, Manifest, RecordingError, write_recording
from tandemfeed.spark_feed.sharing import add_group_argument, restrict
from tandemfeed.transport.ending import run_until_signal
from tandemfeed.transport.process_shell import announce


def main(argv: Sequence[str] | None = None) -> int:
    """`tandemfeed ticks`: make recordings."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="tandemfeed ticks",
        description="Make a recording of ticks that the feed source can replay.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _add_generate(commands.add_parser("generate", allow_abbrev=False, help="generate realistic ticks from a seed"))
    _add_ingest(commands.add_parser("ingest", allow_abbrev=False, help="convert Parquet, CSV or DBN files"))
    arguments = parser.parse_args(argv)
    restrict(arguments.group)
    try:
        make = _generate if arguments.command == "generate" else _ingest
        manifest = run_until_signal(lambda: make(arguments), _say_why_it_ended)
    except (RecordingError, DocumentError, ValueError, OSError) as error:
        print(f"tandemfeed ticks: {error}", file=sys.stderr)
        return 2
    announce("recorded", out=str(arguments.out), **asdict(manifest))
    return 0


def _say_why_it_ended(number: signal.Signals) -> None:
    print(f"tandemfeed ticks: ended by {number.name}; nothing was written", file=sys.stderr)


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder for the recording")
    parser.add_argument(
        "--messages", type=int, default=1_000_000, metavar="N", help="number of messages (default %(default)s)"
    )
    parser.add_argument(
        "--symbols", type=int, default=3_000, metavar="M", help="number of ticker symbols (default %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="S", help="the same seed gives the same ticks (default %(default)s)"
    )
    parser.add_argument(
        "--trade-share",
        type=float,
        default=0.25,
        metavar="X",
        help="share of messages that are trades; the rest are quotes (default %(default)s)",
    )
    parser.add_argument(
        "--zipf",
        type=float,
        default=1.05,
        metavar="X",
        help="how unevenly symbols trade; 0 is evenly (default %(default)s)",
    )
    parser.add_argument(
        "--day",
        type=date.fromisoformat,
        default=date(2026, 11, 20),
        metavar="YYYY-MM-DD",
        help="trading day (default %(default)s)",
    )
    _add_rows_per_file(parser)


def _add_rows_per_file(parser: argparse.ArgumentParser) -> None:
    add_group_argument(parser)
    parser.add_argument(
        "--rows-per-file",
        type=_row_count,
        default=ROWS_PER_FILE,
        metavar="N",
        help="rows per file; a micro-batch has whole files (default %(default)s)",
    )


def _generate(arguments: argparse.Namespace) -> Manifest:
    options = GeneratorOptions(
        message_count=arguments.messages,
        symbol_count=arguments.symbols,
        seed=arguments.seed,
        trade_share=arguments.trade_share,
        zipf_exponent=arguments.zipf,
        day=arguments.day,
    )
    return write_recording(
        arguments.out,
        TickGenerator(options).tables(),
        rows_per_file=arguments.rows_per_file,
        origin=f"generated: {options}",
        price_conversion="drawn as integers",
        group=arguments.group,
    )


def _add_ingest(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        type=Path,
        nargs="+",
        metavar="FILE",
        help=".parquet, .csv, .dbn or .dbn.zst, or a folder of them; each file continues the one before it. Folders "
        "such as symbol=AAPL are columns of the files in them",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder for the recording")
    parser.add_argument(
        "--source-format",
        type=Path,
        metavar="XML",
        help="source format whose fields are the file's columns (default: trades, quotes and orders)",
    )
    parser.add_argument(
        "--kind",
        metavar="NAME",
        help=f"message of the rows: {', '.join(KINDS)}, or one of the source format (default: as the columns, or the "
        "column kind, say)",
    )
    parser.add_argument(
        "--symbol",
        metavar="TEXT",
        help="symbol of every row, for files without a symbol column (default: first word of the file name)",
    )
    parser.add_argument(
        "--column", action="append", default=[], metavar="FIELD=NAME", help="column that contains a field; repeatable"
    )
    parser.add_argument(
        "--time-unit", choices=tuple(TIME_UNITS), help="unit of integer times (default: guessed from their magnitude)"
    )
    parser.add_argument(
        "--size-exponent",
        type=int,
        choices=range(-9, 1),
        metavar="-9…0",
        help="store sizes in units of 10 to this power (default: the largest that is exact)",
    )
    _add_rows_per_file(parser)


def _ingest(arguments: argparse.Namespace) -> Manifest:
    columns = {}
    for pair in arguments.column:
        field, found, name = pair.partition("=")
        if not found:
            raise RecordingError(f"--column {pair}: expected FIELD=NAME")
        columns[field] = name
    options = IngestOptions(
        kind=arguments.kind,
        symbol=arguments.symbol,
        columns=columns,
        time_unit=arguments.time_unit,
        size_exponent=arguments.size_exponent,
    )
    if arguments.source_format is None and arguments.kind not in (None, *KINDS):
        raise RecordingError(f"--kind {arguments.kind}: expected {', '.join(KINDS)}, or --source-format")
    progress = IngestProgress(terminal())
    try:
        return ingest(
            arguments.files,
            arguments.out,
            options,
            arguments.rows_per_file,
            arguments.source_format,
            progress,
            arguments.group,
        )
    finally:
        progress.end()


def _row_count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows; expected 1, 2, …")
    return int(text)
