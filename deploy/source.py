"""What a drill's source plays: a recording, and source journals made of it in advance.

The journal is made by the source job's own parts (`spark_feed.encoding`, `spark_feed.source_journal`), file by file as
Spark's micro-batches are: the same bytes, without a JVM that would take the processor from what is measured. Faults of
the driver itself need the real job; everything else plays a prepared journal.
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

from deploy.processes import ProcessFailed
from deploy.topology import EXAMPLES, SESSION, FeedLayout
from feedcore.documents.source_format import load_source_format
from journal import Tailer
from journal.named_position import NamedPosition
from spark_feed.encoding import TickEncoder, frames_of
from spark_feed.feed_plan import read_feed_plan
from spark_feed.job import numbering_plan
from spark_feed.recording import ROWS_PER_FILE
from spark_feed.source_journal import POSITION_NAME, SourceJournalWriter, former_packets
from spark_feed.split import SplitRule

PACKING_WINDOW_S = 0.002  # a packet waits at most about this long to fill: what low rates would otherwise cost
PACKET_MESSAGES_MAX = 36
READ_COUNT = 16_384


@dataclass(frozen=True, slots=True)
class Recording:
    """What is played. Attributes: split: how its rows become source streams."""

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
        rows_per_file: of what is generated; a file is a micro-batch of Spark's.

    Raises:
        ProcessFailed: with the command's own words.
    """
    out = folder / "recording"
    if source is None:
        arguments = ["generate", "--messages", str(message_count), "--symbols", str(symbols)]
        arguments += ["--rows-per-file", str(rows_per_file)]
    else:
        arguments = ["ingest", str(source), "--rows-per-file", "500"]
    command = [sys.executable, "-m", "deploy.command", "ticks", *arguments, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ProcessFailed(done.stderr.strip() or f"ticks ended with status {done.returncode}")
    manifest = json.loads(done.stdout.splitlines()[-1])
    is_single = manifest["symbol_count"] == 1
    return Recording(out, int(manifest["record_count"]), "index" if is_single else "letter")


def packet_size(rate: float, stream_count: int) -> int:
    """Messages that a source packet may wait for, at a rate over all streams of a feed."""
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
        session: 0: the one in the settings.
        parts: which of the recording's files.
        settings: the cluster's `cluster.toml`.
        messages_max: in a packet.
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
    """A recording as so many days, each with a journal and a session of its own: a file each, the last one the rest."""
    for day, journal in enumerate(journals):
        parts = slice(day, day + 1) if day + 1 < len(journals) else slice(day, None)
        prepare_journal(recording, feed, settings, journal, messages_max, session=SESSION + day, parts=parts)


def sent_counts(journal: Path, feed: FeedLayout) -> dict[int, int]:
    """How many messages of each source stream the gateway, which must have been stopped, has sent."""
    end = _sent_end(journal)
    counts = dict.fromkeys(range(1, feed.shape.stream_count + 1), 0)
    with Tailer(journal) as tailer:
        while (batch := tailer.read_batch(READ_COUNT)) is not None:
            for index, stream, first, count in former_packets(batch):
                if index < end:
                    counts[stream] = first + count - 1
            if batch.next_index >= end:
                break
    return counts


class Lead:
    """How far a source journal is ahead of its gateway. To look again costs what has been written and sent meanwhile.

    Use it in a `with`.
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
        """Messages that wait, by the place that the gateway noted last."""
        while (batch := self._tailer.read_batch(READ_COUNT)) is not None:
            for index, _, _, count in former_packets(batch):
                self._waiting.append((index, count))
                self._count += count
        end = _sent_end(self._journal)
        while self._waiting and self._waiting[0][0] < end:
            self._count -= self._waiting.popleft()[1]
        return self._count


def _sent_end(journal: Path) -> int:
    """One past the last record of a source journal that its gateway has sent; 0: it has sent nothing."""
    position = NamedPosition(journal / POSITION_NAME)
    try:
        return position.load() or 0
    finally:
        position.close()
