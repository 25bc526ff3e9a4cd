"""Plans the reading of an output journal: slices of one channel, one session and one roll cycle, from packet headers.

An output journal only grows. After a takeover, later packets may replace earlier ones from their first number on: that
is a *cut*. A provisional packet counts only if a later record commits it. Both are found here, because a slice cannot
know what follows it. Invariant: the slices, read with their cuts and commits, have each message of the journal once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pyspark.sql.datasource import InputPartition

from tandemfeed.feedcore.wire.output_packet import (
    ANNOUNCEMENT_BIT,
    HEARTBEAT_BIT,
    OUTPUT_HEADER_SIZE,
    OUTPUT_LAYOUT,
    OUTPUT_MAGIC,
    PROVISIONAL_BIT,
)
from tandemfeed.feedcore.wire.provisional_commit import COMMIT_MAGIC, Commit, decode_commit
from tandemfeed.journal import Batch, Tailer
from tandemfeed.spark_feed.spark.errors import TableError

HEADERS = OUTPUT_LAYOUT.dtype(
    (
        "magic",
        "flags",
        "channel_id",
        "session",
        "epoch",
        "message_count",
        "run_count",
        "first_message_seq",
        "first_input_seq",
        "source_sent_at_ns",
    )
)
COMMIT_NUMBER = int.from_bytes(COMMIT_MAGIC, "little")
SCAN_COUNT = 16_384  # packets
SLICE_MESSAGES = 1_000_000  # a task of about a second
NO_LIMIT = (1 << 63) - 1
Place = tuple[int, int]  # session, channel_id


@dataclass(slots=True)
class JournalSlice(InputPartition):
    """Part of a journal, for one task.

    Attributes:
        first_index, end_index: its records.
        cuts: (index, message_seq): records before the index have no messages from that number on.
        commits: of provisional packets of the channel and session.
        low_seq, high_seq: at least the range of its message numbers.
        low_time_ns, high_time_ns: at least the range of the times at which its records were appended.
    """

    session: int
    channel_id: int
    first_index: int
    end_index: int
    message_count: int
    low_seq: int
    high_seq: int
    low_time_ns: int
    high_time_ns: int
    cuts: tuple[tuple[int, int], ...] = ()
    commits: tuple[Commit, ...] = ()

    def limits(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each record, the number from which on its messages were replaced."""
        places = np.array([index for index, _ in self.cuts], np.int64)
        seqs = np.array([*(seq for _, seq in self.cuts), NO_LIMIT], np.int64)
        least_from = np.minimum.accumulate(seqs[::-1])[::-1]  # of this cut and all later ones
        return least_from[np.searchsorted(places, indices, side="right")]

    def committed_epoch(self, index: int, first_input_seq: int) -> int:
        """The epoch that a provisional packet of the slice belongs to; 0 if it was not committed."""
        for each in self.commits:
            if each.begin_index <= index < each.end_index and first_input_seq >= each.first_input_seq:
                return each.epoch
        return 0


@dataclass(slots=True)
class _Channel:
    """What has been found of a channel in a session."""

    slices: list[JournalSlice] = field(default_factory=list)
    cuts: list[tuple[int, int]] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    provisional: list[tuple[int, int, int, int]] = field(default_factory=list)  # index, first input_seq, first and end
    end_seq: int = 0

    def note(self, indices: NDArray[np.int64], headers: NDArray[np.void]) -> None:
        """Note numbered packets, in the order of the journal."""
        firsts = headers["first_message_seq"].astype(np.int64)
        ends = firsts + headers["message_count"]
        reached = np.maximum.accumulate(np.concatenate([[self.end_seq], ends]))
        for place in np.flatnonzero(firsts < reached[:-1]).tolist():
            self.cuts.append((int(indices[place]), int(firsts[place])))
        self.end_seq = int(reached[-1])  # so a newer epoch cuts until it passes the older one; further cuts do no harm

    def commit(self, commit: Commit) -> None:
        """Provisional packets before here count."""
        self.commits.append(commit)
        committed = [each for each in self.provisional if commit.begin_index <= each[0] < commit.end_index]
        for index, _, first, end in committed:
            if first < self.end_seq:
                self.cuts.append((index, first))
            self.end_seq = max(self.end_seq, end)
        self.provisional.clear()


def plan_slices(journal: Path, *, may_skip_damage: bool = False) -> list[JournalSlice]:
    """The slices of an output journal, up to its present end.

    Args:
        may_skip_damage: leave out records that are damaged.

    Raises:
        TableError: there is no journal, it has no output packets, or it is damaged.
    """
    if not journal.is_dir():
        raise TableError(f"{journal}: no such folder; give the folder of an adapter's output journal")
    channels: dict[Place, _Channel] = {}
    with Tailer(journal) as tailer:
        expected_index = -1
        while (batch := tailer.read_batch(SCAN_COUNT, mixed=True)) is not None:
            _scan(batch, channels, is_new_cycle=batch.first_index != expected_index)
            expected_index = batch.next_index
        if tailer.lost_count and not may_skip_damage:
            raise TableError(
                f"{journal}: {tailer.lost_count} damaged records; `tandemfeed journal verify {journal}` lists them; "
                "read the journal of another adapter, or set option 'damaged' to 'skip'"
            )
    if not channels and expected_index >= 0:
        raise TableError(f"{journal} has no output packets; give the folder of an adapter's output journal")
    return list(_completed(channels))


def _scan(batch: Batch, channels: dict[Place, _Channel], *, is_new_cycle: bool) -> None:
    headers = batch.heads(OUTPUT_HEADER_SIZE).view(HEADERS).reshape(-1)
    is_packet = (headers["magic"] == OUTPUT_MAGIC) & (headers["flags"] & (HEARTBEAT_BIT | ANNOUNCEMENT_BIT) == 0)
    rare = (headers["magic"] == COMMIT_NUMBER) | (is_packet & (headers["flags"] & PROVISIONAL_BIT != 0))
    is_numbered = is_packet & ~rare
    begin = 0
    for place in [*np.flatnonzero(rare).tolist(), len(batch)]:
        chosen = begin + np.flatnonzero(is_numbered[begin:place])
        for where, members in _by_channel(headers[chosen]):
            channels.setdefault(where, _Channel()).note(batch.first_index + chosen[members], headers[chosen[members]])
        if place < len(batch):
            _note_rare(batch[place].tobytes(), batch.first_index + place, headers[place], channels)
        begin = place + 1
    chosen = np.flatnonzero(is_packet)
    for where, members in _by_channel(headers[chosen]):
        _extend(channels.setdefault(where, _Channel()).slices, where, batch, chosen[members], headers, is_new_cycle)


def _by_channel(headers: NDArray[np.void]) -> Iterator[tuple[Place, NDArray[np.int64]]]:
    """The places of each channel's headers."""
    if not len(headers):
        return
    keys = headers["session"].astype(np.int64) << 16 | headers["channel_id"]
    for key in np.unique(keys).tolist():
        yield (key >> 16, key & 0xFFFF), np.flatnonzero(keys == key)


def _note_rare(record: bytes, index: int, header: np.void, channels: dict[Place, _Channel]) -> None:
    if header["magic"] == COMMIT_NUMBER:
        commit = decode_commit(record)
        channels.setdefault((commit.session, commit.channel_id), _Channel()).commit(commit)
        return
    first = int(header["first_message_seq"])
    place = index, int(header["first_input_seq"]), first, first + int(header["message_count"])
    channels.setdefault((int(header["session"]), int(header["channel_id"])), _Channel()).provisional.append(place)


def _extend(
    slices: list[JournalSlice],
    where: Place,
    batch: Batch,
    places: NDArray[np.int64],
    headers: NDArray[np.void],
    is_new_cycle: bool,
) -> None:
    """Add a channel's packets to its last slice, or to a new one."""
    counts = headers["message_count"][places].astype(np.int64)
    firsts = headers["first_message_seq"][places].astype(np.int64)
    times = batch.appended_at_ns[places]
    found = JournalSlice(
        *where,
        batch.first_index + int(places[0]),
        batch.first_index + int(places[-1]) + 1,
        int(counts.sum()),
        int(firsts.min()),
        int((firsts + counts).max()) - 1,
        int(times.min()),
        int(times.max()),
    )
    if is_new_cycle or not slices or slices[-1].message_count + found.message_count > SLICE_MESSAGES:
        slices.append(found)
        return
    last = slices[-1]
    last.end_index = found.end_index
    last.message_count += found.message_count
    last.low_seq, last.high_seq = min(last.low_seq, found.low_seq), max(last.high_seq, found.high_seq)
    last.low_time_ns = min(last.low_time_ns, found.low_time_ns)
    last.high_time_ns = max(last.high_time_ns, found.high_time_ns)


def _completed(channels: dict[Place, _Channel]) -> Iterator[JournalSlice]:
    for _, channel in sorted(channels.items()):
        cuts, commits = tuple(sorted(channel.cuts)), tuple(channel.commits)
        for each in channel.slices:
            if each.message_count:
                each.cuts = tuple(cut for cut in cuts if cut[0] > each.first_index)
                each.commits = commits
                yield each
