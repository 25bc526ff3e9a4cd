"""Whose history a client follows, and up to where a packet of any epoch counts in it.

Histories are learned from heartbeats alone: every adapter tells its lineage at a takeover at once and then every 10 ms.
Until one is known, packets wait. A packet of a newer epoch waits until that epoch's lineage is known, and packets of
older epochs wait with it, since they may no longer count; but those only for a while: the new active may have died
before any heartbeat of its epoch was heard.
"""

from __future__ import annotations

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.wire.lineage import EpochStart, Lineage
from tandemfeed.feedcore.wire.output_packet import OutputPacket
from tandemfeed.feedcore.wire.packet_parts import part_of
from tandemfeed.feedcore.wire.refusal import PacketRefused

CLOSED = -1  # no epoch's number


class HistoryGate:
    """The history followed by one channel's merge, and what waits for a newer one.

    Args:
        config: how long older packets wait for a newer epoch's lineage, and how many: what comes beyond is dropped,
            because it can be asked for again.

    Attributes:
        lineage: the history followed; empty until a heartbeat was heard.
        passing_epoch: packets of this epoch count whole and need not wait; `CLOSED` while a lineage is waited for.
    """

    def __init__(self, counters: CounterSet, config: MergerConfig) -> None:
        self.lineage = Lineage()
        self.passing_epoch = CLOSED
        self._counters = counters
        self._config = config
        self._waiting: list[OutputPacket] = []
        self._awaited_epoch = 0  # the newest epoch heard of whose lineage is not known
        self._wait_until_ns: int | None = None

    def follow(self, lineage: Lineage) -> EpochStart | None:
        """Follow a newer history; returns the first epoch that it and the one before do not share, if there is one."""
        parting = self.lineage.parts_at(lineage) if self.lineage.entries else None
        self.lineage = lineage
        if lineage.epoch >= self._awaited_epoch:
            self._wait_until_ns = None
        self._open_or_close()
        return parting

    def admit(self, packet: OutputPacket, now_ns: int) -> OutputPacket | None:
        """What of a packet counts; None: nothing, or it waits here."""
        epoch = packet.epoch
        if self.lineage.entries and epoch > self.lineage.epoch and epoch > self._awaited_epoch:
            self._awaited_epoch = epoch
            self._wait_until_ns = now_ns + self._config.lineage_wait_ns
            self._open_or_close()
        if epoch > self.lineage.epoch or self.passing_epoch == CLOSED:
            if len(self._waiting) < self._config.held_count_max:
                self._waiting.append(packet)
            return None
        try:
            if (counted_end := self.lineage.end_of(epoch)) > packet.first_input_seq:
                return part_of(packet, packet.first_input_seq, counted_end)
            self._counters.add(Counter.STALE_EPOCH_PACKETS)
        except PacketRefused as refused:
            self._counters.refuse(refused.reason)
        return None

    def take_waiting(self) -> list[OutputPacket]:
        """What has waited and need not any longer, in order of arrival."""
        if self.passing_epoch == CLOSED:
            return []
        known = [packet for packet in self._waiting if packet.epoch <= self.lineage.epoch]
        self._waiting = [packet for packet in self._waiting if packet.epoch > self.lineage.epoch]
        return known

    def on_timer(self, now_ns: int) -> list[OutputPacket]:
        """Older packets that have waited long enough; those of the newer epoch go on waiting."""
        if self._wait_until_ns is None or now_ns < self._wait_until_ns:
            return []
        self._wait_until_ns = None
        self._open_or_close()
        return self.take_waiting()

    def next_deadline_ns(self) -> int | None:
        """When waiting ends."""
        return self._wait_until_ns

    def _open_or_close(self) -> None:
        self.passing_epoch = self.lineage.epoch if self._wait_until_ns is None else CLOSED
