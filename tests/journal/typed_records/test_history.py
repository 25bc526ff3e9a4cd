"""Hop-timing history: its bytes, what is refused, and statistics that keep their precision."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.journal.typed_records.history import (
    BUCKET_COUNT,
    HOPS_MAX,
    PRECISION_BITS,
    STAGES_MAX,
    VALUE_BITS,
    Hop,
    HopStamper,
    LatencyHistogram,
    LatencyStatistics,
    MalformedHistory,
    MessageHistory,
    split_history,
)

U64 = st.integers(0, (1 << 64) - 1)
HOPS = st.builds(Hop, st.integers(0, (1 << 32) - 1), U64, U64, U64)
HISTORIES = st.builds(MessageHistory, st.lists(HOPS, max_size=HOPS_MAX).map(tuple))

GOLDEN = MessageHistory(
    (
        Hop(1, 0, 1_795_246_496_000_000_000, 1_795_246_496_000_000_250),
        Hop(0xFFFFFFFF, 0x079B_F700_0000_0005, 1_795_246_496_000_001_000, 1_795_246_496_000_001_999),
    )
)
GOLDEN_BYTES = bytes.fromhex(
    "c1544801 02"
    "01000000 0000000000000000 0040582e2dffe918 fa40582e2dffe918"
    "ffffffff 0500000000f79b07 e843582e2dffe918 cf47582e2dffe918"
)


def test_the_bytes_of_the_golden_history_never_change() -> None:
    assert GOLDEN.encode() == GOLDEN_BYTES
    assert MessageHistory.decode(GOLDEN_BYTES) == GOLDEN
    assert MessageHistory().encode() == bytes.fromhex("c154480100")


@given(HISTORIES, st.binary(max_size=50))
def test_a_record_returns_its_history_and_its_bytes(history: MessageHistory, record: bytes) -> None:
    encoded = history.encode()
    assert MessageHistory.decode(encoded) == history
    found, rest = split_history(encoded + record)
    assert found == history
    assert rest == record


@given(st.binary(max_size=50).filter(lambda data: not data.startswith(b"\xc1TH")))
def test_a_record_without_a_history_is_unchanged(record: bytes) -> None:
    assert split_history(record) == (None, memoryview(record))


@given(HISTORIES, st.data())
def test_a_history_truncated_anywhere_is_refused(history: MessageHistory, data: st.DataObject) -> None:
    encoded = history.encode()
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(MalformedHistory, match=r"cut off|not a history"):
        MessageHistory.decode(encoded[:cut])


@given(st.binary(max_size=120), st.booleans())
def test_foreign_bytes_are_refused_or_are_a_history(data: bytes, is_prefixed: bool) -> None:
    record = b"\xc1TH\x01" + data if is_prefixed else data
    try:
        history = MessageHistory.decode(record)
    except MalformedHistory:
        return
    assert history.encode() == record


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "begins with nothing"),
        (b"TFJB\x01", "begins with 54 46 4a 42"),
        (b"\xc1TH\x02\x00", "version 2: this release reads version 1"),
        (b"\xc1TH\x01\x10", "the history has 16 hops; the maximum is 15"),
        (GOLDEN_BYTES + b"x", "1 bytes follow"),
        (GOLDEN_BYTES[:-1], "2 hops take 61 bytes, but there are 60"),
    ],
)
def test_the_error_says_what_is_wrong_with_a_history(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedHistory, match=reason):
        MessageHistory.decode(data)


def test_a_record_that_begins_like_a_history_but_is_malformed_is_refused() -> None:
    with pytest.raises(MalformedHistory, match="cut off"):
        split_history(b"\xc1TH\x01")


def test_hops_are_added_at_the_end_and_the_sixteenth_is_refused() -> None:
    history = MessageHistory()
    for number in range(HOPS_MAX):
        history = history.with_hop(Hop(number, number, number, number))
    assert [hop.source_id for hop in history.hops] == list(range(15))
    with pytest.raises(ValueError, match="in a circle"):
        history.with_hop(Hop(0, 0, 0, 0))


@pytest.mark.parametrize("field", ["source_id", "source_index", "received_at_ns", "sent_at_ns"])
@pytest.mark.parametrize("value", [-1, 1 << 64])
def test_a_hop_refuses_values_that_do_not_fit(field: str, value: int) -> None:
    fields = {"source_id": 0, "source_index": 0, "received_at_ns": 0, "sent_at_ns": 0, field: value}
    with pytest.raises(ValueError, match=field):
        Hop(**fields)


def test_a_stamper_answers_the_record_that_was_read_last() -> None:
    times = iter([100, 130, 140, 200, 260])
    stamper = HopStamper(7, lambda: next(times))
    assert stamper.next_history() == MessageHistory((Hop(7, 0, 100, 100),))
    stamper.on_read(41, None)
    assert stamper.next_history() == MessageHistory((Hop(7, 41, 130, 140),))
    incoming = MessageHistory((Hop(3, 0, 150, 160),))
    stamper.on_read(42, incoming)
    assert stamper.next_history() == incoming.with_hop(Hop(7, 42, 200, 260))


TIMES_NS = st.one_of(
    st.integers(0, 2_000),
    st.integers(0, (1 << VALUE_BITS) - 1),
    st.integers(0, VALUE_BITS - 1).flatmap(lambda bits: st.integers(max((1 << bits) - 2, 0), (1 << bits) + 1)),
)


@given(st.lists(TIMES_NS, min_size=1, max_size=300))
def test_percentiles_agree_with_numpy_within_the_precision(values: list[int]) -> None:
    histogram = LatencyHistogram()
    for value in values:
        histogram.add(value)
    for permille in (1, 500, 900, 990, 999, 1_000):
        true = int(np.percentile(values, permille / 10, method="inverted_cdf"))
        assert true <= histogram.percentile_ns(permille) <= true + (true >> PRECISION_BITS)
    assert (histogram.count, histogram.min_ns, histogram.max_ns) == (len(values), min(values), max(values))


def test_times_beyond_the_last_bucket_keep_an_exact_maximum() -> None:
    histogram = LatencyHistogram()
    histogram.add((1 << 63) + 5)
    histogram.add((1 << VALUE_BITS) - 1)
    assert histogram.percentile_ns(999) == histogram.max_ns == (1 << 63) + 5
    assert BUCKET_COUNT == 9_472


def test_statistics_follow_the_path_of_the_records() -> None:
    statistics = LatencyStatistics()
    for extra in range(10):
        statistics.add(MessageHistory((Hop(3, 0, 1_000, 1_100 + extra), Hop(5, 9, 1_400, 1_450))))
    statistics.add(MessageHistory((Hop(3, 0, 1_000, 1_010),)))
    statistics.add(MessageHistory())
    assert [(summary.name, summary.count) for summary in statistics.stages()] == [("3", 11), ("3 to 5", 10), ("5", 10)]
    assert astuple(statistics.stages()[1]) == ("3 to 5", 10, 291, 295, 299, 300, 300, 300)
    assert astuple(statistics.end_to_end()) == ("end to end", 11, 10, 450, 450, 450, 450, 450)
    assert statistics.history_count == 12


def test_the_table_is_readable() -> None:
    statistics = LatencyStatistics()
    statistics.add(MessageHistory((Hop(3, 0, 1_000, 2_500), Hop(5, 9, 2_400, 2_450))))
    assert str(statistics).splitlines() == [
        "ns          count    min    p50    p90    p99  p99.9    max",
        "3               1  1,500  1,500  1,500  1,500  1,500  1,500",
        "3 to 5          1      0      0      0      0      0      0",
        "5               1     50     50     50     50     50     50",
        "end to end      1  1,450  1,450  1,450  1,450  1,450  1,450",
        "1 negative times counted as 0: the clocks of the hops disagree",
    ]
    assert astuple(LatencyStatistics().end_to_end()) == ("end to end", 0, 0, 0, 0, 0, 0, 0)


def test_statistics_have_a_bounded_number_of_stages() -> None:
    statistics = LatencyStatistics()
    for source_id in range(STAGES_MAX + 3):
        statistics.add(MessageHistory((Hop(source_id, 0, 10, 20),)))
    assert len(statistics.stages()) == STAGES_MAX
    assert statistics.unmeasured_count == 3
    assert statistics.end_to_end().count == STAGES_MAX + 3
    assert "3 times left out" in str(statistics)
