"""`tandemfeed bars`: bars of trades and quotes into Parquet, from a live feed or from a journal."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.journal.errors import JournalError
from tandemfeed.spark_feed.bars.bars import QUOTE_FIELDS, TRADE_FIELDS, BarOptions, quote_bars, trade_bars
from tandemfeed.spark_feed.bars.writing import start_bars, write_bars
from tandemfeed.spark_feed.numbering.driver.java import JavaMissing, find_java_home
from tandemfeed.spark_feed.numbering.driver.session import SUBMITTED
from tandemfeed.spark_feed.sharing import add_group_argument, make, restrict, spark_settings
from tandemfeed.spark_feed.spark.errors import TableError
from tandemfeed.transport.process_shell import (
    StopSignal,
    add_connection_arguments,
    announce_ready,
    configure_logging,
    connection_from,
)

KINDS = {"trades": trade_bars, "quotes": quote_bars}
POLL_S = 0.5
SETTINGS: dict[str, bool | float | int | str | None] = {
    "spark.sql.session.timeZone": "UTC",  # days end at midnight UTC
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.sql.shuffle.partitions": "4",  # a bar's state is small
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    configure_logging("bars", arguments.log_level)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    restrict(arguments.group)
    options = BarOptions(arguments.width, arguments.late, _columns(parser, arguments.column))
    try:
        if arguments.journal is not None:
            _write(arguments, options)
        else:
            connection_from(parser, arguments)  # completes the arguments
            if arguments.feed is None or arguments.checkpoint is None:
                parser.error("give --journal, or --feed and --checkpoint")
            _follow(arguments, options)
    except (TableError, JavaMissing, DocumentError, JournalError, OSError) as error:
        print(f"tandemfeed bars: {error}", file=sys.stderr)
        return 2
    return 0


def _write(arguments: argparse.Namespace, options: BarOptions) -> None:
    """Bars of a journal."""
    make(arguments.out, arguments.group)
    spark = _session(arguments.master)
    for kind, message in _messages(arguments).items():
        reader = spark.read.format("tandemfeed.journal").options(message=message, model=str(arguments.model))
        write_bars(KINDS[kind](reader.load(str(arguments.journal)), options), arguments.out / kind)


def _follow(arguments: argparse.Namespace, options: BarOptions) -> None:
    """Bars of a live feed, until the process is stopped or a query fails."""
    stop = StopSignal()
    make(arguments.out, arguments.group)
    make(arguments.checkpoint)
    spark = _session(arguments.master)
    stop.install()
    queries = []
    for kind, message in _messages(arguments).items():
        reader = spark.readStream.format("tandemfeed").options(**_login(arguments), message=message)
        bars = KINDS[kind](reader.option("startingOffsets", arguments.start).load(), options)
        queries.append(start_bars(bars, arguments.out / kind, arguments.checkpoint / kind))
    announce_ready(out=str(arguments.out))
    try:
        while not stop.is_set and all(query.isActive for query in queries):
            stop.wait(POLL_S)
    finally:
        failures = [query.exception() for query in queries]
        for query in queries:
            query.stop()
    if failed := next(filter(None, failures), None):
        raise TableError(f"a query failed: {failed}")


def _session(master: str) -> Any:
    os.environ.setdefault("JAVA_HOME", str(find_java_home()))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession  # takes a second, so import it only here

    from tandemfeed.spark_feed.spark import register

    builder = SparkSession.builder.appName("tandemfeed bars").config(map={**SETTINGS, **spark_settings()})
    if master or SUBMITTED not in os.environ:
        builder = builder.master(master or "local[1]")
    spark = builder.getOrCreate()
    register(spark)
    return spark


def _messages(arguments: argparse.Namespace) -> dict[str, str]:
    """The message of each kind of bars; without those that are not wanted."""
    wanted = {"trades": arguments.trades, "quotes": arguments.quotes}
    return {kind: message for kind, message in wanted.items() if message}


def _login(arguments: argparse.Namespace) -> dict[str, str]:
    """The options of the live source."""
    found = {
        "feed": arguments.feed,
        "admin": arguments.admin,
        "ca": arguments.ca,
        "identity": arguments.identity,
        "secretFile": arguments.secret_file,
        "certificateFile": arguments.certificate_file,
        "keyFile": arguments.key_file,
        "tokenFile": arguments.token_file,
        "interface": arguments.interface,
        "datagrams": arguments.datagrams,
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def _columns(parser: argparse.ArgumentParser, pairs: Sequence[str]) -> dict[str, str]:
    known = sorted({*TRADE_FIELDS, *QUOTE_FIELDS})
    columns = {name: column for name, _, column in (pair.partition("=") for pair in pairs)}
    for name, column in columns.items():
        if name not in known or not column:
            parser.error(f"--column {name}={column}: expected FIELD=COLUMN, with one of the fields {', '.join(known)}")
    return columns


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="tandemfeed bars",
        description="Write bars of trades (prices, volume, VWAP) and of quotes (spread) into Parquet files: of a "
        "journal, or of a live feed, each bar when it is complete, until the command is stopped.",
    )
    parser.add_argument("--journal", type=Path, metavar="DIR", help="an adapter's output journal")
    parser.add_argument("--model", type=Path, metavar="XML", help="message model; needed with --journal only")
    parser.add_argument("--feed", metavar="NAME", help="a live feed")
    parser.add_argument(
        "--start",
        default="latest",
        metavar="WHERE",
        help="where a new checkpoint begins in the live feed: latest, earliest or a message_seq (default %(default)s)",
    )
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="Spark's checkpoint; needed with --feed only")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the bars")
    parser.add_argument("--width", default="1 minute", metavar="TIME", help="width of a bar (default %(default)s)")
    parser.add_argument(
        "--late",
        default="10 seconds",
        metavar="TIME",
        help="wait this long for late messages of a live feed (default %(default)s)",
    )
    parser.add_argument("--trades", default="TradeTick", metavar="NAME", help="message of trades (default %(default)s)")
    parser.add_argument("--quotes", default="QuoteTick", metavar="NAME", help="message of quotes (default %(default)s)")
    parser.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="FIELD=COLUMN",
        help=f"column with one of the fields {', '.join(sorted({*TRADE_FIELDS, *QUOTE_FIELDS}))}; repeatable",
    )
    parser.add_argument("--master", default="", help="Spark master (default: that of spark-submit, or local[1])")
    add_group_argument(parser)
    add_connection_arguments(parser)
    return parser
