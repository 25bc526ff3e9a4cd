"""The places of provisional packets in the output journal, and which of them were committed.

A provisional packet has its sender's own numbers, counted from the sender's decided position, which mean nothing to
others. So the index finds it by its source messages. When the sender is granted a lease, its provisional packets become
the first decisions of the new epoch (the effect `CommitProvisional`). The journal keeps them as they were sent and adds
a record of the commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tandemfeed.feedcore.range_set import RangeSet
from tandemfeed.feedcore.wire.output_packet import PROVISIONAL_BIT, OutputFlag, OutputPacket
from tandemfeed.feedcore.wire.provisional_commit import Commit

PLACES_MAX = 65_536  # older ones cannot be found; these cover tens of seconds, longer than most outages


class ProvisionalPlace(NamedTuple):
    """One provisional packet in the journal."""

    journal_index: int
    first_input_seq: int
    end_input_seq: int
    first_message_seq: int
    spans: tuple[tuple[int, int, int], ...]  # source_stream_id, first source_seq, end


class ProvisionalIndex:
    """One channel's provisional packets. Not thread-safe.

    Attributes:
        places: the uncommitted packets, in the order of the journal.
        commits: all known commits.
    """

    def __init__(self) -> None:
        self.places: deque[ProvisionalPlace] = deque(maxlen=PLACES_MAX)
        self.commits: list[Commit] = []

    def note(self, packet: OutputPacket, index: int) -> None:
        """Note an appended packet."""
        spans = tuple((run.source_stream_id, run.first_source_seq, run.end_source_seq) for run in packet.runs)
        first_input, first_message = packet.first_input_seq, packet.first_message_seq
        self.places.append(ProvisionalPlace(index, first_input, packet.end_input_seq, first_message, spans))

    def choose(
        self, channel_id: int, epoch: int, first_input_seq: int, end_input_seq: int, session: int
    ) -> Commit | None:
        """The commit of the newest packets within these `input_seq`; None if none is known.

        An earlier outage may have left packets with the same numbers. They come before a place where numbers decrease.
        """
        chosen: list[ProvisionalPlace] = []
        limit = end_input_seq
        for place in reversed(self.places):
            if place.end_input_seq > limit:
                if chosen:
                    break
                continue
            if place.first_input_seq < first_input_seq:
                break
            chosen.append(place)
            limit = place.first_input_seq
        if not chosen:
            return None
        begin_index, end_index = chosen[-1].journal_index, chosen[0].journal_index + 1
        return Commit(channel_id, epoch, first_input_seq, end_input_seq, begin_index, end_index, session)

    def commit(self, commit: Commit) -> list[ProvisionalPlace]:
        """Remember a commit and return the packets that it turned into decisions. The others no longer count."""
        self.commits.append(commit)
        places = [
            place
            for place in self.places
            if commit.holds(place.journal_index, place.first_input_seq, place.end_input_seq)
        ]
        self.places.clear()
        return places

    def as_committed(self, packet: OutputPacket, index: int) -> OutputPacket | None:
        """The packet as a decision: a provisional one gets the epoch that committed it, or is None if none did."""
        if not packet.flags & PROVISIONAL_BIT:
            return packet
        for commit in self.commits:
            if commit.holds(index, packet.first_input_seq, packet.end_input_seq):
                runs = tuple(run._replace(epoch=commit.epoch) for run in packet.runs)
                flags = packet.flags & ~PROVISIONAL_BIT | OutputFlag.FROM_ACTIVE
                return packet._replace(flags=flags, epoch=commit.epoch, runs=runs)
        return None


def holding(places: Iterable[ProvisionalPlace], wanted: Mapping[int, RangeSet]) -> list[int]:
    """The places in the journal of packets with any of these source messages, by source stream, then ascending.

    Args:
        places: ascending.
        wanted: source_stream_id -> source messages.
    """
    found: dict[int, list[int]] = {stream: [] for stream in sorted(wanted)}
    for place in places:
        for stream, first, end in place.spans:
            if stream in wanted and wanted[stream].overlaps(first, end):
                found[stream].append(place.journal_index)
                break
    return [index for indices in found.values() for index in indices]
