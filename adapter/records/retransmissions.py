"""Reads the packets that a replay asks for out of the output journal, in bulk: headers are compared with numpy, and
each packet is only copied. So a history of millions of messages costs its adapter little.

Provisional packets count only as they were committed, which `OutputJournal._lookup` knows. A channel that has any is
read there, packet by packet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemfeed.feedcore.wire.output_packet import (
    OUTPUT_HEADER_SIZE,
    OUTPUT_LAYOUT,
    OUTPUT_MAGIC,
    OUTPUT_VERSION,
    RETRANSMISSION_BIT,
    OutputPacket,
    decode_output_packet,
)
from tandemfeed.journal import Batch, NoSuchRecord, Tailer
from tandemfeed.journal.read.sequence_marks import MARK_EVERY, UNBOUNDED, Stretch

READ_COUNT_MIN, READ_COUNT_MAX = 2 * MARK_EVERY, 16 * MARK_EVERY  # a gap of some packets; a history: about 1.5 MB
FLAGS_AT = OUTPUT_LAYOUT.offsets["flags"]
HEADER = OUTPUT_LAYOUT.dtype(
    ["magic", "version", "flags", "channel_id", "session", "message_count", "run_count", "first_message_seq",
     "first_input_seq"]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WantedPackets:
    """Which packets a replay asks for: those that cover any of the numbers.

    Attributes:
        first_seq, end_seq: of `message_seq` if `by_message`, else of `input_seq`.
    """

    session: int
    channel_id: int
    first_seq: int
    end_seq: int
    by_message: bool

    def has(self, packet: OutputPacket) -> bool:
        """Whether a packet of the channel is wanted."""
        if self.by_message:
            is_wanted = packet.message_count > 0 and packet.end_message_seq > self.first_seq
            return is_wanted and packet.first_message_seq < self.end_seq
        return packet.end_input_seq > self.first_seq and packet.first_input_seq < self.end_seq


def read_retransmissions(
    tailer: Tailer, stretches: Sequence[Stretch], wanted: WantedPackets, end_index: int = UNBOUNDED
) -> Iterator[bytes]:
    """The wanted packets in order, as retransmissions. Packets that are not in the journal any more are left out.

    Args:
        stretches: where they are, in the order of the journal: what follows one begins the next.
        end_index: from this place on there are none.
    """
    if not _go_to_first(tailer, stretches):
        return
    read_count = READ_COUNT_MIN
    begins = np.array([each.begin_index for each in stretches], np.uint64)
    untils = np.array([min(each.until_seq, wanted.end_seq) for each in stretches], np.uint64)
    while (batch := tailer.read_batch(read_count, mixed=True)) is not None:
        read_count = min(2 * read_count, READ_COUNT_MAX)
        headers = batch.heads(OUTPUT_HEADER_SIZE).view(HEADER).reshape(-1)
        numbers = headers["first_message_seq" if wanted.by_message else "first_input_seq"]
        indices = np.uint64(batch.first_index) + np.arange(len(batch), dtype=np.uint64)
        stretch_of = np.maximum(np.searchsorted(begins, indices, side="right") - 1, 0)
        is_of_channel = _are_of_channel(headers, wanted)
        is_superseded = numbers >= untils[stretch_of]
        yield from _copies(batch, headers, np.flatnonzero(is_of_channel & ~is_superseded), wanted)
        if (is_of_channel & is_superseded & (stretch_of == len(stretches) - 1)).any():
            return  # the end of the last stretch
        if batch.first_index + len(batch) > end_index:
            return


def _go_to_first(tailer: Tailer, stretches: Sequence[Stretch]) -> bool:
    """Go to the first stretch that is still in the journal; False: there is none."""
    for stretch in stretches:
        try:
            tailer.to_index(stretch.begin_index)
        except NoSuchRecord:
            continue  # released by retention meanwhile
        return True
    return False


def _are_of_channel(headers: NDArray[np.void], wanted: WantedPackets) -> NDArray[np.bool_]:
    """Which records are packets with runs of the channel and session."""
    found: NDArray[np.bool_] = (headers["magic"] == OUTPUT_MAGIC) & (headers["version"] == OUTPUT_VERSION)
    found &= (headers["channel_id"] == wanted.channel_id) & (headers["session"] == wanted.session)
    found &= headers["run_count"] > 0
    return found


def _copies(
    batch: Batch, headers: NDArray[np.void], places: NDArray[np.intp], wanted: WantedPackets
) -> Iterator[bytes]:
    """Of these records, those that are wanted, marked as retransmissions."""
    if wanted.by_message:
        rows = headers[places]
        is_wanted = (rows["message_count"] > 0) & (rows["first_message_seq"] + rows["message_count"] > wanted.first_seq)
    else:
        is_wanted = headers["first_input_seq"][places] >= wanted.first_seq
        for at in np.flatnonzero(~is_wanted).tolist():  # their runs say where they end
            is_wanted[at] = wanted.has(decode_output_packet(batch[places[at]].tobytes()))
    places = places[is_wanted]
    if not len(places):
        return
    starts, sizes = batch.starts[places], batch.sizes[places]
    base = int(starts[0])
    block = batch.data[base : int(starts[-1] + sizes[-1])].copy()
    starts = starts - base
    block[starts + FLAGS_AT] |= RETRANSMISSION_BIT
    data = block.data
    for start, end in zip(starts.tolist(), (starts + sizes).tolist(), strict=True):
        yield bytes(data[start:end])
