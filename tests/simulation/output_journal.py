"""An adapter's output journal in memory: what it keeps over a crash, and what replay finds in it."""

from __future__ import annotations

from bisect import bisect_right

from feedcore.channel_state import ChannelSnapshot
from feedcore.output_packet import PROVISIONAL_BIT, RETRANSMISSION_BIT, OutputFlag, OutputPacket
from feedcore.position import Run

Entry = OutputPacket | ChannelSnapshot


class OutputJournal:
    """Entries in the order of appending; a lookup finds what a newer numbering has not replaced, as in production."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._channels: dict[int, tuple[list[int], list[OutputPacket]]] = {}

    def holds(self, packet: OutputPacket) -> bool:
        """True if replay would find this packet."""
        firsts, packets = self._channels.get(packet.channel_id, ([], []))
        place = bisect_right(firsts, packet.first_message_seq) - 1
        return place >= 0 and packets[place] == packet

    def append(self, entry: Entry) -> None:
        """Keep a packet or a channel's state."""
        self._entries.append(entry)
        self._index(entry)

    def lose_tail(self, count: int) -> int:
        """A crash takes the newest entries along; returns how many."""
        lost = min(count, len(self._entries))
        if lost:
            del self._entries[-lost:]
            self._channels.clear()
            for entry in self._entries:
                self._index(entry)
        return lost

    def number_for_good(self, channel_id: int, epoch: int, first_seq: int, end_seq: int) -> None:
        """The newest provisional packets of a channel are decisions of an epoch."""
        for place, entry in enumerate(self._entries):
            if (
                isinstance(entry, OutputPacket)
                and entry.flags & PROVISIONAL_BIT
                and entry.channel_id == channel_id
                and first_seq <= entry.first_message_seq
                and entry.end_message_seq <= end_seq
            ):
                self._entries[place] = counting = entry._replace(
                    flags=entry.flags & ~PROVISIONAL_BIT | OutputFlag.FROM_ACTIVE,
                    epoch=epoch,
                    epoch_first_message_seq=first_seq,
                    runs=tuple(run._replace(epoch=epoch) for run in entry.runs),
                )
                self._index(counting)

    def resumable(self) -> list[tuple[ChannelSnapshot, list[Run]]]:
        """The newest state of each channel, and the decisions behind it."""
        newest: dict[int, tuple[ChannelSnapshot, list[Run]]] = {}
        for entry in self._entries:
            if isinstance(entry, ChannelSnapshot):
                newest[entry.channel_id] = entry, []
            elif entry.channel_id in newest and not entry.flags & PROVISIONAL_BIT:
                newest[entry.channel_id][1].extend(entry.runs)
        return list(newest.values())

    def replay(self, channel_id: int, ranges: tuple[tuple[int, int], ...]) -> list[OutputPacket]:
        """The packets that hold these `message_seq`, each once, flagged as retransmissions."""
        if channel_id not in self._channels:
            return []
        firsts, packets = self._channels[channel_id]
        found, behind = [], 0
        for first_seq, last_seq in ranges:
            for place in range(max(behind, bisect_right(firsts, first_seq) - 1), len(firsts)):
                packet = packets[place]
                if packet.first_message_seq > last_seq:
                    break
                behind = place + 1
                if packet.end_message_seq > first_seq:
                    found.append(packet._replace(flags=packet.flags | RETRANSMISSION_BIT))
        return found

    def _index(self, entry: Entry) -> None:
        if isinstance(entry, ChannelSnapshot) or not entry.message_count or entry.flags & PROVISIONAL_BIT:
            return
        firsts, packets = self._channels.setdefault(entry.channel_id, ([], []))
        while firsts and firsts[-1] >= entry.first_message_seq:
            firsts.pop()
            packets.pop()
        firsts.append(entry.first_message_seq)
        packets.append(entry)
