"""Where one channel's numbered packets are in the output journal, by `input_seq` and by `message_seq`. Pure."""

from __future__ import annotations

from tandemfeed.feedcore.wire.lineage import EpochStart
from tandemfeed.journal.read.sequence_marks import MARK_EVERY, SequenceMarks

Where = tuple[int, int]  # session, channel_id: each session numbers from 1


class ChannelMarks:
    """Where one channel's numbered packets are. One thread adds packets, in their order in the journal.

    Packets of an epoch ascend; a new epoch may begin before the end of the old one.
    """

    def __init__(self) -> None:
        self.by_input = SequenceMarks()
        self.by_message = SequenceMarks()
        self._epoch = self._input_seq = 0
        self._unmarked_count = MARK_EVERY  # the first packet needs a mark
        self.epochs: tuple[EpochStart, ...] = ()  # as far as packets show them

    def is_found_from_before(self, epoch: int, first_input_seq: int) -> bool:
        """Add the next packet, if reading on from the last mark finds it soon; else False, and it needs a mark. Changes
        nothing that a lookup reads."""
        if epoch != self._epoch or first_input_seq <= self._input_seq or self._unmarked_count >= MARK_EVERY:
            return False
        self._input_seq = first_input_seq
        self._unmarked_count += 1
        return True

    def mark(self, epoch: int, first_input_seq: int, first_message_seq: int, index: int) -> None:
        """Add the next packet with its place. Needs the journal's lock."""
        if epoch != self._epoch:
            kept = tuple(each for each in self.epochs if each.epoch < epoch and each[1] < first_input_seq)
            self.epochs = (*kept, EpochStart(epoch, first_input_seq, first_message_seq))
        self._epoch, self._input_seq, self._unmarked_count = epoch, first_input_seq, 1
        self.by_input.mark(first_input_seq, index)
        self.by_message.mark(first_message_seq, index)

    def release(self, first_index: int) -> None:
        """Forget packets before the journal's first record."""
        self.by_input.release(first_index)
        self.by_message.release(first_index)
        if not self.by_input.first_seqs:
            self._unmarked_count = MARK_EVERY
