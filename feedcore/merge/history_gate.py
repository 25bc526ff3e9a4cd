"""Lets packets into the merge once it is known up to where they count: the waiting room for a newer epoch's history.

A packet of a newer epoch waits until a heartbeat tells that epoch's lineage, and packets of older epochs wait with it,
since they may no longer count; but only for a while: that epoch may have died before it told anybody.
"""

from __future__ import annotations

from feedcore.merge.followed_lineage import FollowedLineage
from feedcore.wire.lineage import Lineage, decode_lineage
from feedcore.wire.output_packet import OutputPacket

CLOSED = -1  # no epoch's number


class HistoryGate:
    """The history followed by one channel's merge, and what waits for a newer one.

    Args:
        wait_ns: how long older packets wait for a newer epoch's lineage.
        waiting_count_max: beyond it packets are dropped: they can be asked for again.

    Attributes:
        passing_epoch: packets of this epoch count whole and need not wait; `CLOSED` while a lineage is waited for.
    """

    def __init__(self, wait_ns: int, waiting_count_max: int) -> None:
        self.followed = FollowedLineage()
        self.passing_epoch = 0
        self._wait_ns = wait_ns
        self._waiting_count_max = waiting_count_max
        self._waiting: list[OutputPacket] = []
        self._awaited_epoch = 0  # the newest epoch heard of whose lineage is not known
        self._wait_until_ns: int | None = None

    @property
    def is_closed(self) -> bool:
        """True while everything waits."""
        return self._wait_until_ns is not None

    def news(self, packet: OutputPacket) -> tuple[Lineage, bool] | None:
        """The history that a packet speaks for, if it is newer than the one followed, and whether it was told.

        Raises:
            PacketRefused: a heartbeat with what is no lineage.
        """
        followed = self.followed
        if packet.runs == () and packet.payload:
            lineage = decode_lineage(packet.payload)
            return (lineage, True) if followed.is_news(lineage) else None
        if followed.is_told or packet.epoch == followed.epoch or followed.lineage.start_of(packet.epoch) is not None:
            return None
        lineage = followed.put_together(packet.epoch, packet.epoch_first_message_seq)
        if packet.epoch > followed.epoch:
            return lineage, False
        followed.follow(lineage, is_told=False)  # an older epoch, not heard of before
        return None

    def follow(self, lineage: Lineage, *, is_told: bool) -> int:
        """Follow a newer history; returns the first `message_seq` that it numbers otherwise (UNLIMITED: none)."""
        parting = self.followed.follow(lineage, is_told=is_told)
        if lineage.epoch >= self._awaited_epoch:
            self._wait_until_ns = None
        self._set_passing()
        return parting

    def end_of(self, packet: OutputPacket, now_ns: int) -> int | None:
        """One past the last `message_seq` of a packet that counts, at most its end; None: it waits here."""
        if packet.epoch > self.followed.epoch and packet.epoch > self._awaited_epoch:
            self._awaited_epoch = packet.epoch
            self._wait_until_ns = now_ns + self._wait_ns
            self._set_passing()
        if packet.epoch > self.followed.epoch or self.is_closed:
            if len(self._waiting) < self._waiting_count_max:
                self._waiting.append(packet)
            return None
        return min(packet.end_message_seq, self.followed.end_of(packet.epoch))

    def take_waiting(self) -> list[OutputPacket]:
        """What has waited and need not any longer, in order of arrival."""
        if self.is_closed:
            return []
        known = [packet for packet in self._waiting if packet.epoch <= self.followed.epoch]
        self._waiting = [packet for packet in self._waiting if packet.epoch > self.followed.epoch]
        return known

    def on_timer(self, now_ns: int) -> bool:
        """True if older packets have waited long enough; those of the newer epoch go on waiting."""
        if self._wait_until_ns is None or now_ns < self._wait_until_ns:
            return False
        self._wait_until_ns = None
        self._set_passing()
        return True

    def next_deadline_ns(self) -> int | None:
        """When waiting ends."""
        return self._wait_until_ns

    def _set_passing(self) -> None:
        self.passing_epoch = CLOSED if self.is_closed else self.followed.epoch
