"""`tandemfeed end-session`: ends the session of a source journal to which nothing more will be written.

A source job with `--until-idle` ends its session itself. A streaming query, or a job that waits for more files, does
not know when the day is over; without an end, adapters cannot finish the session, and the gateway keeps the next one
waiting. Never: ends a session of which a micro-batch is half committed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tandemfeed.journal.errors import JournalError, JournalLocked
from tandemfeed.spark_feed.journaling.commit_log import CommitLog
from tandemfeed.spark_feed.journaling.committed_records import begin_record
from tandemfeed.spark_feed.journaling.pending_batch import pending_batch_id
from tandemfeed.spark_feed.journaling.records import NumberingPlan, SourceJournalError
from tandemfeed.transport.process_shell import announce


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        plan, numbers = end_session(arguments.journal)
    except (SourceJournalError, JournalError, OSError) as error:
        sys.stderr.write(f"end-session: {error}\n")
        return 2
    announce("ended", journal=str(arguments.journal), session=plan.feed.session, next_source_seqs=numbers)
    return 0


def end_session(journal: Path) -> tuple[NumberingPlan, dict[int, int]]:
    """Declare the end of every source stream. A second call changes nothing.

    Returns:
        The journal's plan, and the next `source_seq` of each source stream, which no message will have.

    Raises:
        SourceJournalError: it is not a source journal; something writes to it; a micro-batch is half committed.
        JournalError, OSError: it cannot be read or written.
    """
    begin = begin_record(journal)
    if begin is None:
        raise SourceJournalError(f"{journal} has no session yet; give the folder of a source journal")
    plan = NumberingPlan.decode(begin)
    try:
        log = CommitLog(journal, plan)
    except JournalLocked as locked:
        raise SourceJournalError(f"{journal} is written to; stop its source job or query first: {locked}") from locked
    with log:
        last, pending = log.last_commit, pending_batch_id(journal)
        if pending is not None and (not last.next_record_index or pending > last.batch_id):
            raise SourceJournalError(
                f"{journal}: micro-batch {pending} of its query is half committed; start the query again, let it "
                "commit this one, stop it, and end the session then"
            )
        log.end()
    return plan, dict(sorted(last.next_source_seqs.items()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="tandemfeed end-session",
        description="End the session of a source journal: declare the end of all its source streams. Stop the query or "
        "the source job that writes to it first; what either adds later is refused.",
    )
    parser.add_argument("--journal", type=Path, required=True, metavar="DIR", help="folder of the source journal")
    return parser
