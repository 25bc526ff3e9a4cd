"""Compares a source journal and the output journals of a session's adapters.

Three questions: does each source message occur in an adapter's journal; which messages does each adapter lack; are all
copies of a message equal. Copies are compared by the digests of buckets. Only buckets that differ are read again,
message by message, so that absent messages are not mistaken for different ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandemfeed.feedcore.range_set import RangeSet
from tandemfeed.offline.reconciliation.conversion import ConversionResult
from tandemfeed.offline.reconciliation.output_copy import (
    BUCKET,
    ChannelCopy,
    OutputCopy,
    ReconciliationError,
    Survey,
    messages,
    newest_session,
    read_copy,
    survey,
)
from tandemfeed.offline.reconciliation.result import (
    NO_CHANNEL,
    AdapterChannel,
    ChannelResult,
    Epoch,
    Reconciliation,
    StreamResult,
)
from tandemfeed.offline.reconciliation.source_copy import SourceCopy

Place = tuple[int, int]  # channel_id, bucket
Reader = tuple[int, int]  # channel_id, source_stream_id
EpochStarts = Mapping[tuple[int, int], int]  # by channel_id and epoch


class _Members(NamedTuple):
    """Which messages of a bucket a journal has, and their digests."""

    is_there: NDArray[np.bool_]
    digests: NDArray[np.uint64]


def reconcile(
    source: SourceCopy | None,
    journals: Sequence[Path],
    session: int = 0,
    convert_again: Callable[[Sequence[Survey], EpochStarts], ConversionResult] | None = None,
    readers: Collection[Reader] = (),
) -> Reconciliation:
    """Compare journals.

    Args:
        source: None: only compare the adapters with each other.
        journals: of the adapters' output.
        session: 0: that of the source journal, or the newest.
        convert_again: compares the journals with a conversion of the source journal.
        readers: what the feed's channels read; without it, what each channel has some messages of.

    Raises:
        ReconciliationError: a journal cannot be used.
    """
    session = session or (source.session if source else max(map(newest_session, journals), default=0))
    if source is not None and source.session != session:
        raise ReconciliationError(
            f"{source.journal} has session {source.session}; give the source journal of session {session}"
        )
    surveys = [survey(journal, session) for journal in journals]
    starts = _epoch_starts(surveys)
    copies = [read_copy(each, starts) for each in surveys]
    suspects = _suspects(copies)
    again = [_read_again(copy, starts, suspects) for copy in copies] if suspects else []
    channel_ids = sorted({channel_id for copy in copies for channel_id in copy.channels})
    return Reconciliation(
        session,
        source,
        tuple(surveys),
        tuple(_streams(source, copies, readers)),
        tuple(_channel(each, copies, starts, _compared(each, copies, suspects, again)) for each in channel_ids),
        convert_again(surveys, starts) if convert_again is not None else None,
    )


def _epoch_starts(surveys: Iterable[Survey]) -> dict[tuple[int, int], int]:
    starts: dict[tuple[int, int], int] = {}
    for each in surveys:
        for where, first in each.epoch_starts.items():
            starts[where] = min(first, starts.get(where, first))
    return starts


def _suspects(copies: Sequence[OutputCopy]) -> set[Place]:
    """The buckets of which journals have different messages, or not the same ones."""
    found: dict[Place, set[object]] = {}
    for copy in copies:
        for channel_id, channel in copy.channels.items():
            for number, bucket in channel.buckets.items():
                found.setdefault((channel_id, number), set()).add(bucket)
    return {place for place, buckets in found.items() if len(buckets) > 1}


def _read_again(copy: OutputCopy, starts: EpochStarts, suspects: set[Place]) -> dict[Place, _Members]:
    """What a journal has of each suspect bucket."""
    found: dict[Place, _Members] = {}
    for each in messages(copy.survey, starts):
        numbers = each.seqs // BUCKET
        for number in np.unique(numbers).tolist():
            place = each.channel_id, number
            if place in suspects:
                empty = _Members(np.zeros(BUCKET, np.bool_), np.zeros(BUCKET, np.uint64))
                members = found.setdefault(place, empty)
                chosen = numbers == number
                members.is_there[each.seqs[chosen] % BUCKET] = True
                members.digests[each.seqs[chosen] % BUCKET] = each.digests[chosen]
    return found


def _compared(
    channel_id: int, copies: Sequence[OutputCopy], suspects: set[Place], again: Sequence[Mapping[Place, _Members]]
) -> tuple[int, RangeSet]:
    """How many messages have several copies, and those whose copies differ."""
    count, different = 0, RangeSet()
    channels = [copy.channels[channel_id] for copy in copies if channel_id in copy.channels]
    for number in sorted({number for each in channels for number in each.buckets}):
        if (channel_id, number) not in suspects:
            having = [each.buckets[number] for each in channels if number in each.buckets]
            count += having[0].message_count if len(having) > 1 else 0
            continue
        members = [each[channel_id, number] for each in again if (channel_id, number) in each]
        is_there, digests = (np.array(rows) for rows in zip(*members, strict=True))
        is_several = is_there.sum(axis=0) > 1
        count += int(is_several.sum())
        least = np.where(is_there, digests, ~np.uint64(0)).min(axis=0)
        most = np.where(is_there, digests, np.uint64(0)).max(axis=0)
        for place in np.flatnonzero(is_several & (least != most)).tolist():
            different.add(number * BUCKET + place, number * BUCKET + place + 1)
    return count, different


def _channel(
    channel_id: int, copies: Sequence[OutputCopy], starts: EpochStarts, compared: tuple[int, RangeSet]
) -> ChannelResult:
    channels = [copy.channels.get(channel_id, ChannelCopy()) for copy in copies]
    together = RangeSet(each for channel in channels for each in channel.messages)
    end_seq = together.end if together else 1
    adapters = (
        AdapterChannel(
            copy.survey.journal,
            min(copy.survey.adapter_ids, default=0),
            channel.messages.count,
            channel.digest,
            channel.replaced_count,
            channel.repeated_count,
            channel.messages.missing(1, end_seq),
        )
        for copy, channel in zip(copies, channels, strict=True)
    )
    active_ids = {where: adapter_id for copy in copies for where, adapter_id in copy.survey.active_ids.items()}
    epochs = (
        Epoch(where[1], first, active_ids.get(where, 0))
        for where, first in sorted(starts.items())
        if where[0] == channel_id
    )
    return ChannelResult(channel_id, end_seq, tuple(epochs), tuple(adapters), together.missing(1, end_seq), *compared)


def _streams(
    source: SourceCopy | None, copies: Sequence[OutputCopy], readers: Collection[Reader]
) -> Iterable[StreamResult]:
    """Each source stream in each channel that reads it."""
    found = {*readers, *(each for copy in copies for each in (*copy.taken, *copy.gaps))}
    together = {each: RangeSet(part for copy in copies for part in copy.taken.get(each, ())) for each in found}
    ends = {each.source_stream_id: each.message_count + 1 for each in source.streams} if source else {}
    if source is None:
        for (_, stream_id), ranges in together.items():
            ends[stream_id] = max(ends.get(stream_id, 1), ranges.end if ranges else 1)
    unread = ends.keys() - {stream_id for _, stream_id in found}
    for reader in sorted(found | {(NO_CHANNEL, stream_id) for stream_id in unread}):
        channel_id, stream_id = reader
        taken = {copy.survey.journal: copy.taken.get(reader, RangeSet()) for copy in copies}
        all_taken, end = together.get(reader, RangeSet()), ends.get(stream_id, 1)
        yield StreamResult(
            channel_id,
            stream_id,
            end,
            all_taken.missing(1, end),
            {journal: ranges.missing(1, end) for journal, ranges in taken.items()},
            RangeSet(part for copy in copies for part in copy.gaps.get(reader, ())),
            all_taken.within(end, max(end, all_taken.end if all_taken else 1)),
            sum(copy.taken_count.get(reader, 0) - taken[copy.survey.journal].count for copy in copies),
        )
