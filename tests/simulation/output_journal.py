"""An adapter's output journal in memory: it survives a crash, and replay reads from it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tandemfeed.feedcore.merge.history.place import first_place
from tandemfeed.feedcore.replica.channel_state import ChannelSnapshot
from tandemfeed.feedcore.replica.effects import CommitProvisional
from tandemfeed.feedcore.wire.lineage import ENTRIES_MAX, ENTRY_SIZE, EpochStart, Lineage
from tandemfeed.feedcore.wire.output_packet import PROVISIONAL_BIT, RETRANSMISSION_BIT, OutputFlag, OutputPacket
from tandemfeed.feedcore.wire.position import Run


@dataclass(frozen=True, slots=True)
class Commit:
    """From this entry on, some provisional packets are decisions of an epoch."""

    channel_id: int
    packets: tuple[OutputPacket, ...]


Entry = OutputPacket | ChannelSnapshot | Commit


class OutputJournal:
    """The entries in order. As in production, a lookup does not find packets that a newer epoch replaced."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        # By session and channel: first input_seqs, packets.
        self._channels: dict[tuple[int, int], tuple[list[int], list[OutputPacket]]] = {}

    def holds(self, packet: OutputPacket) -> bool:
        """True if replay would find this packet."""
        firsts, packets = self._channels.get((packet.session, packet.channel_id), ([], []))
        place = bisect_right(firsts, packet.first_input_seq) - 1
        return place >= 0 and packets[place] == packet

    def end_of(self, session: int, channel_id: int, epoch: int) -> int:
        """One past the last `input_seq` of an epoch that replay would find; 0 if there is none."""
        return self.ends(session, channel_id).get((session, channel_id, epoch), 0)

    def ends(self, session: int, channel_id: int) -> dict[tuple[int, int, int], int]:
        """By (session, channel, epoch): one past the last `input_seq` that replay would find."""
        _, packets = self._channels.get((session, channel_id), ([], []))
        return {(session, channel_id, packet.epoch): packet.end_input_seq for packet in packets}

    def append(self, entry: Entry) -> None:
        """Append a packet, a channel's state or a commit."""
        self._entries.append(entry)
        self._index(entry)

    def lose_tail(self, count: int) -> int:
        """Lose the newest entries in a crash; returns how many were lost."""
        lost = min(count, len(self._entries))
        if lost:
            del self._entries[-lost:]
            self._channels.clear()
            for entry in self._entries:
                self._index(entry)
        return lost

    def commit_provisional(self, effect: CommitProvisional) -> tuple[OutputPacket, ...]:
        """Turn the newest provisional packets of a channel into decisions of an epoch; returns the decisions."""
        found: list[OutputPacket] = []
        end_seq = effect.end_input_seq
        for entry in reversed(self._entries):
            if not isinstance(entry, OutputPacket) or entry.channel_id != effect.channel_id:
                continue
            if entry.session != effect.session:
                continue
            if not entry.flags & PROVISIONAL_BIT or entry.end_input_seq != end_seq:
                continue
            if entry.first_input_seq < effect.first_input_seq:
                break
            end_seq = entry.first_input_seq
            found.append(
                entry._replace(
                    flags=entry.flags & ~PROVISIONAL_BIT | OutputFlag.FROM_ACTIVE,
                    epoch=effect.epoch,
                    runs=tuple(run._replace(epoch=effect.epoch) for run in entry.runs),
                )
            )
        commit = Commit(effect.channel_id, tuple(reversed(found)))
        self.append(commit)
        return commit.packets

    def newest_session(self) -> int:
        """The newest session of any packet; 0 if there are no packets."""
        return max((session for session, _ in self._channels), default=0)

    def final_heartbeats(self, session: int) -> list[OutputPacket]:
        """The final heartbeats of earlier sessions."""
        return [
            entry
            for entry in self._entries
            if isinstance(entry, OutputPacket) and not entry.runs and entry.session < session
        ]

    def last_heartbeat(self, session: int, channel_id: int) -> OutputPacket | None:
        """The final heartbeat of a channel's session, or one with the end and the epochs of its packets."""
        for entry in reversed(self.final_heartbeats(session + 1)):
            if (entry.session, entry.channel_id) == (session, channel_id):
                return entry
        _, packets = self._channels.get((session, channel_id), ([], []))
        if not packets:
            return None
        firsts = {packet.epoch: packet for packet in reversed(packets)}
        lineage = Lineage(tuple(EpochStart(each, *first_place(firsts[each])) for each in sorted(firsts)))
        last = packets[-1]
        return last._replace(
            flags=OutputFlag.HEARTBEAT,
            epoch=lineage.epoch,
            first_input_seq=last.end_input_seq,
            first_message_seq=last.end_message_seq,
            message_count=0,
            runs=(),
            payload=lineage.encode(ENTRIES_MAX * ENTRY_SIZE),
        )

    def resumable(self, session: int) -> list[tuple[ChannelSnapshot, list[Run]]]:
        """The newest state of each channel in a session, and the decisions after it."""
        newest: dict[int, tuple[ChannelSnapshot, list[Run]]] = {}
        for entry in self._entries:
            if isinstance(entry, ChannelSnapshot):
                if entry.session == session:
                    newest[entry.channel_id] = entry, []
            elif entry.channel_id in newest:
                for packet in entry.packets if isinstance(entry, Commit) else (entry,):
                    if not packet.flags & PROVISIONAL_BIT and packet.session == session:
                        newest[entry.channel_id][1].extend(packet.runs)
        return list(newest.values())

    def replay_provisional(
        self, session: int, channel_id: int, source_ranges: tuple[tuple[int, int, int], ...]
    ) -> list[OutputPacket]:
        """The provisional packets that contain these source messages (stream, first, end), as retransmissions."""
        return [
            entry._replace(flags=entry.flags | RETRANSMISSION_BIT)
            for entry in self._entries
            if isinstance(entry, OutputPacket)
            and entry.flags & PROVISIONAL_BIT
            and entry.session == session
            and entry.channel_id == channel_id
            and any(
                run.source_stream_id == stream and run.first_source_seq < end and run.end_source_seq > first
                for run in entry.runs
                for stream, first, end in source_ranges
            )
        ]

    def replay(self, session: int, channel_id: int, input_ranges: Iterable[tuple[int, int]]) -> list[OutputPacket]:
        """The packets that contain these ranges (first, end) of `input_seq`, each once, as retransmissions."""
        firsts, packets = self._channels.get((session, channel_id), ([], []))
        found, done = [], 0
        for first_seq, end_seq in input_ranges:
            for place in range(max(done, bisect_right(firsts, first_seq) - 1), len(firsts)):
                packet = packets[place]
                if packet.first_input_seq >= end_seq:
                    break
                done = place + 1
                if packet.end_input_seq > first_seq:
                    found.append(packet._replace(flags=packet.flags | RETRANSMISSION_BIT))
        return found

    def replay_messages(
        self, session: int, channel_id: int, message_range: tuple[int, int] | None
    ) -> Iterator[OutputPacket]:
        """The packets that contain this range (first, end) of `message_seq`, as retransmissions."""
        if message_range is not None:
            first_seq, end_seq = message_range
            for packet in self._channels.get((session, channel_id), ([], []))[1]:
                if packet.first_message_seq < end_seq and packet.end_message_seq > first_seq:
                    yield packet._replace(flags=packet.flags | RETRANSMISSION_BIT)

    def _index(self, entry: Entry) -> None:
        if isinstance(entry, Commit):
            for packet in entry.packets:
                self._index(packet)
            return
        if isinstance(entry, ChannelSnapshot) or not entry.runs or entry.flags & PROVISIONAL_BIT:
            return
        firsts, packets = self._channels.setdefault((entry.session, entry.channel_id), ([], []))
        while firsts and firsts[-1] >= entry.first_input_seq:
            firsts.pop()
            packets.pop()
        firsts.append(entry.first_input_seq)
        packets.append(entry)
