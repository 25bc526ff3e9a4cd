"""Packets that came early, by `message_seq`; bounded."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

from feedcore.wire.output_packet import OutputPacket


class HoldQueue:
    """Early packets of one channel, ascending, at most one per (first message, epoch).

    Args:
        count_max: beyond it the newest packets are dropped: the oldest are the next ones wanted, and what is dropped
            can be asked for again.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._order: list[tuple[int, int]] = []  # (first_message_seq, -epoch): a newer epoch's copy comes first
        self._packets: dict[tuple[int, int], OutputPacket] = {}

    def __len__(self) -> int:
        return len(self._order)

    def add(self, packet: OutputPacket) -> OutputPacket | None:
        """Hold a packet; returns the other copy if one that begins there is held already. The longer one stays."""
        key = (packet.first_message_seq, -packet.epoch)
        known = self._packets.get(key)
        if known is not None:
            if packet.message_count > known.message_count:
                self._packets[key] = packet
            return known
        if len(self._order) >= self._count_max:
            if key > self._order[-1]:
                return None
            del self._packets[self._order.pop()]
        insort(self._order, key)
        self._packets[key] = packet
        return None

    def pop_reaching(self, message_seq: int) -> OutputPacket | None:
        """Remove and return the first packet that begins at or before `message_seq`; it may be all old."""
        if not self._order or self._order[0][0] > message_seq:
            return None
        return self._packets.pop(self._order.pop(0))

    def drop_superseded(self, end_of: Callable[[int], int]) -> None:
        """Forget packets that no longer count: of epochs whose numbering ends at or before where they begin."""
        keep = [key for key in self._order if key[0] < end_of(-key[1])]
        for key in set(self._order) - set(keep):
            del self._packets[key]
        self._order = keep

    def holes(self, next_message_seq: int, end_message_seq: int) -> list[tuple[int, int]]:
        """What is missing between `next_message_seq` and `end_message_seq`, each (first, last) inclusive."""
        holes = []
        seq = next_message_seq
        for key in self._order:
            if key[0] > seq:
                holes.append((seq, key[0] - 1))
            seq = max(seq, self._packets[key].end_message_seq)
        if end_message_seq > seq:
            holes.append((seq, end_message_seq - 1))
        return holes
