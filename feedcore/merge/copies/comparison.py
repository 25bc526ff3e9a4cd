"""Equality of two adapters' copies: a copy that differs reveals a broken or forging adapter.

Packets with equal boundaries are compared by their bytes. If boundaries differ, the common part of two packets is
compared by identity and content, including source messages that made no message.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right, insort
from collections import deque
from typing import TypeAlias

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import Diverged, MergeEffect
from tandemfeed.feedcore.wire.output_packet import OutputPacket, decode_runs
from tandemfeed.feedcore.wire.packet_parts import identified_messages
from tandemfeed.feedcore.wire.packet_series import PacketSeries
from tandemfeed.feedcore.wire.position import SEQ_MAX
from tandemfeed.feedcore.wire.refusal import PacketRefused

TRIM_COUNT = 1_024  # forgotten keys are removed from the list in batches of this many
# source_count, payload, runs in it, adapter_id, first_message_seq, message_count
Remembered: TypeAlias = tuple[int, bytes, int, int, int, int]


def content_of(packet: OutputPacket, first_input_seq: int, end_input_seq: int) -> list[tuple[object, ...]]:
    """The sources, then the messages, of `input_seq` first … end - 1 of a packet, however its runs are cut.

    Raises:
        PacketRefused: MALFORMED frames.
    """
    content: list[tuple[object, ...]] = []
    for run in packet.runs:
        first = max(first_input_seq, run.first_input_seq)
        source = (run.source_stream_id, run.first_source_seq - run.first_input_seq, run.is_source_gap)
        is_continued = content and content[-1][1:] == source
        if first < min(end_input_seq, run.end_input_seq) and not is_continued:
            content.append((first, *source))
    return [*content, *identified_messages(packet, first_input_seq, end_input_seq)]


def digest_of(packet: OutputPacket, first_input_seq: int, end_input_seq: int) -> int:
    """CRC-32 of the content of `input_seq` first … end - 1, or of the payload if that is malformed."""
    try:
        return zlib.crc32(repr(content_of(packet, first_input_seq, end_input_seq)).encode())
    except PacketRefused:
        return zlib.crc32(packet.payload)


def is_same_packet(one: OutputPacket, other: OutputPacket) -> bool:
    """True if two packets with equal first `input_seq` have the same bytes and first `message_seq`."""
    return one.payload == other.payload and one.first_message_seq == other.first_message_seq


def are_equal(one: OutputPacket, other: OutputPacket, first_input_seq: int, end_input_seq: int) -> bool:
    """True if both packets have the same content for `input_seq` first … end - 1, which both cover."""
    if one.first_input_seq == other.first_input_seq and is_same_packet(one, other):
        return True
    try:
        ours = content_of(one, first_input_seq, end_input_seq)
        return ours == content_of(other, first_input_seq, end_input_seq)
    except PacketRefused:
        return False


def divergence(
    channel_id: int, one: OutputPacket, other: OutputPacket, first_input_seq: int, end_input_seq: int
) -> Diverged:
    """The alarm for two copies of `input_seq` first … end - 1 that are not equal; one of the packets begins there."""
    begins_there = one if one.first_input_seq == first_input_seq else other
    digests = (digest_of(one, first_input_seq, end_input_seq), digest_of(other, first_input_seq, end_input_seq))
    return Diverged(
        channel_id, first_input_seq, begins_there.first_message_seq, (one.adapter_id, other.adapter_id), digests
    )


class CopyComparison:
    """Remembers what was delivered and compares later copies with it.

    It forgets one packet for each that it remembers, because forgetting thousands together would cause a pause. It
    remembers a packet as a plain tuple of plain values, which the garbage collector need not traverse. It remembers a
    series as it is, because copies of a replayed history rarely come: `_unfold` makes packets of it when one does.

    Args:
        config: which copies are compared, and how many packets are remembered.
    """

    def __init__(self, channel_id: int, counters: CounterSet, config: MergerConfig) -> None:
        self._channel_id = channel_id
        self._counters = counters
        self._every = {"full": 1, "sampled": config.sampled_every, "off": 0}[config.compare]
        self._skipped = 0
        self._remembered_count = config.compared_count
        self._packets: dict[int, Remembered] = {}  # by first_input_seq
        self._firsts: list[int] = []  # its keys, ascending, after some forgotten ones
        self._begin = 0  # how many of them are forgotten ones
        self._longest = 0  # source messages in the longest packet remembered
        self._series: deque[PacketSeries] = deque()  # in order of delivery
        self._series_count = 0  # packets in them
        self._series_end = 0  # the greatest end_input_seq of a series

    def remember(self, packet: OutputPacket, end_input_seq: int) -> None:
        """Remember a packet that was delivered, at least in part; `end_input_seq` is the packet's."""
        if self._every != 1:
            self._skipped += 1
            if self._skipped < self._every or not self._every:
                return
            self._skipped = 0
        self._note(packet, end_input_seq)

    def remember_series(self, series: PacketSeries) -> None:
        """Remember packets that were delivered."""
        if self._every != 1:
            for packet in series.packets:
                self.remember(packet, packet.end_input_seq)
            return
        self._series.append(series)
        self._series_count += len(series)
        self._series_end = max(self._series_end, series.end_input_seq)
        self._forget()

    def _note(self, packet: OutputPacket, end_input_seq: int) -> None:
        first, firsts, packets = packet.first_input_seq, self._firsts, self._packets
        if not packets or first > firsts[-1]:
            firsts.append(first)
        elif first not in packets:
            insort(firsts, first, self._begin)
        count = end_input_seq - first
        packets[first] = (
            count,
            packet.payload,
            len(packet.runs),
            packet.adapter_id,
            packet.first_message_seq,
            packet.message_count,
        )
        if count > self._longest:
            self._longest = count
        if len(packets) + self._series_count > self._remembered_count:
            self._forget()

    def _forget(self) -> None:
        """Forget the oldest until there are not too many. A series is forgotten as a whole."""
        packets, firsts = self._packets, self._firsts
        while len(packets) + self._series_count > self._remembered_count:
            if self._series and (not packets or self._series[0].first_input_seq < firsts[self._begin]):
                self._series_count -= len(self._series.popleft())
                continue
            del packets[firsts[self._begin]]
            self._begin += 1
            if self._begin == TRIM_COUNT:
                del firsts[:TRIM_COUNT]
                self._begin = 0

    def _unfold(self, first_input_seq: int, end_input_seq: int) -> None:
        """Make packets of the series that have any of these source messages."""
        remembered, self._series = self._series, deque()
        for series in remembered:
            if series.first_input_seq >= end_input_seq or series.end_input_seq <= first_input_seq:
                self._series.append(series)
                continue
            self._series_count -= len(series)
            for packet in series.packets:
                self._note(packet, packet.end_input_seq)

    def compare(self, packet: OutputPacket, end_input_seq: int, effects: list[MergeEffect]) -> None:
        """Compare a copy of what was delivered; only the part of the packet before `end_input_seq` counts."""
        if packet.first_input_seq < self._series_end:  # not a live one
            self._unfold(packet.first_input_seq, end_input_seq)
        known = self._packets.get(packet.first_input_seq)
        if known is not None and known[1] == packet.payload and known[4] == packet.first_message_seq:
            return
        self._compare_common(packet, end_input_seq, effects)

    def compare_held(self, one: OutputPacket, other: OutputPacket, effects: list[MergeEffect]) -> None:
        """Compare two copies that begin at the same place and wait for what precedes them."""
        first, end = one.first_input_seq, min(one.end_input_seq, other.end_input_seq)
        if self._every:
            self._judge(one, other, first, end, effects)

    def renumbered_from(self, input_seq: int) -> None:
        """Forget what was delivered under these numbers, because they now belong to other messages."""
        self._unfold(input_seq, SEQ_MAX)
        packets = self._packets
        place = self._index_of(input_seq)
        for first in self._firsts[place:]:
            if first + packets[first][0] > input_seq:
                del packets[first]
        self._firsts[place:] = [first for first in self._firsts[place:] if first in packets]

    def _index_of(self, input_seq: int) -> int:
        """The index in `_firsts` of the first packet that may cover a source message."""
        return bisect_right(self._firsts, input_seq - self._longest, self._begin)

    def _compare_common(self, packet: OutputPacket, end_input_seq: int, effects: list[MergeEffect]) -> None:
        is_compared = False
        index = self._index_of(packet.first_input_seq)
        while index < len(self._firsts) and (first := self._firsts[index]) < end_input_seq:
            index += 1
            known = _restored(self._channel_id, first, self._packets[first])
            begin, end = max(first, packet.first_input_seq), min(end_input_seq, known.end_input_seq)
            if begin < end:
                is_compared = True
                self._judge(known, packet, begin, end, effects)
        if not is_compared and self._every == 1:
            self._counters.add(Counter.MERGE_NOT_COMPARED)

    def _judge(self, one: OutputPacket, other: OutputPacket, begin: int, end: int, effects: list[MergeEffect]) -> None:
        if not are_equal(one, other, begin, end):
            self._counters.add(Counter.MERGE_DIVERGED)
            effects.append(divergence(self._channel_id, one, other, begin, end))


def _restored(channel_id: int, first_input_seq: int, known: Remembered) -> OutputPacket:
    """A packet made of what was remembered, which includes neither epoch nor times."""
    _, payload, run_count, adapter_id, first_message, count = known
    runs = decode_runs(payload, run_count, count, 0, first_input_seq, first_message, count)
    return OutputPacket(0, 0, channel_id, adapter_id, 0, 0, first_input_seq, first_message, count, runs, 0, 0, payload)
