"""Numbers the messages of a source stream and packs them into the packet records of its journal. Pure.

A packet contains consecutive messages of one source stream in record order. It ends when it is full, when it has
`packet_messages_max` messages, before a multiple of `packet_records`, or at the end of the micro-batch.

Invariant: packets and numbers are a function of (plan, next number, messages), so a rerun gives the same bytes. The
files of a recording, except the last, end at a multiple of `packet_records`; so the bytes do not depend on how many
files a micro-batch has. `sent_at_ns` is 0 here; the sender fills it in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandemfeed.feedcore.wire.source_packet import SOURCE_HEADER_SIZE, SOURCE_MAGIC, SOURCE_VERSION
from tandemfeed.spark_feed.journaling.records import PACKET_FIELDS, NumberingPlan, RecordKind, SourceJournalError
from tandemfeed.spark_feed.numbering.rows.kernels import cut_packets, join_packets
from tandemfeed.transport.sealing.source_sealing import SOURCE_SEAL_SIZE


class Block(NamedTuple):
    """The framed messages of one source stream among consecutive records, in record order.

    Attributes:
        first_record_index, end_record_index: the records, of all source streams.
        record_index, event_at_ns: int64, shape (messages,).
        sizes: uint32, shape (messages,): of each frame.
        data: uint8: the frames, one after the other.
    """

    first_record_index: int
    end_record_index: int
    record_index: NDArray[np.int64]
    event_at_ns: NDArray[np.int64]
    sizes: NDArray[np.uint32]
    data: NDArray[np.uint8]


class Packed(NamedTuple):
    """PACKET records, one after the other in `data`; `ends` has where each ends in it."""

    data: NDArray[np.uint8]
    ends: NDArray[np.int64]


def join_blocks(blocks: Sequence[Block], next_record_index: int) -> Block:
    """The records from `next_record_index` on as one block, without those that are already journaled.

    Raises:
        SourceJournalError: records are missing.
    """
    wanted: list[Block] = []
    due = next_record_index
    for block in sorted(blocks, key=lambda block: block.first_record_index):
        if block.end_record_index <= next_record_index:
            continue
        if block.first_record_index > due or (block.first_record_index < due and wanted):
            raise SourceJournalError(
                f"found record {block.first_record_index}, expected record {due}: a file of the recording is missing, "
                "or the files were not read in order"
            )
        wanted.append(_from_record(block, next_record_index))
        due = block.end_record_index
    if len(wanted) == 1:
        return wanted[0]
    columns = (np.concatenate([block[at] for block in wanted] or [EMPTY[at]]) for at in range(2, len(Block._fields)))
    return Block(next_record_index, due, *columns)


def pack_stream(plan: NumberingPlan, stream_id: int, next_source_seq: int, block: Block) -> Packed:
    """The packets of a block's messages, numbered from `next_source_seq`.

    Raises:
        SourceJournalError: a message does not fit in any packet.
    """
    feed = plan.feed
    room = feed.datagram_size_max - SOURCE_HEADER_SIZE - SOURCE_SEAL_SIZE
    cuts = np.empty(len(block.sizes) + 1, np.int64)
    count = cut_packets(block.sizes, block.record_index, room, plan.packet_messages_max, plan.packet_records, cuts)
    if count < 0:
        large = -count - 1
        raise SourceJournalError(
            f"record {block.record_index[large]}: a message of {block.sizes[large]} bytes does not fit in a datagram "
            f"of {feed.datagram_size_max} bytes (datagram_size_max)"
        )
    cuts = cuts[: count + 1]
    bounds = np.concatenate([[0], np.cumsum(block.sizes, dtype=np.int64)])[cuts]
    last = cuts[1:] - 1
    heads = np.zeros(count, PACKET_FIELDS)
    heads["kind"] = RecordKind.PACKET
    heads["event_at_ns"] = block.event_at_ns[last]
    heads["last_record_index"] = block.record_index[last]
    header = heads["packet"]
    header["magic"], header["version"] = SOURCE_MAGIC, SOURCE_VERSION
    header["feed_id"], header["source_stream_id"], header["session"] = feed.feed_id, stream_id, feed.session
    header["message_count"] = np.diff(cuts)
    header["first_source_seq"] = next_source_seq + cuts[:-1]
    ends = bounds[1:] + np.arange(1, count + 1) * PACKET_FIELDS.itemsize
    data = np.empty(int(ends[-1]) if count else 0, np.uint8)
    join_packets(heads.view(np.uint8).reshape(count, PACKET_FIELDS.itemsize), block.data, bounds, data)
    return Packed(data, ends)


EMPTY = Block(0, 0, np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint32), np.empty(0, np.uint8))


def _from_record(block: Block, next_record_index: int) -> Block:
    """The block without the records before `next_record_index`."""
    if block.first_record_index >= next_record_index:
        return block
    skip = int(np.searchsorted(block.record_index, next_record_index))
    start = int(block.sizes[:skip].sum())
    return Block(
        next_record_index,
        block.end_record_index,
        block.record_index[skip:],
        block.event_at_ns[skip:],
        block.sizes[skip:],
        block.data[start:],
    )
