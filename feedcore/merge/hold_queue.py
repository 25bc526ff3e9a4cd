"""Packets that came early, by `input_seq`; bounded."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

from feedcore.merge.place import Place
from feedcore.range_set import Range, RangeSet
from feedcore.wire.output_packet import OutputPacket
from feedcore.wire.packet_parts import part_of
from feedcore.wire.refusal import PacketRefused


class HoldQueue:
    """Early packets of one channel, ascending, at most one per (first `input_seq`, epoch).

    Args:
        count_max: beyond it the newest packets are dropped: the oldest are the next ones wanted, and what is dropped
            can be asked for again.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._order: list[tuple[int, int]] = []  # (first_input_seq, -epoch): a newer epoch's copy comes first
        self._packets: dict[tuple[int, int], OutputPacket] = {}

    def __len__(self) -> int:
        return len(self._order)

    @property
    def first_place(self) -> Place | None:
        """Where the lowest packet begins; None if nothing is held."""
        if not self._order:
            return None
        packet = self._packets[self._order[0]]
        return Place(packet.first_input_seq, packet.first_message_seq)

    def add(self, packet: OutputPacket) -> OutputPacket | None:
        """Hold a packet; returns the other copy if one that begins there is held already. The longer one stays."""
        key = (packet.first_input_seq, -packet.epoch)
        known = self._packets.get(key)
        if known is not None:
            if packet.end_input_seq > known.end_input_seq:
                self._packets[key] = packet
            return known
        if len(self._order) >= self._count_max:
            if key > self._order[-1]:
                return None
            del self._packets[self._order.pop()]
        insort(self._order, key)
        self._packets[key] = packet
        return None

    def pop_reaching(self, input_seq: int) -> OutputPacket | None:
        """Remove and return the first packet that begins at or before `input_seq`; it may be all old."""
        if not self._order or self._order[0][0] > input_seq:
            return None
        return self._packets.pop(self._order.pop(0))

    def cut_superseded(self, end_of: Callable[[int], int]) -> None:
        """Keep of each packet only what still counts.

        Args:
            end_of: by epoch, one past the last `input_seq` that it decided.
        """
        for key in tuple(self._order):
            packet = self._packets[key]
            end = end_of(packet.epoch)
            if packet.end_input_seq <= end:
                continue
            try:
                if packet.first_input_seq < end:
                    self._packets[key] = part_of(packet, packet.first_input_seq, end)
                    continue
            except PacketRefused:
                pass  # it can be asked for again
            del self._packets[key]
            self._order.remove(key)

    def missing(
        self, first_input_seq: int, end_input_seq: int, range_count_max: int, count_max: int
    ) -> tuple[Range, ...]:
        """What is not held of `[first_input_seq, end_input_seq)`, the lowest first.

        Args:
            range_count_max, count_max: no more ranges than this, and no more source messages in all of them.
        """
        held = RangeSet((key[0], self._packets[key].end_input_seq) for key in self._order)
        ranges: list[Range] = []
        left = count_max
        for first, end in held.missing(first_input_seq, max(first_input_seq, end_input_seq)):
            if not left or len(ranges) == range_count_max:
                break
            ranges.append((first, min(end, first + left)))
            left -= ranges[-1][1] - first
        return tuple(ranges)
