"""confirm=2: passes on what two adapters transmitted with equal source identity and equal bytes.

It precedes the merge. A copy waits until another adapter's equal copy of the same `input_seq` arrives. Where packet
boundaries differ, the common part of two packets is confirmed and the rest continues to wait. If two copies differ,
neither passes until a third agrees with one of them.

Invariant: two different adapters transmitted equal copies of everything that it passes on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.merge.copies.comparison import are_equal, divergence, is_same_packet
from tandemfeed.feedcore.merge.effects import MergeEffect
from tandemfeed.feedcore.merge.history.place import Place, end_place, first_place
from tandemfeed.feedcore.range_set import RangeSet
from tandemfeed.feedcore.wire.output_packet import OutputPacket
from tandemfeed.feedcore.wire.packet_parts import part_of

FIRST = attrgetter("first_input_seq")


class Stretch(NamedTuple):
    """Consecutive source messages; a copy waits for each of them (`is_waiting`), or for none."""

    first: Place
    end: Place
    is_waiting: bool


class Confirmation:
    """Copies of one channel that wait for another adapter's copy.

    Args:
        count_max: how many packets may wait; beyond it those with the highest numbers are dropped, because they can be
            requested again.
    """

    def __init__(self, channel_id: int, counters: CounterSet, count_max: int) -> None:
        self._channel_id = channel_id
        self._counters = counters
        self._count_max = count_max
        self._waiting: list[OutputPacket] = []  # ascending by first_input_seq
        self._longest = 0  # source messages in the longest packet that ever waited
        self._alarmed: dict[tuple[int, int, int, int], None] = {}  # (first, end, adapters) of reported differences

    def on_packet(self, packet: OutputPacket, effects: list[MergeEffect]) -> list[OutputPacket]:
        """Take any adapter's copy.

        Returns:
            The packets that it confirms; parts of them where boundaries differ.

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
                        break  # it is waiting already
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
        """Add a copy to those that wait."""
        if len(self._waiting) >= self._count_max:
            if packet.first_input_seq >= self._waiting[-1].first_input_seq:
                return
            self._waiting.pop()
        insort(self._waiting, packet, key=FIRST)
        self._longest = max(self._longest, packet.end_input_seq - packet.first_input_seq)

    def passed(self, next_input_seq: int) -> list[OutputPacket]:
        """Remove and return the copies that lie before the next source message to deliver."""
        begun = self._waiting[: bisect_left(self._waiting, next_input_seq, key=FIRST)]
        self._waiting[: len(begun)] = [packet for packet in begun if packet.end_input_seq > next_input_seq]
        return [packet for packet in begun if packet.end_input_seq <= next_input_seq]

    def drop_superseded(self, end_of: Callable[[int], int]) -> None:
        """Forget copies that no longer count as a whole.

        Args:
            end_of: by epoch, one past the last `input_seq` that it decided.
        """
        self._waiting = [packet for packet in self._waiting if packet.end_input_seq <= end_of(packet.epoch)]

    def split(self, first: Place, end: Place) -> list[Stretch]:
        """Split what lies between two places into stretches."""
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
        """The adapters whose copies of any of these source messages wait."""
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
        """The waiting packets that contain any of these source messages, ascending."""
        low = bisect_right(self._waiting, first_input_seq - self._longest, key=FIRST)
        high = bisect_left(self._waiting, end_input_seq, key=FIRST)
        return [packet for packet in self._waiting[low:high] if packet.end_input_seq > first_input_seq]

    def _remove(self, packet: OutputPacket) -> None:
        low = bisect_left(self._waiting, packet.first_input_seq, key=FIRST)
        del self._waiting[self._waiting.index(packet, low)]


def _without(packet: OutputPacket, begin: int, end: int) -> list[OutputPacket]:
    """The parts of a packet before and after a range."""
    bounds = ((packet.first_input_seq, begin), (end, packet.end_input_seq))
    return [part_of(packet, first, stop) for first, stop in bounds if first < stop]
