"""What an adapter's output journal has of a session: which messages, from which source messages, with which digests.

Two passes: over the packets' headers, to find epochs and commits, which say what counts; then over the messages. The
newest epoch that any adapter knows of decides from its first `input_seq` on, so the second pass needs the first pass of
every journal. Invariant: memory grows with gaps and with buckets of 4,096 messages, never with messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandemfeed.feedcore.range_set import RangeSet
from tandemfeed.feedcore.wire.output_packet import (
    ANNOUNCEMENT_BIT,
    FROM_ACTIVE_BIT,
    HEARTBEAT_BIT,
    OUTPUT_FRAME_SIZE,
    OUTPUT_HEADER_SIZE,
    OUTPUT_LAYOUT,
    OUTPUT_MAGIC,
    PROVISIONAL_BIT,
)
from tandemfeed.feedcore.wire.provisional_commit import COMMIT_MAGIC, Commit, decode_commit
from tandemfeed.journal import Batch, Tailer
from tandemfeed.offline.reconciliation import kernels

HEADER_FIELDS = "magic flags channel_id adapter_id session epoch run_count first_message_seq first_input_seq"
HEADERS = OUTPUT_LAYOUT.dtype(HEADER_FIELDS.split())
COMMIT_NUMBER = int.from_bytes(COMMIT_MAGIC, "little")
READ_COUNT = 8_192  # packets
BUCKET = 4_096  # messages
NO_LIMIT = (1 << 63) - 1


class ReconciliationError(Exception):
    """A journal cannot be reconciled; the text says why and what to do."""


class Bucket(NamedTuple):
    """The sum of the digests of consecutive message numbers, and how many messages there are."""

    message_count: int
    digest: int


@dataclass(slots=True)
class Survey:
    """What the headers of a session in an output journal say.

    Attributes:
        adapter_ids: which adapters wrote it; there should be one.
        epoch_starts: by channel and epoch, the first `input_seq` of the epoch in this journal.
        active_ids: by channel and epoch, the adapter that transmitted as active, if this one did.
        damaged_count: damaged records of the journal.
        end_index: where the journal ended; an adapter may append meanwhile.
    """

    journal: Path
    session: int
    adapter_ids: set[int] = field(default_factory=set)
    epoch_starts: dict[tuple[int, int], int] = field(default_factory=dict)
    active_ids: dict[tuple[int, int], int] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)
    damaged_count: int = 0
    end_index: int = 0


@dataclass(slots=True)
class ChannelCopy:
    """A channel's messages in a journal.

    Attributes:
        messages: their numbers.
        buckets: by message number divided by BUCKET.
        replaced_count: messages that a newer epoch replaced.
        repeated_count: messages that the journal has more than once.
    """

    messages: RangeSet = field(default_factory=RangeSet)
    buckets: dict[int, Bucket] = field(default_factory=dict)
    replaced_count: int = 0
    repeated_count: int = 0

    @property
    def digest(self) -> int:
        """Of all messages."""
        return sum(each.digest for each in self.buckets.values()) % (1 << 64)


@dataclass(slots=True)
class OutputCopy:
    """A session in an output journal.

    Attributes:
        taken: by channel and source stream, the source messages that made the messages, or made none.
        taken_count: the same, each as often as it was taken.
        gaps: by channel and source stream, the source messages that an active adapter declared lost.
    """

    survey: Survey
    channels: dict[int, ChannelCopy] = field(default_factory=dict)
    taken: dict[tuple[int, int], RangeSet] = field(default_factory=dict)
    taken_count: dict[tuple[int, int], int] = field(default_factory=dict)
    gaps: dict[tuple[int, int], RangeSet] = field(default_factory=dict)


class Found(NamedTuple):
    """Messages of a channel, and the runs that they are from."""

    channel_id: int
    seqs: NDArray[np.int64]
    digests: NDArray[np.uint64]
    runs: NDArray[np.int64]
    replaced_count: int
    repeated_count: int


class Packet(NamedTuple):
    """A packet of a journal. Attributes: limit_input: newer epochs replaced what is from this `input_seq` on."""

    data: bytes
    limit_input: int


def newest_session(journal: Path) -> int:
    """The newest session of an output journal; 0 if it has no packet.

    Raises:
        ReconciliationError: it is not an output journal.
    """
    newest = record_count = 0
    with _opened(journal) as tailer:
        for _, headers in _headers(tailer):
            record_count += len(headers)
            sessions = headers["session"][headers["magic"] == OUTPUT_MAGIC]
            newest = max(newest, int(sessions.max(initial=0)))
    if record_count and not newest:
        raise ReconciliationError(f"{journal} has no output packets; give the folder of an adapter's output journal")
    return newest


def survey(journal: Path, session: int) -> Survey:
    """Read the headers of a session.

    Raises:
        ReconciliationError: there is no such journal.
    """
    found = Survey(journal, session)
    with _opened(journal) as tailer:
        for batch, headers in _headers(tailer):
            _survey_batch(found, batch, headers)
            found.end_index = batch.next_index
        found.damaged_count = tailer.lost_count
    return found


def read_copy(found: Survey, epoch_starts: Mapping[tuple[int, int], int]) -> OutputCopy:
    """Read the messages of a session.

    Args:
        epoch_starts: of all journals.
    """
    copy = OutputCopy(found)
    for each in messages(found, epoch_starts):
        channel = copy.channels.setdefault(each.channel_id, ChannelCopy())
        channel.replaced_count += each.replaced_count
        channel.repeated_count += each.repeated_count
        _add_ranges(channel.messages, each.seqs, each.seqs + 1)
        _add_buckets(channel.buckets, each.seqs, each.digests)
        _add_runs(copy, each.channel_id, each.runs)
    return copy


def messages(found: Survey, epoch_starts: Mapping[tuple[int, int], int]) -> Iterator[Found]:
    """The messages of a session that count, in the order of the journal.

    Raises:
        ReconciliationError: a packet is malformed.
    """
    next_input: dict[tuple[int, int], NDArray[np.int64]] = {}
    for where, batch, headers, places in _chosen_packets(found):
        counts = next_input.setdefault(where, np.zeros(kernels.COUNT_SIZE, np.int64))
        limit = _limit(epoch_starts, where)
        yield _digest(found.journal, where[0], batch, places, headers[places], limit, counts)


def packets(found: Survey, epoch_starts: Mapping[tuple[int, int], int], channel_id: int) -> Iterator[Packet]:
    """The packets of a channel that count, at least in part, in the order of the journal."""
    for where, batch, _, places in _chosen_packets(found):
        if where[0] == channel_id:
            limit = _limit(epoch_starts, where)
            yield from (Packet(batch[place].tobytes(), limit) for place in places.tolist())


def _chosen_packets(found: Survey) -> Iterator[tuple[tuple[int, int], Batch, NDArray[np.void], NDArray[np.int64]]]:
    """Of each channel and epoch: records, their headers, and the places of the packets with committed decisions."""
    with _opened(found.journal) as tailer:
        for batch, headers in _headers(tailer, found.end_index):
            epochs = headers["epoch"].astype(np.int64)
            is_chosen = _is_decided(headers, found.session)
            for place in np.flatnonzero(is_chosen & (headers["flags"] & PROVISIONAL_BIT != 0)).tolist():
                epochs[place] = _committed_epoch(found.commits, batch.first_index + place, headers[place])
                is_chosen[place] = epochs[place] > 0
            places = np.flatnonzero(is_chosen)
            for where, members in _by_epoch(headers[places], epochs[places]):
                yield where, batch, headers, places[members]


def _opened(journal: Path) -> Tailer:
    if not journal.is_dir():
        raise ReconciliationError(f"{journal}: no such folder; give the folder of an adapter's output journal")
    return Tailer(journal)


def _headers(tailer: Tailer, end_index: int = NO_LIMIT) -> Iterator[tuple[Batch, NDArray[np.void]]]:
    while (batch := tailer.read_batch(READ_COUNT, mixed=True)) is not None and batch.first_index < end_index:
        batch = batch.until(end_index)
        yield batch, batch.heads(OUTPUT_HEADER_SIZE).view(HEADERS).reshape(-1)


def _survey_batch(found: Survey, batch: Batch, headers: NDArray[np.void]) -> None:
    for place in np.flatnonzero(headers["magic"] == COMMIT_NUMBER).tolist():
        commit = decode_commit(batch[place].tobytes())
        if commit.session == found.session:
            found.commits.append(commit)
            _note_start(found, commit.channel_id, commit.epoch, commit.first_input_seq)
    chosen = headers[_is_decided(headers, found.session) & (headers["flags"] & PROVISIONAL_BIT == 0)]
    for (channel_id, epoch), members in _by_epoch(chosen, chosen["epoch"]):
        packets = chosen[members]
        _note_start(found, channel_id, epoch, int(packets["first_input_seq"].min()))
        found.adapter_ids.update(np.unique(packets["adapter_id"]).tolist())
        if (packets["flags"] & FROM_ACTIVE_BIT).any():
            found.active_ids[channel_id, epoch] = int(packets["adapter_id"][0])


def _is_decided(headers: NDArray[np.void], session: int) -> NDArray[np.bool_]:
    """Which records are packets with decisions of a session."""
    is_packet: NDArray[np.bool_] = (headers["magic"] == OUTPUT_MAGIC) & (headers["session"] == session)
    is_packet &= headers["flags"] & (HEARTBEAT_BIT | ANNOUNCEMENT_BIT) == 0
    return is_packet & (headers["run_count"] > 0)


def _by_epoch(
    headers: NDArray[np.void], epochs: NDArray[np.int64]
) -> Iterator[tuple[tuple[int, int], NDArray[np.int64]]]:
    """The places of the packets of each channel and epoch."""
    keys = headers["channel_id"].astype(np.int64) << 32 | epochs
    for key in np.unique(keys).tolist():
        yield (key >> 32, key & 0xFFFF_FFFF), np.flatnonzero(keys == key)


def _note_start(found: Survey, channel_id: int, epoch: int, first_input_seq: int) -> None:
    where = channel_id, epoch
    found.epoch_starts[where] = min(found.epoch_starts.get(where, NO_LIMIT), first_input_seq)


def _committed_epoch(commits: list[Commit], index: int, header: np.void) -> int:
    """The epoch that a provisional packet belongs to; 0 if it was not committed."""
    for each in commits:
        is_there = each.channel_id == header["channel_id"] and each.begin_index <= index < each.end_index
        if is_there and header["first_input_seq"] >= each.first_input_seq:
            return each.epoch
    return 0


def _limit(epoch_starts: Mapping[tuple[int, int], int], where: tuple[int, int]) -> int:
    """From which `input_seq` on newer epochs replaced an epoch of a channel."""
    channel_id, epoch = where
    newer = (start for (channel, each), start in epoch_starts.items() if channel == channel_id and each > epoch)
    return min(newer, default=NO_LIMIT)


def _digest(
    journal: Path,
    channel_id: int,
    batch: Batch,
    places: NDArray[np.int64],
    chosen: NDArray[np.void],
    limit_input: int,
    counts: NDArray[np.int64],
) -> Found:
    packets = np.empty((kernels.PACKET_ROWS, len(places)), np.int64)
    packets[kernels.START], packets[kernels.SIZE] = batch.starts[places], batch.sizes[places]
    packets[kernels.RUN_COUNT], packets[kernels.FIRST_INPUT] = chosen["run_count"], chosen["first_input_seq"]
    packets[kernels.FIRST_MESSAGE] = chosen["first_message_seq"]
    runs = np.empty((kernels.RUN_ROWS, int(packets[kernels.RUN_COUNT].sum())), np.int64)
    frames_max = int(packets[kernels.SIZE].sum()) // OUTPUT_FRAME_SIZE
    seqs, digests = np.empty(frames_max, np.int64), np.empty(frames_max, np.uint64)
    status = kernels.digest_packets(batch.data, packets, limit_input, runs, seqs, digests, counts)
    if status < 0:
        seq = int(chosen["first_message_seq"][-status - 1])
        raise ReconciliationError(
            f"{journal}: the packet of message {seq} of channel {channel_id} is malformed; reconcile an intact "
            "copy of the journal"
        )
    count = int(counts[kernels.MESSAGES])
    return Found(
        channel_id,
        seqs[:count],
        digests[:count],
        runs[:, : int(counts[kernels.RUNS])],
        int(counts[kernels.REPLACED]),
        int(counts[kernels.REPEATED]),
    )


def _add_ranges(ranges: RangeSet, firsts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
    """Add ranges in the order of a journal, where most of them touch."""
    if not len(firsts):
        return
    breaks = np.flatnonzero(firsts[1:] != ends[:-1]) + 1
    for first, last in zip([0, *breaks.tolist()], [*(breaks - 1).tolist(), -1], strict=True):
        ranges.add(int(firsts[first]), int(ends[last]))


def _add_buckets(buckets: dict[int, Bucket], seqs: NDArray[np.int64], digests: NDArray[np.uint64]) -> None:
    if not len(seqs):
        return
    numbers = seqs // BUCKET
    begins = np.concatenate([[0], np.flatnonzero(np.diff(numbers)) + 1])
    sums = np.add.reduceat(digests, begins).tolist()
    counts = np.diff(np.append(begins, len(seqs))).tolist()
    for number, count, total in zip(numbers[begins].tolist(), counts, sums, strict=True):
        before = buckets.get(number, Bucket(0, 0))
        buckets[number] = Bucket(before.message_count + count, (before.digest + total) % (1 << 64))


def _add_runs(copy: OutputCopy, channel_id: int, runs: NDArray[np.int64]) -> None:
    is_gap = runs[kernels.IS_GAP] != 0
    for stream_id in np.unique(runs[kernels.STREAM]).tolist():
        where = channel_id, stream_id
        of_stream = runs[kernels.STREAM] == stream_id
        for kind, ranges in ((~is_gap, copy.taken), (is_gap, copy.gaps)):
            chosen = runs[:, of_stream & kind]
            firsts, counts = chosen[kernels.FIRST_SOURCE], chosen[kernels.SOURCE_COUNT]
            _add_ranges(ranges.setdefault(where, RangeSet()), firsts, firsts + counts)
            if ranges is copy.taken:
                copy.taken_count[where] = copy.taken_count.get(where, 0) + int(counts.sum())
