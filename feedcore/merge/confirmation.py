"""confirm=2: lets through what two adapters transmitted with equal source identity and equal bytes.

Stands before the merge. A copy waits until another adapter's equal copy of the same `input_seq` comes; where packet
boundaries differ, what two packets have in common is confirmed and the rest goes on waiting. Two copies that differ let
nothing through until a third agrees with one of them.

Invariant: what it lets through was transmitted equally by two different adapters.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.merge.comparison import are_equal, divergence, is_same_packet
from tandemfeed.feedcore.merge.effects import MergeEffect
from tandemfeed.feedcore.merge.place import Place, end_place, first_place
from tandemfeed.feedcore.range_set import RangeSet
from tandemfeed.feedcore.wire.output_packet import OutputPacket
from tandemfeed.feedcore.wire.packet_parts import part_of

FIRST = attrgetter("first_input_seq")


class Stretch(NamedTuple):
    """Consecutive source messages of which either some copy waits or none does."""

    first: Place
    end: Place
    is_waiting: bool


class Confirmation:
    """Copies of one channel that wait for another adapter's.

    Args:
        count_max: packets waiting; beyond it the newest are dropped: they can be asked for again.
    """

    def __init__(self, channel_id: int, counters: CounterSet, count_max: int) -> None:
        self._channel_id = channel_id
        self._counters = counters
        self._count_max = count_max
        self._waiting: list[OutputPacket] = []  # ascending by first_input_seq
        self._longest = 0  # source messages in the longest packet that ever waited
        self._alarmed: dict[tuple[int, int, int, int], None] = {}  # (first, end, adapters): each difference once

    def on_packet(self, packet: OutputPacket, effects: list[MergeEffect]) -> list[OutputPacket]:
        """A copy of any adapter's.

        Returns:
            What it confirms, as packets; parts of it where boundaries differ.

        Raises:
            PacketRefused: MALFORMED frames.
        """
        confirmed = []
        pieces = [packet]
        while pieces:
            piece = pieces.pop()
            for known in self._overlapping(piece.first_input_seq, piece.end_input_seq):
                begin = max(known.first_input_seq, piece.first_input_seq)
                end = min(known.end_input_seq, piece.end_input_seq)
                if known.adapter_id == piece.adapter_id:
                    if known.first_input_seq == piece.first_input_seq and is_same_packet(known, piece):
                        break  # it waits already
                elif are_equal(known, piece, begin, end):
                    confirmed.append(part_of(piece, begin, end))
                    self._remove(known)
                    for rest in _without(known, begin, end):
                        self.keep(rest)
                    pieces += _without(piece, begin, end)
                    break
                else:
                    self._alarm(known, piece, begin, end, effects)
            else:
                self.keep(piece)
        return sorted(confirmed, key=FIRST)

    def keep(self, packet: OutputPacket) -> None:
        """Let a copy wait."""
        if len(self._waiting) >= self._count_max:
            if packet.first_input_seq >= self._waiting[-1].first_input_seq:
                return
            self._waiting.pop()
        insort(self._waiting, packet, key=FIRST)
        self._longest = max(self._longest, packet.end_input_seq - packet.first_input_seq)

    def passed(self, next_input_seq: int) -> list[OutputPacket]:
        """Copies that lie before what is delivered next: they wait no more."""
        if not self._waiting or self._waiting[0].first_input_seq >= next_input_seq:
            return []
        begun = self._waiting[: bisect_left(self._waiting, next_input_seq, key=FIRST)]
        self._waiting[: len(begun)] = [packet for packet in begun if packet.end_input_seq > next_input_seq]
        return [packet for packet in begun if packet.end_input_seq <= next_input_seq]

    def drop_superseded(self, end_of: Callable[[int], int]) -> None:
        """Forget copies that no longer count whole. `end_of`: by epoch, one past the last `input_seq` it decided."""
        self._waiting = [packet for packet in self._waiting if packet.end_input_seq <= end_of(packet.epoch)]

    def split(self, first: Place, end: Place) -> list[Stretch]:
        """What lies between two places, as stretches."""
        waiting, message_seqs = RangeSet(), dict((first, end))
        for packet in self._overlapping(first.input_seq, end.input_seq):
            start, stop = max(first, first_place(packet)), min(end, end_place(packet))
            waiting.add(start.input_seq, stop.input_seq)
            message_seqs |= (start, stop)
        ranges = [(*each, True) for each in waiting]
        ranges += [(*each, False) for each in waiting.missing(first.input_seq, end.input_seq)]
        return [
            Stretch(Place(begin, message_seqs[begin]), Place(stop, message_seqs[stop]), is_waiting)
            for begin, stop, is_waiting in sorted(ranges)
        ]

    def adapters_with(self, first_input_seq: int, end_input_seq: int) -> tuple[int, ...]:
        """Whose copies of any of these wait."""
        return tuple(sorted({packet.adapter_id for packet in self._overlapping(first_input_seq, end_input_seq)}))

    # ---- inside ----

    def _alarm(
        self, known: OutputPacket, piece: OutputPacket, begin: int, end: int, effects: list[MergeEffect]
    ) -> None:
        low, high = sorted((known.adapter_id, piece.adapter_id))
        if (key := (begin, end, low, high)) in self._alarmed:
            return
        self._alarmed[key] = None
        if len(self._alarmed) > self._count_max:
            del self._alarmed[next(iter(self._alarmed))]
        self._counters.add(Counter.MERGE_DIVERGED)
        effects.append(divergence(self._channel_id, known, piece, begin, end))

    def _overlapping(self, first_input_seq: int, end_input_seq: int) -> list[OutputPacket]:
        """What waits of these, ascending."""
        low = bisect_right(self._waiting, first_input_seq - self._longest, key=FIRST)
        high = bisect_left(self._waiting, end_input_seq, key=FIRST)
        return [packet for packet in self._waiting[low:high] if packet.end_input_seq > first_input_seq]

    def _remove(self, packet: OutputPacket) -> None:
        low = bisect_left(self._waiting, packet.first_input_seq, key=FIRST)
        del self._waiting[self._waiting.index(packet, low)]


def _without(packet: OutputPacket, begin: int, end: int) -> list[OutputPacket]:
    """What is left of a packet before and after a part of it."""
    bounds = ((packet.first_input_seq, begin), (end, packet.end_input_seq))
    return [part_of(packet, first, stop) for first, stop in bounds if first < stop]
