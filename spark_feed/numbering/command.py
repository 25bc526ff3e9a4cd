"""`tandemfeed source-job`: the Spark driver.

Imports little, because the JVM, which takes the longest to start, starts before the rest of the job is imported.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tandemfeed.spark_feed.numbering.driver.session import launch_jvm, scratch_of
from tandemfeed.spark_feed.numbering.split_words import LETTER, SYMBOL
from tandemfeed.spark_feed.session_argument import session
from tandemfeed.spark_feed.sharing import add_group_argument, restrict
from tandemfeed.transport.process_shell import add_process_arguments, announce


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    arguments = _parser().parse_args(argv)
    restrict(arguments.group)
    launch_jvm(arguments.master, arguments.driver_memory, scratch_of(arguments.checkpoint))
    from tandemfeed.spark_feed.numbering.driver.process import run

    return run(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="tandemfeed source-job",
        description="Number the ticks of a recording, pack them and append them to the source journal, using Spark "
        "Structured Streaming. If the job is killed, start it again with the same options: the numbers stay the same.",
    )
    parser.add_argument(
        "--recording", type=Path, required=True, metavar="DIR", help="recording made by `tandemfeed ticks`"
    )
    parser.add_argument("--source-format", type=Path, required=True, metavar="XML", help="source format document")
    parser.add_argument(
        "--feed-description", required=True, metavar="TOML#FEED", help="cluster file, and the feed in it to number"
    )
    parser.add_argument("--journal", type=Path, required=True, metavar="DIR", help="folder of the source journal")
    parser.add_argument(
        "--session",
        type=session,
        default=0,
        metavar="YYYYMMDD",
        help="session to number (default: the one in the cluster file)",
    )
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="DIR", help="folder of Spark's checkpoint")
    parser.add_argument(
        "--split",
        default=LETTER,
        metavar="RULE",
        help="how rows are assigned to source streams: letter (first letter of the ticker), hash (of the ticker), "
        "index (in turn), ranges:FIRST,… (the first ticker of each stream but the first) or table:FILE (CSV of tickers "
        "and source_stream_id, * for all others) (default %(default)s)",
    )
    parser.add_argument(
        "--split-column",
        default=SYMBOL,
        metavar="NAME",
        help="column of the recording whose values the split assigns, instead of the ticker (default %(default)s)",
    )
    parser.add_argument(
        "--packet-messages-max", type=int, default=16, metavar="N", help="messages per packet (default %(default)s)"
    )
    parser.add_argument(
        "--until-idle",
        action="store_true",
        help="stop after the whole recording is journaled, and mark the end of each stream",
    )
    parser.add_argument(
        "--ahead-messages-max",
        type=_message_count,
        default=0,
        metavar="N",
        help="begin no micro-batch while N messages are journaled and not yet sent (default 0: no limit)",
    )
    parser.add_argument(
        "--batch-messages-max",
        type=_message_count,
        default=1_000_000,
        metavar="N",
        help="messages per micro-batch when the job is behind; a micro-batch has at least one file (default "
        "%(default)s)",
    )
    parser.add_argument(
        "--symbols",
        type=Path,
        metavar="FILE",
        help="the known symbols, one a line; rows with others go to the quarantine table (default: all are known)",
    )
    parser.add_argument(
        "--late-ms",
        type=_message_count,
        default=0,
        metavar="MS",
        help="rows whose time is more than this before that of a row above them in their file go to the quarantine "
        "table (default 0: never)",
    )
    parser.add_argument(
        "--quarantine",
        type=Path,
        metavar="DIR",
        help="folder of the quarantine table, with the rows that make no message (default: quarantine in the journal)",
    )
    parser.add_argument(
        "--archive-classes",
        action=_ArchiveClasses,
        nargs=0,
        help="only let the JVM store Spark's classes beside the compiled kernels (160 MB), so that later jobs start in "
        "half the time; once for each user, Java and Spark",
    )
    parser.add_argument("--master", default="", help="Spark master (default: that of spark-submit, or local[1])")
    parser.add_argument("--driver-memory", default="512m", help="memory of the JVM (default %(default)s)")
    add_group_argument(parser)
    add_process_arguments(parser)
    return parser


class _ArchiveClasses(argparse.Action):
    """Archives the classes and ends the command, so that no other option is required."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Archive them."""
        from tandemfeed.spark_feed.numbering.driver.archiving import ArchiveError, archive_classes
        from tandemfeed.spark_feed.numbering.driver.java import JavaMissing

        try:
            announce("archived", archive=str(archive_classes()))
        except (ArchiveError, JavaMissing, OSError) as error:
            parser.exit(2, f"{parser.prog}: {error}\n")
        parser.exit()


def _message_count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of messages; expected 0, 1, 2, …")
    return int(text)
