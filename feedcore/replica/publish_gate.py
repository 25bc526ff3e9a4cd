"""The `acked` publish mode: what the active decided waits until a backup has acknowledged it (protocol clause 5.6).

The decision travels ahead as an announcement. A backup applies it and transmits; any packet of its in the same epoch
that ends at `input_seq` n says that it has everything before n. Losing the active then loses no decision that
a client has seen. When nobody acknowledges in time the active goes on alone, counts it, and waits again once a backup
has caught up to where it began to go on alone.

Invariant: packets leave in the order in which they were decided; each is put in the journal just before it leaves.
"""

from __future__ import annotations

from collections import deque

from feedcore.counters import Counter, CounterSet
from feedcore.replica.effects import AdapterEffect, AppendToJournal, Transmit
from feedcore.wire.output_packet import OutputFlag, OutputPacket, encode_runs

REANNOUNCED_MAX = 64  # the oldest of what waits: the rest follows as these are acknowledged


class PublishGate:
    """What waits for acknowledgement at the active of one channel.

    Args:
        timeout_ns: longer than this nothing waits.
        announce_every_ns: pause between repetitions of an announcement.
        held_count_max: packets that may wait; with more, nobody is waited for.
    """

    def __init__(self, counters: CounterSet, timeout_ns: int, announce_every_ns: int, held_count_max: int) -> None:
        assert announce_every_ns < timeout_ns  # survives a lost announcement
        self._counters = counters
        self._timeout_ns, self._announce_every_ns = timeout_ns, announce_every_ns
        self._held_count_max = held_count_max
        self._held: deque[tuple[OutputPacket, int]] = deque()
        self._announce_at_ns = 0
        self._alone_from: int | None = 1  # going on alone since this input_seq; None: acknowledgements come

    def begin(self, next_input_seq: int) -> None:
        """A new term: nothing waits, and whether anybody acknowledges is to be seen."""
        assert not self._held
        self._alone_from = next_input_seq

    @property
    def is_alone(self) -> bool:
        """True while packets leave unacknowledged."""
        return self._alone_from is not None

    @property
    def is_holding(self) -> bool:
        """True while something decided has not left."""
        return bool(self._held)

    def released(self) -> tuple[int, int] | None:
        """The `input_seq` and `message_seq` after what has left; None if everything has."""
        if not self._held:
            return None
        first = self._held[0][0]
        return first.first_input_seq, first.first_message_seq

    def publish(self, packets: list[OutputPacket], now_ns: int) -> list[AdapterEffect]:
        """Newly decided packets."""
        if self._alone_from is not None:
            self._counters.add(Counter.PACKETS_UNACKED, len(packets))
            return _leaving(packets)
        if not self._held:
            self._announce_at_ns = now_ns + self._announce_every_ns
        self._held.extend((packet, now_ns) for packet in packets)
        effects: list[AdapterEffect] = [Transmit(announcement(packet)) for packet in packets]
        if len(self._held) > self._held_count_max:
            effects += self._go_alone()
        return effects

    def on_acknowledged(self, end_input_seq: int) -> list[AdapterEffect]:
        """A backup has everything before `end_input_seq`."""
        if self._alone_from is not None:
            if end_input_seq >= self._alone_from:
                self._alone_from = None
            return []
        released = []
        while self._held and self._held[0][0].end_input_seq <= end_input_seq:
            released.append(self._held.popleft()[0])
        return _leaving(released)

    def on_timer(self, now_ns: int) -> list[AdapterEffect]:
        """Repeat announcements, or stop waiting."""
        if not self._held:
            return []
        if now_ns - self._held[0][1] >= self._timeout_ns:
            return self._go_alone()
        if now_ns >= self._announce_at_ns:
            self._announce_at_ns = now_ns + self._announce_every_ns
            oldest = [self._held[place][0] for place in range(min(len(self._held), REANNOUNCED_MAX))]
            return [Transmit(announcement(packet)) for packet in oldest]
        return []

    def next_deadline_ns(self) -> int | None:
        """When `on_timer` has something to do."""
        return min(self._announce_at_ns, self._held[0][1] + self._timeout_ns) if self._held else None

    def let_out(self) -> list[AdapterEffect]:
        """The term ends in order: everything leaves."""
        released = [packet for packet, _ in self._held]
        self._held.clear()
        return _leaving(released)

    def keep_back(self) -> list[AdapterEffect]:
        """The term ended: nothing more may leave. It was decided, so the journal keeps it for whoever asks."""
        kept: list[AdapterEffect] = [AppendToJournal(packet) for packet, _ in self._held]
        self._held.clear()
        return kept

    def _go_alone(self) -> list[AdapterEffect]:
        self._counters.add(Counter.PACKETS_UNACKED, len(self._held))
        self._alone_from = self._held[-1][0].end_input_seq
        return self.let_out()


def announcement(packet: OutputPacket) -> OutputPacket:
    """The packet's decisions without its messages."""
    return packet._replace(flags=packet.flags | OutputFlag.ANNOUNCEMENT, payload=encode_runs(packet.runs))


def _leaving(packets: list[OutputPacket]) -> list[AdapterEffect]:
    effects: list[AdapterEffect] = []
    for packet in packets:
        effects += (AppendToJournal(packet), Transmit(packet))
    return effects
