"""Whose history a client follows, and up to where a packet of any epoch counts in it.

Histories are learned from heartbeats alone: every adapter tells its lineage at a takeover at once and then every 10 ms.
Until one is known, packets wait. A packet of a newer epoch waits until that epoch's lineage is known, and packets of
older epochs wait with it, since they may no longer count; but those only for a while: the new active may have died
before any heartbeat of its epoch was heard.
"""

from __future__ import annotations

from feedcore.wire.lineage import EpochStart, Lineage, decode_lineage
from feedcore.wire.output_packet import OutputPacket

CLOSED = -1  # no epoch's number


class HistoryGate:
    """The history followed by one channel's merge, and what waits for a newer one.

    Args:
        wait_ns: how long older packets wait for a newer epoch's lineage.
        waiting_count_max: beyond it packets are dropped: they can be asked for again.

    Attributes:
        lineage: the history followed; empty until a heartbeat was heard.
        passing_epoch: packets of this epoch count whole and need not wait; `CLOSED` while a lineage is waited for.
    """

    def __init__(self, wait_ns: int, waiting_count_max: int) -> None:
        self.lineage = Lineage()
        self.passing_epoch = CLOSED
        self._wait_ns = wait_ns
        self._waiting_count_max = waiting_count_max
        self._waiting: list[OutputPacket] = []
        self._awaited_epoch = 0  # the newest epoch heard of whose lineage is not known
        self._wait_until_ns: int | None = None

    @property
    def is_closed(self) -> bool:
        """True while everything waits."""
        return self.passing_epoch == CLOSED

    def news(self, heartbeat: OutputPacket) -> Lineage | None:
        """The history of a heartbeat's sender, if it is newer than the one followed.

        Raises:
            PacketRefused: its payload is not a lineage.
        """
        lineage = decode_lineage(heartbeat.payload)
        return lineage if lineage.epoch > self.lineage.epoch else None

    def follow(self, lineage: Lineage) -> EpochStart | None:
        """Follow a newer history; returns the first epoch that it and the one before do not share, if there is one."""
        parting = self.lineage.parts_at(lineage) if self.lineage.entries else None
        self.lineage = lineage
        if lineage.epoch >= self._awaited_epoch:
            self._wait_until_ns = None
        self._open_or_close()
        return parting

    def counted_end(self, packet: OutputPacket, end_input_seq: int, now_ns: int) -> int | None:
        """Up to which `input_seq` a packet counts, at most its own end; None: it waits here."""
        epoch = packet.epoch
        if self.lineage.entries and epoch > self.lineage.epoch and epoch > self._awaited_epoch:
            self._awaited_epoch = epoch
            self._wait_until_ns = now_ns + self._wait_ns
            self._open_or_close()
        if epoch > self.lineage.epoch or self.is_closed:
            if len(self._waiting) < self._waiting_count_max:
                self._waiting.append(packet)
            return None
        return min(end_input_seq, self.lineage.end_of(epoch))

    def take_waiting(self) -> list[OutputPacket]:
        """What has waited and need not any longer, in order of arrival."""
        if self.is_closed:
            return []
        known = [packet for packet in self._waiting if packet.epoch <= self.lineage.epoch]
        self._waiting = [packet for packet in self._waiting if packet.epoch > self.lineage.epoch]
        return known

    def on_timer(self, now_ns: int) -> bool:
        """True if older packets have waited long enough; those of the newer epoch go on waiting."""
        if self._wait_until_ns is None or now_ns < self._wait_until_ns:
            return False
        self._wait_until_ns = None
        self._open_or_close()
        return True

    def next_deadline_ns(self) -> int | None:
        """When waiting ends."""
        return self._wait_until_ns

    def _open_or_close(self) -> None:
        is_open = bool(self.lineage.entries) and self._wait_until_ns is None
        self.passing_epoch = self.lineage.epoch if is_open else CLOSED
