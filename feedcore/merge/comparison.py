"""Byte-equality of two adapters' copies: a copy that differs shows a broken or forging adapter.

Where the packets' boundaries agree, comparing is one comparison of bytes. Where they do not, what the two packets have
in common is compared message by message, by identity and content.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right, insort
from typing import TypeAlias

from feedcore.counters import Counter, CounterSet
from feedcore.merge.config import CompareMode
from feedcore.merge.effects import Diverged, MergeEffect
from feedcore.wire.output_packet import OutputPacket, decode_runs
from feedcore.wire.packet_parts import identified_messages
from feedcore.wire.refusal import PacketRefused

TRIM_COUNT = 1_024  # forgotten keys are dropped from the list so many at a time
Remembered: TypeAlias = tuple[int, bytes, int, int]  # message_count, payload, runs in it, adapter_id


def digest_of(packet: OutputPacket, first_seq: int, end_seq: int) -> int:
    """CRC-32 over identities and content of `message_seq` first … end - 1; over the payload if it is broken."""
    try:
        digest = 0
        for stream, source_seq, lost_count, body in identified_messages(packet, first_seq, end_seq):
            digest = zlib.crc32(b"%d %d %d %d " % (stream, source_seq, lost_count, len(body)), digest)
            digest = zlib.crc32(body, digest)
    except PacketRefused:
        return zlib.crc32(packet.payload)
    return digest


def are_equal(one: OutputPacket, other: OutputPacket, first_seq: int, end_seq: int) -> bool:
    """True if both say the same about `message_seq` first … end - 1, which both hold."""
    if (one.first_message_seq, one.message_count, one.payload) == (
        other.first_message_seq,
        other.message_count,
        other.payload,
    ):
        return True
    try:
        ours = list(identified_messages(one, first_seq, end_seq))
        return ours == list(identified_messages(other, first_seq, end_seq))
    except PacketRefused:
        return False


def divergence(channel_id: int, one: OutputPacket, other: OutputPacket, first_seq: int, end_seq: int) -> Diverged:
    """The alarm for two copies of `message_seq` first … end - 1 that are not equal."""
    digests = (digest_of(one, first_seq, end_seq), digest_of(other, first_seq, end_seq))
    return Diverged(channel_id, first_seq, (one.adapter_id, other.adapter_id), digests)


class CopyComparison:
    """Remembers what was delivered and compares what comes behind with it.

    One packet is forgotten for each that is remembered: thousands at once would be a pause. What is remembered of one
    are plain values in a plain tuple, which collections of cyclic garbage need not look at.

    Args:
        mode: "full", "sampled" or "off".
        sampled_every: of delivered packets, every how many-th is compared in "sampled".
        remembered_count: delivered packets remembered.
    """

    def __init__(
        self, channel_id: int, counters: CounterSet, mode: CompareMode, sampled_every: int, remembered_count: int
    ) -> None:
        self._channel_id = channel_id
        self._counters = counters
        self._every = {"full": 1, "sampled": sampled_every, "off": 0}[mode]
        self._skipped = 0
        self._remembered_count = remembered_count
        self._packets: dict[int, Remembered] = {}  # by first_message_seq
        self._firsts: list[int] = []  # its keys, ascending, behind some forgotten ones
        self._begin = 0  # how many of them are forgotten
        self._longest = 0  # messages in the longest packet remembered

    def remember(self, packet: OutputPacket) -> None:
        """A packet that was delivered, at least in part."""
        if self._every != 1:
            self._skipped += 1
            if self._skipped < self._every or not self._every:
                return
            self._skipped = 0
        first, firsts, packets = packet.first_message_seq, self._firsts, self._packets
        if not packets or first > firsts[-1]:
            firsts.append(first)
        elif first not in packets:
            insort(firsts, first, self._begin)
        packets[first] = (packet.message_count, packet.payload, len(packet.runs), packet.adapter_id)
        if packet.message_count > self._longest:
            self._longest = packet.message_count
        if len(packets) > self._remembered_count:
            del packets[firsts[self._begin]]
            self._begin += 1
            if self._begin == TRIM_COUNT:
                del firsts[:TRIM_COUNT]
                self._begin = 0

    def compare(self, packet: OutputPacket, end_seq: int, effects: list[MergeEffect]) -> None:
        """A copy of messages that were delivered; of the packet only what lies before `end_seq` counts."""
        known = self._packets.get(packet.first_message_seq)
        if known is not None and known[1] == packet.payload and known[0] == packet.message_count:
            return
        if self._every:
            self._compare_common(packet, end_seq, effects)

    def renumbered_from(self, message_seq: int) -> None:
        """What was delivered under these numbers is not what they stand for now."""
        packets = self._packets
        place = self._place_of(message_seq)
        for first in self._firsts[place:]:
            if first + packets[first][0] > message_seq:
                del packets[first]
        self._firsts[place:] = [first for first in self._firsts[place:] if first in packets]

    def _place_of(self, message_seq: int) -> int:
        """Where in `_firsts` the packets begin that may hold a message."""
        return bisect_right(self._firsts, message_seq - self._longest, self._begin)

    def _compare_common(self, packet: OutputPacket, end_seq: int, effects: list[MergeEffect]) -> None:
        compared = 0
        place = self._place_of(packet.first_message_seq)
        while place < len(self._firsts) and (first := self._firsts[place]) < end_seq:
            place += 1
            known = _restored(self._channel_id, first, self._packets[first])
            begin, end = max(first, packet.first_message_seq), min(end_seq, known.end_message_seq)
            if begin >= end:
                continue
            compared += end - begin
            if not are_equal(known, packet, begin, end):
                self._counters.add(Counter.MERGE_DIVERGED)
                effects.append(divergence(self._channel_id, known, packet, begin, end))
        if not compared and packet.message_count and self._every == 1:
            self._counters.add(Counter.MERGE_NOT_COMPARED)


def _restored(channel_id: int, first_seq: int, known: Remembered) -> OutputPacket:
    """A packet with all of what was remembered; neither its epoch nor its times are."""
    count, payload, run_count, adapter_id = known
    runs = decode_runs(payload, run_count, count, 0, first_seq, count)
    return OutputPacket(0, 0, channel_id, adapter_id, 0, 0, first_seq, first_seq, count, runs, 0, 0, payload)
