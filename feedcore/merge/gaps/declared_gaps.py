"""What was declared missing: reports each gap once, and delivers late copies of it."""

from __future__ import annotations

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.merge.copies.confirmation import Stretch
from tandemfeed.feedcore.merge.effects import Gap, GapReason, MergeEffect
from tandemfeed.feedcore.merge.source_order import RememberedGaps, SourceOrder
from tandemfeed.feedcore.wire.output_packet import OutputPacket
from tandemfeed.feedcore.wire.packet_parts import part_of, placed_frames


class DeclaredGaps:
    """The gaps of one channel.

    Args:
        order: determines which part of a late copy is new.
        count_max: gaps remembered for late copies.

    Attributes:
        ranges: the `input_seq` that have not arrived yet.
    """

    def __init__(self, channel_id: int, counters: CounterSet, order: SourceOrder, count_max: int) -> None:
        self.ranges = RememberedGaps(count_max)
        self._channel_id = channel_id
        self._counters = counters
        self._order = order

    def declare(self, stretch: Stretch, effects: list[MergeEffect]) -> None:
        """Declare these source messages missing. If they made no message, only count them."""
        first, end, is_waiting = stretch
        message_count = end.message_seq - first.message_seq
        if message_count <= 0:
            self._counters.add(Counter.MERGE_SILENT_GAPS, end.input_seq - first.input_seq)
            return
        reason = GapReason.UNCONFIRMED if is_waiting else GapReason.NO_ADAPTER_HAD_THEM
        self._counters.add(Counter.MERGE_UNCONFIRMED if is_waiting else Counter.MERGE_GAPS, message_count)
        if first.input_seq:
            self.ranges.add(first.input_seq, end.input_seq)
        numbers = (first.input_seq, end.input_seq, first.message_seq, end.message_seq)
        effects.append(Gap(self._channel_id, *numbers, reason))

    def fill(self, packet: OutputPacket, end_input_seq: int, effects: list[MergeEffect]) -> bool:
        """Deliver the part of a late copy, before `end_input_seq`, that a gap named; False if there is none.

        Raises:
            PacketRefused: MALFORMED frames; nothing has changed.
        """
        if not self.ranges.overlaps(packet.first_input_seq, end_input_seq):
            return False
        placed_frames(packet)  # refuses a packet that cannot be cut, before anything changes
        for first, end in self.ranges.take(packet.first_input_seq, end_input_seq):
            self._order.take(part_of(packet, first, end), effects, is_late=True)
        return True
