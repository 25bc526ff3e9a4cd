"""The evaluation of a recording. The demo and the drills rely on it, so it must detect every kind of fault."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.client_lib.items import Batch, Filled
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.client_lib.recording.record import ROW_DTYPE, SPAN_DTYPE, ChannelRecord, DeliveryRecord, stream_figures
from tandemfeed.client_lib.recording.recorder import DeliveryRecorder
from tandemfeed.feedcore.merge.effects import Takeover
from tandemfeed.feedcore.wire.output_packet import OutputPacket, encode_runs
from tandemfeed.feedcore.wire.packet_parts import part_of
from tandemfeed.feedcore.wire.position import Run
from tests.client_lib.toy_cluster import CHANNEL_ID, MESSAGE_MODEL, packet

MS = 1_000_000
DECODER = Decoder(MESSAGE_MODEL, "toy")


def batch(of: OutputPacket, at_ms: int, first: int = 0, end: int | None = None) -> Batch:
    """A batch delivered `at_ms`, half a millisecond after its source sent it."""
    part = part_of(of, of.first_input_seq + first, of.end_input_seq if end is None else of.first_input_seq + end)
    packet_at = part._replace(source_sent_at_ns=at_ms * MS + 1)
    return Batch(packet_at, at_ms * MS + 500_001, at_ms * MS + 500_001, DECODER)


def test_a_complete_and_ordered_delivery_has_no_faults() -> None:
    recorder = DeliveryRecorder()
    recorder.record(batch(packet(1 + 5 * at, 1 + 5 * at, 5), at) for at in range(10))
    figures = recorder.finish().figures({1: 50})
    assert (figures.delivered, figures.missing, figures.duplicated, figures.out_of_order) == (50, 0, 0, 0)
    assert figures.latency_us is not None
    assert figures.latency_us.p50 == figures.latency_us.max == 500.0
    assert figures.longest_stall_ms == 1.0


def test_missing_repeated_and_late_messages_are_counted_and_listed() -> None:
    recorder = DeliveryRecorder()
    for at, first in enumerate((1, 6, 16, 6, 11)):  # 6–10 repeated, 11–15 late, 21–25 missing
        recorder.record([batch(packet(first, first, 5), at)])
    figures = recorder.finish().figures({1: 25, 2: 3})
    assert (figures.delivered, figures.missing, figures.duplicated, figures.out_of_order) == (20, 8, 5, 5)
    assert figures.streams[1].missing_ranges == ((21, 25),)
    assert figures.streams[2].missing_ranges == ((1, 3),)


def test_filled_messages_count_as_delivered_and_out_of_order() -> None:
    recorder = DeliveryRecorder()
    recorder.record([batch(packet(6, 6, 5), 0), Filled(batch(packet(1, 1, 5), 1))])
    figures = recorder.finish().figures({1: 10})
    assert (figures.missing, figures.out_of_order, figures.filled_messages) == (0, 5, 5)


def test_source_messages_that_yield_no_message_do_not_count_as_lost() -> None:
    silent = Run(1, 6, 6, 1, 6, 4, 0)
    run = Run(1, 10, 6, 1, 10, 5, 5)
    frames = packet(6, 10, 5).payload[16:]
    both = packet(6, 10, 5)._replace(runs=(silent, run), payload=encode_runs((silent, run)) + frames)
    recorder = DeliveryRecorder()
    recorder.record([batch(packet(1, 1, 5), 0), batch(both, 1)])
    assert recorder.finish().figures({1: 14}).missing == 0


def test_the_parts_of_a_packet_together_cover_its_source_messages_once() -> None:
    silent = Run(1, 1, 1, 2, 7, 3, 0)
    run = Run(1, 4, 1, 1, 1, 5, 5)
    whole = packet(1, 1, 5)._replace(
        runs=(silent, run), payload=encode_runs((silent, run)) + packet(1, 1, 5).payload[16:]
    )
    parts = [batch(whole, 0, 0, 5), batch(whole, 0, 5, 8)]
    assert [span[:3] for part in parts for span in part.sources()] == [(2, 7, 10), (1, 1, 3), (1, 3, 6)]
    assert [each for part in parts for each in part.messages()] == list(batch(whole, 0).messages())


def test_the_stall_of_a_takeover_is_the_longest_pause_around_it() -> None:
    recorder = DeliveryRecorder()
    times = [*range(0, 3000, 10), *range(3045, 6000, 10), 9000]
    for at, at_ms in enumerate(times):
        recorder.record([batch(packet(1 + at, 1 + at, 1), at_ms)])
    takeover = Takeover(CHANNEL_ID, 2, 2, 300, 3_040 * MS)
    recorder.record([takeover])
    record = recorder.finish()
    figures = record.figures()
    assert [each.stall_ms for each in figures.takeovers] == [55.0]
    assert figures.longest_stall_ms > 3000
    since_ms, pause_ms = record.inter_arrival(takeover)
    assert since_ms[np.argmax(pause_ms)] == 5.500001
    assert len(record.inter_arrival(Takeover(9, 2, 2, 1, 0))[0]) == 0


def test_a_record_can_be_saved_and_loaded(tmp_path: Path) -> None:
    recorder = DeliveryRecorder()
    recorder.record([batch(packet(1, 1, 5), 0), Takeover(CHANNEL_ID, 2, 2, 6, 1), batch(packet(6, 6, 5), 2)])
    recorder.save(tmp_path / "record.npz")
    loaded = DeliveryRecord.load(tmp_path / "record.npz")
    assert loaded.figures({1: 10}) == recorder.finish().figures({1: 10})
    assert loaded.events[0]["event"] == "Takeover"


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 8)), max_size=12))
def test_figures_equal_those_from_counting_single_messages(deliveries: Sequence[tuple[int, int]]) -> None:
    seen: set[int] = set()
    duplicated = out_of_order = 0
    for first, count in deliveries:
        newest = max(seen, default=0)
        for seq in range(first, first + count):
            duplicated += seq in seen
            out_of_order += seq not in seen and seq < newest
        seen |= set(range(first, first + count))
    spans = np.array([(1, first, first + count, True, 20_261_121) for first, count in deliveries], SPAN_DTYPE)
    figures = stream_figures(spans, 50)
    expected = (len(seen), duplicated, out_of_order, len(set(range(1, 51)) - seen))
    assert (figures.delivered, figures.duplicated, figures.out_of_order, figures.missing) == expected


def test_two_sessions_are_evaluated_separately() -> None:
    rows = [(1, 1, 11, True, 20_261_121), (1, 1, 4, True, 20_261_122), (1, 6, 8, True, 20_261_122)]
    record = DeliveryRecord({1: ChannelRecord(np.empty(0, ROW_DTYPE), np.array(rows, SPAN_DTYPE))}, (), ())
    figures = record.figures({1: 10}, expected_later=[{1: 7}])
    assert (figures.delivered, figures.duplicated, figures.out_of_order, figures.missing) == (15, 0, 0, 2)
    assert figures.streams[1].missing_ranges == ((4, 5),)
    assert record.figures({1: 10}, expected_later=[{1: 7}, {1: 3}]).missing == 5
