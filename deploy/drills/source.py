"""Prepares what the source of a drill plays: a recording, and source journals made from it in advance.

The parts of the source job (`spark_feed.numbering.rows`, `spark_feed.journaling`) make the journal in this process,
batch by batch. The bytes are the same, without a JVM that would take processor time from what is measured. Faults of
the Spark driver need the real job; all others play a prepared journal.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tandemfeed.deploy.cluster.processes import ProcessFailed
from tandemfeed.deploy.cluster.topology import EXAMPLES, SESSION, FeedLayout
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.journal import NamedPosition
from tandemfeed.spark_feed.feed_plan import read_feed_plan
from tandemfeed.spark_feed.journaling.committed_records import CommittedEnd, CommittedRecords
from tandemfeed.spark_feed.journaling.journal_writer import SourceJournalWriter
from tandemfeed.spark_feed.journaling.records import POSITION_NAME, packets_in
from tandemfeed.spark_feed.numbering.driver.job import numbering_plan
from tandemfeed.spark_feed.numbering.rows.column_split import parse_split
from tandemfeed.spark_feed.numbering.rows.encoding import TickEncoder
from tandemfeed.spark_feed.recordings.recording import ROWS_PER_FILE

PACKING_WINDOW_S = 0.002  # how long a packet may wait to fill, so that low rates do not cost latency
PACKET_MESSAGES_MAX = 36
BATCH_FILE_COUNT = 20  # of the recording, in a micro-batch


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording to play.

    Attributes:
        split: how its rows are assigned to source streams.
    """

    folder: Path
    message_count: int
    split: str


def make_recording(
    folder: Path,
    *,
    source: Path | None,
    message_count: int,
    symbols: int = 3_000,
    rows_per_file: int = ROWS_PER_FILE,
) -> Recording:
    """Generate ticks, or ingest a file.

    Args:
        rows_per_file: for generated ticks.

    Raises:
        ProcessFailed: the text has the error of `tandemfeed ticks`.
    """
    out = folder / "recording"
    if source is None:
        arguments = ["generate", "--messages", str(message_count), "--symbols", str(symbols)]
        arguments += ["--rows-per-file", str(rows_per_file)]
    else:
        arguments = ["ingest", str(source), "--rows-per-file", "500"]
    command = [sys.executable, "-m", "tandemfeed.deploy.command", "ticks", *arguments, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ProcessFailed(done.stderr.strip() or f"tandemfeed ticks: ended with status {done.returncode}")
    manifest = json.loads(done.stdout.splitlines()[-1])
    is_single = manifest["symbol_count"] == 1
    return Recording(out, int(manifest["record_count"]), "index" if is_single else "letter")


def packet_size(rate: float, stream_count: int, packets_per_s_max: float = math.inf) -> int:
    """The number of messages to put in a source packet, for a rate over all streams of a feed.

    Args:
        packets_per_s_max: a lower rate means fewer packets, not smaller ones, where the machine does not bear more.
    """
    wanted = min(PACKET_MESSAGES_MAX, round(rate * PACKING_WINDOW_S / stream_count))
    return max(1, wanted, math.ceil(rate / packets_per_s_max))


def prepare_journal(
    recording: Recording,
    feed: FeedLayout,
    settings: Path,
    journal: Path,
    messages_max: int,
    *,
    session: int = 0,
    parts: slice = slice(None),
) -> None:
    """Number and pack a recording into a feed's source journal.

    Args:
        settings: the path of `cluster.toml`.
        messages_max: messages per packet.
        session: 0: the one in the settings.
        parts: the files of the recording to use.
    """
    format_path = EXAMPLES / "source-format.xml"
    feed_plan = read_feed_plan(f"{settings}#{feed.name}").in_session(session)
    rule = parse_split(recording.split, feed_plan.source_stream_ids)
    plan = numbering_plan(recording.folder, format_path, feed_plan, rule, messages_max)
    encoder = TickEncoder(load_source_format(format_path), rule, len(feed_plan.source_stream_ids))
    files = sorted(recording.folder.glob("part-*.parquet"))[parts]
    with SourceJournalWriter(journal, plan) as writer:
        for batch_id, first in enumerate(range(0, len(files), BATCH_FILE_COUNT)):
            rows = pa.concat_tables(map(pq.read_table, files[first : first + BATCH_FILE_COUNT]))
            if not first:
                first_index = rows.column("record_index")[0]
            index = pc.subtract(rows.column("record_index"), first_index)
            writer.append_batch(batch_id, [encoder.encode(rows.set_column(0, "record_index", index))])
        writer.end()


def prepare_days(
    recording: Recording,
    feed: FeedLayout,
    settings: Path,
    journals: Sequence[Path],
    messages_max: int,
) -> None:
    """Prepare one journal per day, each with its own session: one file per day, and the rest for the last day."""
    for day, journal in enumerate(journals):
        parts = slice(day, day + 1) if day + 1 < len(journals) else slice(day, None)
        prepare_journal(recording, feed, settings, journal, messages_max, session=SESSION + day, parts=parts)


def sent_counts(journal: Path, feed: FeedLayout) -> dict[int, int]:
    """How many messages of each source stream the gateway has sent; it must have stopped."""
    counts = dict.fromkeys(range(1, feed.shape.stream_count + 1), 0)
    with CommittedRecords(journal, list(counts)) as records:
        for stream, batch in records.skip_to(_sent_end(journal)):
            counts[stream] += sum(packets_in(batch).message_count)
    return counts


class JournalLead:
    """Measures how far a source journal is ahead of its gateway; use it in a `with`."""

    def __init__(self, journal: Path) -> None:
        self._journal, self._end = journal, CommittedEnd(journal)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()

    def message_count(self) -> int:
        """The number of unsent messages, by the last position that the gateway stored."""
        return max(self._end.next_record_index - _sent_end(self._journal), 0)


def _sent_end(journal: Path) -> int:
    """One past the index of the last record that the gateway has sent; 0 if it has sent nothing."""
    position = NamedPosition(journal / POSITION_NAME)
    try:
        return position.load() or 0
    finally:
        position.close()
