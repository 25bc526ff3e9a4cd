"""Which epoch's history a client follows, and how far packets of each epoch count in it.

A client learns histories from heartbeats alone: every adapter sends its lineage immediately after a takeover, and then
every 10 ms. Until one is known, packets wait. A packet of a newer epoch waits until that epoch's lineage is known.
Packets of older epochs wait with it, because they may no longer count, but only for a limited time: the new active may
have died before a heartbeat of its epoch was heard.
"""

from __future__ import annotations

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.wire.lineage import EpochStart, Lineage
from tandemfeed.feedcore.wire.output_packet import OutputPacket
from tandemfeed.feedcore.wire.packet_parts import part_of
from tandemfeed.feedcore.wire.refusal import PacketRefused

CLOSED = -1  # not an epoch


class HistoryGate:
    """The history that one channel's merge follows, and the packets that wait for a newer one.

    Args:
        config: how long older packets wait for a newer epoch's lineage, and how many packets may wait; further ones are
            dropped, because they can be requested again.

    Attributes:
        lineage: the history that the merge follows; empty until it hears a heartbeat.
        passing_epoch: packets of this epoch count as a whole and need not wait; `CLOSED` while the gate awaits a
            lineage.
    """

    def __init__(self, counters: CounterSet, config: MergerConfig) -> None:
        self.lineage = Lineage()
        self.passing_epoch = CLOSED
        self._counters = counters
        self._config = config
        self._waiting: list[OutputPacket] = []
        self._awaited_epoch = 0  # the newest epoch seen; its lineage may not be known yet
        self._wait_until_ns: int | None = None

    def follow(self, lineage: Lineage) -> EpochStart | None:
        """Follow a newer history; returns the first epoch that only it or only the previous history has, if any."""
        fork = self.lineage.fork_from(lineage) if self.lineage.entries else None
        self.lineage = lineage
        if lineage.epoch >= self._awaited_epoch:
            self._wait_until_ns = None
        self._open_or_close()
        return fork

    def admit(self, packet: OutputPacket, now_ns: int) -> OutputPacket | None:
        """The part of a packet that counts; None if nothing counts or the packet waits here."""
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
        """Remove and return the packets that need not wait any longer, in order of arrival."""
        if self.passing_epoch == CLOSED:
            return []
        known = [packet for packet in self._waiting if packet.epoch <= self.lineage.epoch]
        self._waiting = [packet for packet in self._waiting if packet.epoch > self.lineage.epoch]
        return known

    def on_timer(self, now_ns: int) -> list[OutputPacket]:
        """Return older packets that have waited long enough; those of the newer epoch continue to wait."""
        if self._wait_until_ns is None or now_ns < self._wait_until_ns:
            return []
        self._wait_until_ns = None
        self._open_or_close()
        return self.take_waiting()

    def next_deadline_ns(self) -> int | None:
        """When older packets stop waiting."""
        return self._wait_until_ns

    def _open_or_close(self) -> None:
        self.passing_epoch = self.lineage.epoch if self._wait_until_ns is None else CLOSED
