"""confirm=2: lets through what two adapters transmitted with equal source identity and equal bytes.

Stands before the merge. A copy waits until another adapter's equal copy of the same `message_seq` comes; where packet
boundaries differ, what two packets have in common is confirmed and the rest goes on waiting. Two copies that differ let
nothing through until a third agrees with one of them.

Invariant: what it lets through was transmitted equally by two different adapters.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator

from feedcore.counters import Counter, CounterSet
from feedcore.merge.comparison import are_equal, divergence
from feedcore.merge.effects import MergeEffect
from feedcore.wire.output_packet import OutputPacket
from feedcore.wire.packet_parts import part_of


class Confirmation:
    """Copies of one channel that wait for another adapter's.

    Args:
        count_max: packets waiting; beyond it the newest are dropped: they can be asked for again.
    """

    def __init__(self, channel_id: int, counters: CounterSet, count_max: int) -> None:
        self._channel_id = channel_id
        self._counters = counters
        self._count_max = count_max
        self._waiting: dict[int, list[OutputPacket]] = {}  # by first_message_seq
        self._firsts: list[int] = []  # its keys, ascending
        self._count = 0
        self._longest = 0  # messages in the longest packet that ever waited
        self._alarmed: dict[tuple[int, int, int, int], None] = {}  # (first, end, adapters): each difference once

    def __len__(self) -> int:
        return self._count

    def on_packet(self, packet: OutputPacket, effects: list[MergeEffect]) -> list[OutputPacket]:
        """A copy of any adapter's.

        Returns:
            What it confirms, as packets; parts of it where boundaries differ.
        """
        for known in self._waiting.get(packet.first_message_seq, ()):
            if known.message_count == packet.message_count and known.payload == packet.payload:
                if known.adapter_id == packet.adapter_id:
                    return []
                self._remove(known)
                return [known]
        if not packet.message_count:
            self.keep(packet)
            return []
        return self._match_parts(packet, effects)

    def keep(self, packet: OutputPacket) -> None:
        """Let a copy wait."""
        if self._count >= self._count_max:
            if packet.first_message_seq >= self._firsts[-1]:
                return
            self._remove(self._waiting[self._firsts[-1]][-1])
        same = self._waiting.get(packet.first_message_seq)
        if same is None:
            same = self._waiting[packet.first_message_seq] = []
            if not self._firsts or packet.first_message_seq > self._firsts[-1]:
                self._firsts.append(packet.first_message_seq)
            else:
                insort(self._firsts, packet.first_message_seq)
        same.append(packet)
        self._count += 1
        self._longest = max(self._longest, packet.message_count)

    def passed(self, next_message_seq: int) -> list[OutputPacket]:
        """Copies that lie before what is delivered next: they wait no more."""
        gone: list[OutputPacket] = []
        while self._firsts and self._firsts[0] < next_message_seq:
            waiting = self._waiting[self._firsts[0]]
            old = [packet for packet in waiting if packet.end_message_seq <= next_message_seq]
            gone += old
            if len(old) < len(waiting):
                self._waiting[self._firsts[0]] = [packet for packet in waiting if packet not in old]
                break
            del self._waiting[self._firsts.pop(0)]
        self._count -= len(gone)
        return gone

    def drop_superseded(self, end_of: Callable[[int], int]) -> None:
        """Forget copies that no longer count, by their epoch."""
        for packet in [packet for packets in self._waiting.values() for packet in packets]:
            if packet.end_message_seq > end_of(packet.epoch):
                self._remove(packet)

    def split(self, first_seq: int, end_seq: int) -> list[tuple[int, int, bool]]:
        """`message_seq` first … end - 1 as stretches (first, end) of which some copy waits, or none."""
        stretches = []
        seq = first_seq
        for packet in self._overlapping(first_seq, end_seq):
            start, end = max(seq, packet.first_message_seq), min(end_seq, packet.end_message_seq)
            if start >= end:
                continue
            if start > seq:
                stretches.append((seq, start, False))
            if stretches and stretches[-1][1:] == (start, True):
                start = stretches.pop()[0]
            stretches.append((start, end, True))
            seq = end
        if seq < end_seq:
            stretches.append((seq, end_seq, False))
        return stretches

    def adapters_with(self, first_seq: int, end_seq: int) -> tuple[int, ...]:
        """Whose copies of any of these wait."""
        return tuple(sorted({packet.adapter_id for packet in self._overlapping(first_seq, end_seq)}))

    # ---- inside ----

    def _match_parts(self, packet: OutputPacket, effects: list[MergeEffect]) -> list[OutputPacket]:
        confirmed = []
        pieces = [packet]
        while pieces:
            piece = pieces.pop()
            others = [
                known
                for known in self._overlapping(piece.first_message_seq, piece.end_message_seq)
                if known.adapter_id != packet.adapter_id
            ]
            for known in others:
                begin = max(known.first_message_seq, piece.first_message_seq)
                end = min(known.end_message_seq, piece.end_message_seq)
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
        return sorted(confirmed, key=lambda part: part.first_message_seq)

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

    def _overlapping(self, first_seq: int, end_seq: int) -> Iterator[OutputPacket]:
        """What waits of these, ascending; a copy of the moment, so that it may change meanwhile."""
        place = bisect_right(self._firsts, first_seq - self._longest)
        end = bisect_right(self._firsts, end_seq - 1)
        for first in self._firsts[place:end]:
            for packet in tuple(self._waiting.get(first, ())):
                if packet.end_message_seq > first_seq:
                    yield packet

    def _remove(self, packet: OutputPacket) -> None:
        same = self._waiting[packet.first_message_seq]
        same.remove(packet)
        self._count -= 1
        if not same:
            del self._waiting[packet.first_message_seq]
            del self._firsts[bisect_right(self._firsts, packet.first_message_seq) - 1]


def _without(packet: OutputPacket, begin: int, end: int) -> list[OutputPacket]:
    """What is left of a packet before and behind a part of it."""
    bounds = ((packet.first_message_seq, begin), (end, packet.end_message_seq))
    return [part_of(packet, first, last) for first, last in bounds if first < last]
