"""`tandemfeed reconcile`: proves from journals that source and adapters agree, or names where they do not."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tandemfeed.adapter.conversion.table.user_functions import BadUserFunction
from tandemfeed.adapter.convert_command.documents import add_document_arguments, load_documents
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.journal.errors import JournalError
from tandemfeed.offline.reconciliation.conversion import Conversion, ConversionResult
from tandemfeed.offline.reconciliation.output_copy import ReconciliationError, Survey
from tandemfeed.offline.reconciliation.reconciling import EpochStarts, reconcile
from tandemfeed.offline.reconciliation.report import document_of, text_of
from tandemfeed.offline.reconciliation.source_copy import read_source
from tandemfeed.spark_feed.feed_plan import read_readers
from tandemfeed.spark_feed.journaling.records import SourceJournalError
from tandemfeed.spark_feed.numbering.driver.job import QUARANTINE_NAME
from tandemfeed.transport.settings_file import SettingsError

RECONCILED, NOT_RECONCILED, UNUSABLE = 0, 1, 2  # exit status
ConvertAgain = Callable[[Sequence[Survey], EpochStarts], ConversionResult]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    converts = any((arguments.shipped, arguments.source_format, arguments.table, arguments.message_model))
    if converts and arguments.source_journal is None:
        parser.error("give --source-journal: its messages are converted again")
    try:
        source = None
        if arguments.source_journal is not None:
            quarantine = arguments.quarantine or arguments.source_journal / QUARANTINE_NAME
            source = read_source(arguments.source_journal, quarantine)
        again = _conversion(parser, arguments) if converts else None
        readers = read_readers(arguments.feed_description) if arguments.feed_description else ()
        found = reconcile(source, arguments.output, arguments.session, again, readers)
    except (
        DocumentError, BadUserFunction, ReconciliationError, SourceJournalError, JournalError, SettingsError, OSError
    ) as error:  # fmt: skip
        print(f"tandemfeed reconcile: {error}", file=sys.stderr)
        return UNUSABLE
    print(json.dumps(document_of(found), indent=1) if arguments.json else text_of(found))
    is_failed = found.problems or (arguments.every_adapter and found.is_absent_somewhere)
    return NOT_RECONCILED if is_failed else RECONCILED


def _conversion(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> ConvertAgain:
    documents = load_documents(parser, arguments, arguments.shipped)

    def convert_again(surveys: Sequence[Survey], epoch_starts: EpochStarts) -> ConversionResult:
        model_xml = Path(documents.model.schema.document).read_bytes()
        conversion = Conversion(documents.table, model_xml, arguments.source_journal, surveys, epoch_starts)
        return conversion.compare(arguments.channel)

    return convert_again


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="tandemfeed reconcile",
        description="Compare a session's source journal and the output journals of all its adapters: counts, numbers "
        "and digests. Names every range of messages that is missing or different. Ends with status 0 if every source "
        "message is in at least one output journal and all copies are equal, with 1 otherwise. With the documents of "
        "the conversion, it also converts the source journal again and compares every byte.",
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
        "--feed-description",
        metavar="FILE[#FEED]",
        help="cluster file that names the source streams that each channel reads (default: those of which the channel "
        "has a message)",
    )
    parser.add_argument(
        "--every-adapter",
        action="store_true",
        help="also end with status 1 if an adapter lacks messages that another one has",
    )
    add_document_arguments(parser)
    parser.add_argument(
        "--channel",
        type=int,
        action="append",
        metavar="ID",
        help="convert only this channel again, because others have other tables (default: all); may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser
