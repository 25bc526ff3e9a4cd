"""Packets that came early, by the numbers they cover: `input_seq` of a channel, or `source_seq` of a source stream."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

from feedcore.range_set import Range, RangeSet
from feedcore.wire.output_packet import OutputPacket
from feedcore.wire.packet_parts import part_of
from feedcore.wire.refusal import PacketRefused


class HoldQueue:
    """Early packets of one sequence, ascending, at most one per first number.

    Args:
        count_max: beyond it the newest packets are dropped: the oldest are the next ones wanted, and what is dropped
            can be asked for again.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._firsts: list[int] = []
        self._packets: dict[int, tuple[int, OutputPacket]] = {}  # by first number, with the end

    def __len__(self) -> int:
        return len(self._firsts)

    @property
    def first_packet(self) -> OutputPacket | None:
        """The lowest packet; None if nothing is held."""
        return self._packets[self._firsts[0]][1] if self._firsts else None

    @property
    def end(self) -> int:
        """One past the furthest number held; something is."""
        return max(end for end, _ in self._packets.values())

    def add(self, first: int, end: int, packet: OutputPacket) -> OutputPacket | None:
        """Hold a packet; returns the other copy if one that begins there is held already. The longer one stays."""
        known = self._packets.get(first)
        if known is not None:
            if end > known[0]:
                self._packets[first] = (end, packet)
            return known[1]
        if len(self._firsts) >= self._count_max:
            if first > self._firsts[-1]:
                return None
            del self._packets[self._firsts.pop()]
        insort(self._firsts, first)
        self._packets[first] = (end, packet)
        return None

    def pop_reaching(self, number: int) -> OutputPacket | None:
        """Remove and return the lowest packet if it begins at or before a number; it may be all old."""
        if not self._firsts or self._firsts[0] > number:
            return None
        return self._packets.pop(self._firsts.pop(0))[1]

    def cut_superseded(self, end_of: Callable[[int], int]) -> None:
        """Keep of each packet of a channel only what still counts.

        Args:
            end_of: by epoch, one past the last `input_seq` that it decided.
        """
        packets, self._firsts, self._packets = sorted(self._packets.items()), [], {}
        for first, (end, packet) in packets:
            counted_end = min(end, end_of(packet.epoch))
            try:
                if first < counted_end:
                    self.add(first, counted_end, part_of(packet, first, counted_end))
            except PacketRefused:
                pass  # it can be asked for again

    def missing(self, first: int, end: int, range_count_max: int, count_max: int) -> tuple[Range, ...]:
        """What is not held of `[first, end)`, the lowest first.

        Args:
            range_count_max, count_max: no more ranges than this, and no more numbers in all of them.
        """
        held = RangeSet((first, self._packets[first][0]) for first in self._firsts)
        ranges: list[Range] = []
        left = count_max
        for gap_first, gap_end in held.missing(first, max(first, end)):
            if not left or len(ranges) == range_count_max:
                break
            ranges.append((gap_first, min(gap_end, gap_first + left)))
            left -= ranges[-1][1] - gap_first
        return tuple(ranges)
