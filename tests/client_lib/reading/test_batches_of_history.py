"""A batch of a replayed history is like any other, and a message that is kept does not keep the history in memory."""

from __future__ import annotations

import gc
import weakref

import pytest

from tandemfeed.client_lib.items import Batch, BatchOfSeries
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket, encode_output_packet
from tandemfeed.feedcore.wire.packet_series import PacketSeries, decode_series
from tests.client_lib.toy_cluster import MESSAGE_MODEL, packet

DECODER = Decoder(MESSAGE_MODEL)


def history() -> tuple[PacketSeries, list[OutputPacket]]:
    packets = [packet(at, at, 5, flags=OutputFlag.RETRANSMISSION) for at in range(1, 101, 5)]
    (series,) = decode_series([encode_output_packet(each) for each in packets])[0]
    assert isinstance(series, PacketSeries)
    return series, packets


@pytest.mark.parametrize("is_packet_made", [False, True])
def test_a_batch_of_a_series_has_what_a_batch_of_its_packet_has(is_packet_made: bool) -> None:
    series, packets = history()
    for place, each in enumerate(packets):
        batch, expected = BatchOfSeries(series, place, 1, 2, DECODER), Batch(each, 1, 2, DECODER)
        if is_packet_made:
            assert batch.packet == each
        assert bytes(batch.payload) == bytes(expected.payload)
        assert [rows.tolist() for _, rows in batch.arrays()] == [rows.tolist() for _, rows in expected.arrays()]
        for name in (
            "channel_id", "message_count", "first_input_seq", "end_input_seq", "first_message_seq", "end_message_seq",
            "adapter_id", "epoch", "source_sent_at_ns", "adapter_sent_at_ns", "received_at_ns", "received_monotonic_ns",
            "is_replayed", "is_provisional", "lineage", "skipped", "moves_cursor",
        ):  # fmt: skip
            assert getattr(batch, name) == getattr(expected, name), name
        assert batch.message_seqs.tolist() == expected.message_seqs.tolist()
        assert batch.sources() == expected.sources()
        assert batch.next_source_seqs() == expected.next_source_seqs()
        assert [each.to_dict() for each in batch.messages()] == [each.to_dict() for each in expected.messages()]
        assert [each.origin for each in batch.messages()] == [each.origin for each in expected.messages()]
        assert bytes(batch.first_messages(2).payload) == bytes(expected.first_messages(2).payload)


def test_a_message_that_is_kept_keeps_only_its_packet_in_memory() -> None:
    series, _ = history()
    batch = BatchOfSeries(series, 3, 1, 2, DECODER)
    kept, rows = next(batch.messages()), next(BatchOfSeries(series, 4, 1, 2, DECODER).arrays())
    watched = weakref.ref(series)
    del series, batch
    gc.collect()
    assert watched() is None
    assert kept.origin.message_seq == 16
    assert len(rows[1]) == 5
