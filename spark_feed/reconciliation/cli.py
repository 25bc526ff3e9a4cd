"""`tandemfeed reconcile`: proves from journals that source and adapters agree, or names where they do not."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tandemfeed.journal.errors import JournalError
from tandemfeed.spark_feed.journaling.records import SourceJournalError
from tandemfeed.spark_feed.numbering.driver.job import QUARANTINE_NAME
from tandemfeed.spark_feed.reconciliation.output_copy import ReconciliationError
from tandemfeed.spark_feed.reconciliation.reconciling import reconcile
from tandemfeed.spark_feed.reconciliation.report import document_of, text_of
from tandemfeed.spark_feed.reconciliation.source_copy import read_source

RECONCILED, NOT_RECONCILED, UNUSABLE = 0, 1, 2  # exit status


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        source = None
        if arguments.source_journal is not None:
            quarantine = arguments.quarantine or arguments.source_journal / QUARANTINE_NAME
            source = read_source(arguments.source_journal, quarantine)
        found = reconcile(source, arguments.output, arguments.session)
    except (ReconciliationError, SourceJournalError, JournalError, OSError) as error:
        print(f"tandemfeed reconcile: {error}", file=sys.stderr)
        return UNUSABLE
    print(json.dumps(document_of(found), indent=1) if arguments.json else text_of(found))
    is_failed = found.problems or (arguments.every_adapter and found.is_absent_somewhere)
    return NOT_RECONCILED if is_failed else RECONCILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="tandemfeed reconcile",
        description="Compare a session's source journal and the output journals of all its adapters: counts, numbers "
        "and digests. Names every range of messages that is missing or different. Ends with status 0 if every source "
        "message is in at least one output journal and all copies are equal, with 1 otherwise.",
    )
    parser.add_argument(
        "--source-journal", type=Path, metavar="DIR", help="source journal (default: compare only the adapters)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        action="append",
        required=True,
        metavar="DIR",
        help="output journal of an adapter; repeat it for each adapter of the feed",
    )
    parser.add_argument(
        "--session",
        type=int,
        default=0,
        metavar="YYYYMMDD",
        help="session to reconcile (default: that of the source journal, or the newest)",
    )
    parser.add_argument(
        "--quarantine",
        type=Path,
        metavar="DIR",
        help="quarantine table of the source job (default: quarantine in the source journal)",
    )
    parser.add_argument(
        "--every-adapter",
        action="store_true",
        help="also end with status 1 if an adapter lacks messages that another one has",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser
