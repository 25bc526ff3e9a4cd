"""The `acked` publish mode: the active's packets wait until a backup acknowledges them (protocol clause 5.6).

The active first sends the decision as an announcement. A backup applies it and transmits. Any packet of the backup in
the same epoch that ends at `input_seq` n acknowledges everything before n. So if the active is lost, no decision that a
client has seen is lost. If no backup acknowledges in time, the active continues alone and counts the packets. It waits
again when a backup has caught up to where the active began to continue alone. In the `async` mode, the active always
continues alone.

Invariant: packets leave in the order in which they were decided; each is journaled just before it leaves.
"""

from __future__ import annotations

from collections import deque

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.replica.channel import Channel
from tandemfeed.feedcore.replica.config import PublishMode
from tandemfeed.feedcore.replica.effects import AppendToJournal, Transmit
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket, encode_runs
from tandemfeed.feedcore.wire.position import FIRST_SEQ

REANNOUNCED_MAX = 64  # only the oldest waiting packets; the others follow when these are acknowledged


class PublishGate:
    """The packets that wait for acknowledgement in one term of a channel's active."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self._config = channel, channel.config
        self._is_acked = channel.config.publish is PublishMode.ACKED
        self._held: deque[tuple[OutputPacket, int]] = deque()
        self._announce_at_ns = 0
        self._unacked_from: int | None = FIRST_SEQ  # continuing alone since this input_seq; None: backups acknowledge

    def begin(self) -> None:
        """Begin the term, not yet knowing whether a backup will acknowledge."""
        self._unacked_from = self._channel.line.next_input_seq

    @property
    def is_holding(self) -> bool:
        """True while decided packets wait."""
        return bool(self._held)

    def released(self) -> tuple[int, int] | None:
        """The `input_seq` and `message_seq` after the packets that have left; None if none wait."""
        if not self._held:
            return None
        first = self._held[0][0]
        return first.first_input_seq, first.first_message_seq

    def publish(self, packets: list[OutputPacket], now_ns: int) -> None:
        """Take newly decided packets: send them, or announce them and let them wait."""
        if self._unacked_from is not None:
            if self._is_acked:
                self._channel.counters.add(Counter.PACKETS_UNACKED, len(packets))
            self._channel.publish(packets)
            return
        if not self._held:
            self._announce_at_ns = now_ns + self._config.announce_every_ns
        self._held.extend((packet, now_ns) for packet in packets)
        self._announce(packets)
        if len(self._held) > self._config.acked_held_count_max:
            self._stop_waiting()

    def on_acknowledged(self, end_input_seq: int) -> None:
        """Note that a backup has everything before `end_input_seq`."""
        if self._unacked_from is None:
            released = []
            while self._held and self._held[0][0].end_input_seq <= end_input_seq:
                released.append(self._held.popleft()[0])
            self._channel.publish(released)
        elif self._is_acked and end_input_seq >= self._unacked_from:
            self._unacked_from = None

    def on_timer(self, now_ns: int) -> None:
        """Repeat announcements, or stop waiting."""
        if not self._held:
            return
        if now_ns - self._held[0][1] >= self._config.ack_timeout_ns:
            self._stop_waiting()
        elif now_ns >= self._announce_at_ns:
            self._announce_at_ns = now_ns + self._config.announce_every_ns
            self._announce([self._held[place][0] for place in range(min(len(self._held), REANNOUNCED_MAX))])

    def on_own_pause(self, pause_ns: int) -> None:
        """This process was paused, and acknowledgements may wait in its queues."""
        self._held = deque((packet, since_ns + pause_ns) for packet, since_ns in self._held)

    def next_deadline_ns(self) -> int | None:
        """When `on_timer` has something to do."""
        return min(self._announce_at_ns, self._held[0][1] + self._config.ack_timeout_ns) if self._held else None

    def release_all(self) -> None:
        """End the term in an orderly way: send everything."""
        self._channel.publish([packet for packet, _ in self._held])
        self._held.clear()

    def journal_unsent(self) -> None:
        """End the term without sending anything more. The waiting packets were decided, so journal them for replay."""
        self._channel.emit(*(AppendToJournal(packet) for packet, _ in self._held))
        self._held.clear()

    def _announce(self, packets: list[OutputPacket]) -> None:
        """Send the packets' decisions without their messages."""
        for packet in packets:
            announcement = packet._replace(
                flags=packet.flags | OutputFlag.ANNOUNCEMENT, payload=encode_runs(packet.runs)
            )
            self._channel.emit(Transmit(announcement))

    def _stop_waiting(self) -> None:
        self._channel.counters.add(Counter.PACKETS_UNACKED, len(self._held))
        self._unacked_from = self._held[-1][0].end_input_seq
        self.release_all()
