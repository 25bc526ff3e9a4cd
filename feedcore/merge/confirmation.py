"""confirm=2: lets through what two adapters transmitted with equal source identity and equal bytes.

Stands before the merge. A copy waits until another adapter's equal copy of the same `input_seq` comes; where packet
boundaries differ, what two packets have in common is confirmed and the rest goes on waiting. Two copies that differ let
nothing through until a third agrees with one of them.

Invariant: what it lets through was transmitted equally by two different adapters.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from typing import NamedTuple

from feedcore.counters import Counter, CounterSet
from feedcore.merge.comparison import are_equal, divergence, is_same_packet
from feedcore.merge.effects import MergeEffect
from feedcore.merge.place import Place
from feedcore.wire.output_packet import OutputPacket
from feedcore.wire.packet_parts import part_of


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
        self._waiting: dict[int, list[OutputPacket]] = {}  # by first_input_seq
        self._firsts: list[int] = []  # its keys, ascending
        self._count = 0
        self._longest = 0  # source messages in the longest packet that ever waited
        self._alarmed: dict[tuple[int, int, int, int], None] = {}  # (first, end, adapters): each difference once

    def __len__(self) -> int:
        return self._count

    def on_packet(self, packet: OutputPacket, effects: list[MergeEffect]) -> list[OutputPacket]:
        """A copy of any adapter's.

        Returns:
            What it confirms, as packets; parts of it where boundaries differ.

        Raises:
            PacketRefused: MALFORMED frames.
        """
        for known in self._waiting.get(packet.first_input_seq, ()):
            if is_same_packet(known, packet):
                if known.adapter_id == packet.adapter_id:
                    return []
                self._remove(known)
                return [known]
        return self._match_parts(packet, effects)

    def keep(self, packet: OutputPacket) -> None:
        """Let a copy wait."""
        first = packet.first_input_seq
        if self._count >= self._count_max:
            if first >= self._firsts[-1]:
                return
            self._remove(self._waiting[self._firsts[-1]][-1])
        same = self._waiting.get(first)
        if same is None:
            same = self._waiting[first] = []
            if not self._firsts or first > self._firsts[-1]:
                self._firsts.append(first)
            else:
                insort(self._firsts, first)
        same.append(packet)
        self._count += 1
        self._longest = max(self._longest, packet.end_input_seq - first)

    def passed(self, next_input_seq: int) -> list[OutputPacket]:
        """Copies that lie before what is delivered next: they wait no more."""
        gone: list[OutputPacket] = []
        while self._firsts and self._firsts[0] < next_input_seq:
            waiting = self._waiting[self._firsts[0]]
            old = [packet for packet in waiting if packet.end_input_seq <= next_input_seq]
            gone += old
            if len(old) < len(waiting):
                self._waiting[self._firsts[0]] = [packet for packet in waiting if packet not in old]
                break
            del self._waiting[self._firsts.pop(0)]
        self._count -= len(gone)
        return gone

    def drop_superseded(self, end_of: Callable[[int], int]) -> None:
        """Forget copies that no longer count whole. `end_of`: by epoch, one past the last `input_seq` it decided."""
        for packet in [packet for packets in self._waiting.values() for packet in packets]:
            if packet.end_input_seq > end_of(packet.epoch):
                self._remove(packet)

    def split(self, first: Place, end: Place) -> list[Stretch]:
        """What lies between two places, as stretches."""
        stretches: list[Stretch] = []
        at = first
        for packet in self._overlapping(first.input_seq, end.input_seq):
            start = max(at, Place(packet.first_input_seq, packet.first_message_seq))
            stop = min(end, Place(packet.end_input_seq, packet.end_message_seq))
            if start.input_seq >= stop.input_seq:
                continue
            if start > at:
                stretches.append(Stretch(at, start, is_waiting=False))
            if stretches and stretches[-1].is_waiting:
                start = stretches.pop().first
            stretches.append(Stretch(start, stop, is_waiting=True))
            at = stop
        if at.input_seq < end.input_seq:
            stretches.append(Stretch(at, end, is_waiting=False))
        return stretches

    def adapters_with(self, first_input_seq: int, end_input_seq: int) -> tuple[int, ...]:
        """Whose copies of any of these wait."""
        return tuple(sorted({packet.adapter_id for packet in self._overlapping(first_input_seq, end_input_seq)}))

    # ---- inside ----

    def _match_parts(self, packet: OutputPacket, effects: list[MergeEffect]) -> list[OutputPacket]:
        confirmed = []
        pieces = [packet]
        while pieces:
            piece = pieces.pop()
            others = [
                known
                for known in self._overlapping(piece.first_input_seq, piece.end_input_seq)
                if known.adapter_id != packet.adapter_id
            ]
            for known in others:
                begin = max(known.first_input_seq, piece.first_input_seq)
                end = min(known.end_input_seq, piece.end_input_seq)
                if are_equal(known, piece, begin, end):
                    confirmed.append(part_of(piece, begin, end))
                    self._remove(known)
                    for rest in _without(known, begin, end):
                        self.keep(rest)
                    pieces += _without(piece, begin, end)
                    break
                self._alarm(known, piece, begin, end, effects)
            else:
                self.keep(piece)
        return sorted(confirmed, key=lambda part: part.first_input_seq)

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

    def _overlapping(self, first_input_seq: int, end_input_seq: int) -> Iterator[OutputPacket]:
        """What waits of these, ascending; a copy of the moment, so that it may change meanwhile."""
        low = bisect_right(self._firsts, first_input_seq - self._longest)
        high = bisect_right(self._firsts, end_input_seq - 1)
        for first in self._firsts[low:high]:
            for packet in tuple(self._waiting.get(first, ())):
                if packet.end_input_seq > first_input_seq:
                    yield packet

    def _remove(self, packet: OutputPacket) -> None:
        same = self._waiting[packet.first_input_seq]
        same.remove(packet)
        self._count -= 1
        if not same:
            del self._waiting[packet.first_input_seq]
            del self._firsts[bisect_right(self._firsts, packet.first_input_seq) - 1]


def _without(packet: OutputPacket, begin: int, end: int) -> list[OutputPacket]:
    """What is left of a packet before and after a part of it."""
    bounds = ((packet.first_input_seq, begin), (end, packet.end_input_seq))
    return [part_of(packet, first, stop) for first, stop in bounds if first < stop]
