"""Prepares what the source of a drill plays: a recording, and source journals made from it in advance.

The parts of the source job (`spark_feed.numbering.encoding`, `spark_feed.source_journal`) make the journal file by
file, like Spark's micro-batches. The bytes are the same, without a JVM that would take processor time from what is
measured. Faults of the Spark driver need the real job; all others play a prepared journal.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyarrow.parquet as pq

from tandemfeed.deploy.cluster.processes import ProcessFailed
from tandemfeed.deploy.cluster.topology import EXAMPLES, SESSION, FeedLayout
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.journal import Tailer
from tandemfeed.journal.format.named_position import NamedPosition
from tandemfeed.spark_feed.feed_plan import read_feed_plan
from tandemfeed.spark_feed.numbering.encoding import TickEncoder, frames_of
from tandemfeed.spark_feed.numbering.job import numbering_plan
from tandemfeed.spark_feed.numbering.split import SplitRule
from tandemfeed.spark_feed.recordings.recording import ROWS_PER_FILE
from tandemfeed.spark_feed.source_journal import POSITION_NAME, SourceJournalWriter, packets_in

PACKING_WINDOW_S = 0.002  # how long a packet may wait to fill, so that low rates do not cost latency
PACKET_MESSAGES_MAX = 36
READ_COUNT = 16_384


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
        rows_per_file: for generated ticks; each file is one micro-batch.

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


def packet_size(rate: float, stream_count: int) -> int:
    """The number of messages to put in a source packet, for a rate over all streams of a feed."""
    return max(1, min(PACKET_MESSAGES_MAX, round(rate * PACKING_WINDOW_S / stream_count)))


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
    rule = SplitRule(recording.split)
    plan = numbering_plan(recording.folder, format_path, feed_plan, rule, messages_max)
    encoder = TickEncoder(load_source_format(format_path), rule, feed_plan.source_stream_ids)
    with SourceJournalWriter(journal, plan) as writer:
        for batch_id, part in enumerate(sorted(recording.folder.glob("part-*.parquet"))[parts]):
            frames = frames_of(encoder.encode(pq.read_table(part)))
            if not batch_id:
                first_index = frames.record_index[0]
            writer.append_batch(batch_id, frames._replace(record_index=frames.record_index - first_index))
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
    end = _sent_end(journal)
    counts = dict.fromkeys(range(1, feed.shape.stream_count + 1), 0)
    with Tailer(journal) as tailer:
        while (batch := tailer.read_batch(READ_COUNT)) is not None:
            for index, stream, first, count in packets_in(batch):
                if index < end:
                    counts[stream] = first + count - 1
            if batch.next_index >= end:
                break
    return counts


class JournalLead:
    """Measures how far a source journal is ahead of its gateway; use it in a `with`.

    Each measurement reads only what was written since the one before.
    """

    def __init__(self, journal: Path) -> None:
        self._journal, self._tailer = journal, Tailer(journal)
        self._waiting: deque[tuple[int, int]] = deque()  # (index, message_count) of each packet
        self._count = 0  # of messages in them
        if begin := _sent_end(journal):
            self._tailer.to_index(begin)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tailer.close()

    def message_count(self) -> int:
        """The number of unsent messages, by the last position that the gateway stored."""
        while (batch := self._tailer.read_batch(READ_COUNT)) is not None:
            for index, _, _, count in packets_in(batch):
                self._waiting.append((index, count))
                self._count += count
        end = _sent_end(self._journal)
        while self._waiting and self._waiting[0][0] < end:
            self._count -= self._waiting.popleft()[1]
        return self._count


def _sent_end(journal: Path) -> int:
    """One past the last record of a source journal that its gateway has sent; 0 if it has sent nothing."""
    position = NamedPosition(journal / POSITION_NAME)
    try:
        return position.load() or 0
    finally:
        position.close()
