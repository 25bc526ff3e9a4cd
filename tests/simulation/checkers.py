"""The invariants of docs/protocol.md clause 9, each watched by an object of its own, at every step of a run."""

from __future__ import annotations

from feedcore.merge_effects import Deliver, Filled, Gap, MergeEffect, SourceGap
from feedcore.output_packet import OUTPUT_FRAME, OUTPUT_FRAME_SIZE, OutputFlag, OutputPacket, message_frames
from feedcore.states import ReplicaState


class Violation(AssertionError):
    """An invariant does not hold; the text says which and where."""


def messages_of(packet: OutputPacket, first_index: int, end_index: int) -> list[tuple[int, int, int, bytes]]:
    """(message_seq, source_stream_id, source_seq, body) of messages of a packet."""
    frames = message_frames(packet)
    found = []
    for run in packet.runs:
        base = run.first_message_seq - packet.first_message_seq
        for index in range(base, base + run.message_count):
            if first_index <= index < end_index:
                offset, length = frames[index]
                source_offset = OUTPUT_FRAME.unpack_from(packet.payload, offset)[1]
                body = packet.payload[offset + OUTPUT_FRAME_SIZE : offset + length]
                seq = packet.first_message_seq + index
                found.append((seq, run.source_stream_id, run.first_source_seq + source_offset, body))
    return found


class TransmissionChecker:
    """Invariants 4, 5 and 6, over everything any adapter puts on the wire."""

    def __init__(self) -> None:
        self.content: dict[tuple[int, int, int], tuple[int, int, bytes]] = {}
        self.active_of: dict[tuple[int, int], int] = {}  # (epoch, channel) -> adapter
        self.decided: set[tuple[int, int, int]] = set()
        self.granted: list[int] = []

    def on_grant(self, epoch: int) -> None:
        if self.granted and epoch <= self.granted[-1]:
            raise Violation(f"5: epoch {epoch} granted after {self.granted[-1]}")
        self.granted.append(epoch)

    def on_transmit(self, packet: OutputPacket, state: ReplicaState) -> None:
        channel = packet.channel_id
        is_active = bool(packet.flags & OutputFlag.FROM_ACTIVE)
        if is_active:
            owner = self.active_of.setdefault((packet.epoch, channel), packet.adapter_id)
            if owner != packet.adapter_id:
                raise Violation(f"5: adapters {owner} and {packet.adapter_id} both active in epoch {packet.epoch}")
            if state is not ReplicaState.ACTIVE:
                raise Violation(f"5: adapter {packet.adapter_id} transmits as active while {state.value}")
        for seq, stream, source_seq, body in messages_of(packet, 0, packet.message_count):
            key = (packet.epoch, channel, seq)
            known = self.content.setdefault(key, (stream, source_seq, body))
            if known != (stream, source_seq, body):
                raise Violation(f"4: {key} is source {known[:2]} and {(stream, source_seq)}, or its bytes differ")
            if is_active:
                self.decided.add(key)
            elif key not in self.decided:
                raise Violation(f"6: adapter {packet.adapter_id} transmitted {key} before it was decided")


class DeliveryChecker:
    """Invariants 1 and 2, at one client, against what the source sent."""

    def __init__(self, name: str, expected: dict[int, list[list[bytes]]]) -> None:
        self.name = name
        self.expected = expected
        self.delivered: dict[int, list[int]] = {stream: [0] * len(rows) for stream, rows in expected.items()}
        self.last_source_seq: dict[int, int] = dict.fromkeys(expected, 0)
        self.gaps: list[Gap | SourceGap] = []

    def on_effect(self, effect: MergeEffect) -> None:
        if isinstance(effect, Deliver | Filled):
            for _, stream, source_seq, body in messages_of(effect.packet, effect.first_index, effect.end_index):
                self._take(stream, source_seq, body, in_order=isinstance(effect, Deliver))
        elif isinstance(effect, Gap | SourceGap):
            self.gaps.append(effect)

    def at_end(self) -> None:
        """Everything was delivered; the simulator's source never loses its journal, so no gap is excused."""
        if self.gaps:
            raise Violation(f"1: {self.name} was told of gaps: {self.gaps[:3]}")
        for stream, counts in self.delivered.items():
            for index, count in enumerate(counts):
                wanted = len(self.expected[stream][index])
                if count != wanted:
                    raise Violation(
                        f"1: {self.name} got {count} of {wanted} messages of stream {stream} source_seq {index + 1}"
                    )

    def _take(self, stream: int, source_seq: int, body: bytes, in_order: bool) -> None:
        copy = self.delivered[stream][source_seq - 1]
        wanted = self.expected[stream][source_seq - 1]
        if copy >= len(wanted):
            raise Violation(f"1: {self.name} got stream {stream} source_seq {source_seq} again")
        if wanted[copy] != body:
            raise Violation(f"1: {self.name} got other content for stream {stream} source_seq {source_seq}")
        if in_order and source_seq < self.last_source_seq[stream]:
            raise Violation(
                f"2: {self.name} got stream {stream} source_seq {source_seq} behind {self.last_source_seq[stream]}"
            )
        self.last_source_seq[stream] = max(self.last_source_seq[stream], source_seq)
        self.delivered[stream][source_seq - 1] += 1
