"""The ledger, computed from made-up deliveries: matching by time, where a stall began, when messages were lost."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from tandemfeed.client_lib.recording.record import ROW_DTYPE, SPAN_DTYPE, ChannelRecord, DeliveryRecord
from tandemfeed.deploy.drills.ledger import (
    MS,
    FeedDeliveries,
    Round,
    anomalies,
    is_clean,
    judge_rounds,
    ledger_row,
    longest_pause_ms,
    longest_pauses_ms,
    summary,
    undisturbed_windows,
)
from tandemfeed.deploy.drills.ledger_report import print_ledger, print_rounds, render_ledger
from tandemfeed.deploy.drills.rounds import DrillResult
from tandemfeed.deploy.hiccups.record import Hiccups

QUIET = Hiccups(0, 10 * MS, (), {})
NONE = {"lost": 0, "duplicated": 0, "out_of_order": 0}
WALL_AHEAD_NS = 1_700_000_000_000_000_000


def deliveries_at(
    received_ms: Sequence[float],
    transmitted_ms: Sequence[float] | None = None,
    sourced_ms: Sequence[float] | None = None,
    seqs: Sequence[int] | None = None,
    sent: int | None = None,
) -> FeedDeliveries:
    """One stream with one message per delivery, at these times."""
    count = len(received_ms)
    received = (np.array(received_ms) * MS).astype(np.int64)
    rows = np.zeros(count, ROW_DTYPE)
    rows["received_monotonic_ns"] = received
    rows["received_at_ns"] = received + WALL_AHEAD_NS
    rows["message_count"] = 1
    for name, times in (("adapter_sent_at_ns", transmitted_ms), ("source_sent_at_ns", sourced_ms)):
        rows[name] = (np.array(received_ms if times is None else times) * MS).astype(np.int64) + WALL_AHEAD_NS
    numbers = np.arange(1, count + 1) if seqs is None else np.array(seqs)
    spans = np.array([(1, seq, seq + 1, True, 20_261_121) for seq in numbers.tolist()], SPAN_DTYPE)
    record = DeliveryRecord({1: ChannelRecord(rows, spans)}, (), ())
    return FeedDeliveries(record, {1: sent or count}, np.ones(count, np.uint16), numbers, received, 0)


def round_at(number: int, fault_ms: float, repair_ms: float, healthy_ms: float, feed_id: int = 1) -> Round:
    times = (int(at_ms * MS) for at_ms in (fault_ms, repair_ms, healthy_ms))
    return Round(number, feed_id, f"round {number}", *times)


def steady(until_ms: int, *pauses: tuple[int, int]) -> list[float]:
    """One delivery per millisecond, with none within the pauses (from, until)."""
    return [float(at) for at in range(until_ms) if not any(first < at < last for first, last in pauses)]


def test_a_stall_belongs_to_the_round_during_which_it_happened() -> None:
    deliveries = {1: deliveries_at(steady(1_000, (105, 135), (405, 465), (700, 720)))}
    rounds = [round_at(1, 100, 200, 250), round_at(2, 400, 500, 550)]
    judged = judge_rounds(rounds, deliveries, QUIET)
    assert [each.stall_ms for each in judged] == [30.0, 60.0]
    assert [each.return_stall_ms for each in judged] == [1.0, 1.0]


def test_the_ledger_shows_which_adapters_served_the_client_during_the_fault() -> None:
    deliveries = {1: deliveries_at(steady(400))}
    rows = deliveries[1].record.channels[1].rows
    rows["adapter_id"] = 1
    rows["adapter_id"][150:350] = 2
    (judged,) = judge_rounds([round_at(1, 100, 199, 250)], deliveries, QUIET)
    assert judged.served_by == {1: 0.5, 2: 0.5}


def test_a_pause_during_the_recovery_is_separate_from_the_stall_of_the_fault() -> None:
    deliveries = {1: deliveries_at(steady(1_000, (105, 110), (210, 240)))}
    (judged,) = judge_rounds([round_at(1, 100, 200, 300)], deliveries, QUIET)
    assert (judged.stall_ms, judged.return_stall_ms) == (5.0, 30.0)


def test_a_stall_that_overlaps_the_window_counts_in_full() -> None:
    times = np.array([0, 10, 50, 60, 90], np.int64) * MS
    assert longest_pause_ms(times, 20 * MS, 55 * MS) == 40.0
    assert longest_pause_ms(times, 55 * MS, 70 * MS) == 30.0
    assert longest_pause_ms(times, 200 * MS, 300 * MS) == 0.0
    assert longest_pause_ms(times[:1], 0, 300 * MS) == 0.0


def test_a_pause_of_the_client_itself_is_not_a_stall_of_transmission() -> None:
    received = steady(300, (105, 165))
    at = received.index(165.0)
    transmitted = [float(each) for each in range(300)][: len(received)]
    received[at:] = [165.0 + 0.1 * place for place in range(len(received) - at)]  # one burst
    transmitted = transmitted[:at] + [106.0 + place for place in range(len(received) - at)]
    (judged,) = judge_rounds(
        [round_at(1, 100, 200, 250)], {1: deliveries_at(received, transmitted, transmitted)}, QUIET
    )
    assert judged.stall_ms == 60.0
    assert judged.transmit_stall_ms <= 1.0
    assert judged.source_stall_ms <= 1.0


def test_a_pause_of_the_source_shows_in_the_source_column() -> None:
    times = steady(400, (110, 160))
    (judged,) = judge_rounds([round_at(1, 100, 200, 250)], {1: deliveries_at(times)}, QUIET)
    assert judged.stall_ms == judged.transmit_stall_ms == judged.source_stall_ms == 50.0


def test_the_hiccups_of_the_machine_count_in_the_window_that_they_touch() -> None:
    late_us = [0] * 100
    late_us[3], late_us[15], late_us[22], late_us[60] = 4_000, 48_000, 7_000, 9_000
    hiccups = Hiccups(0, 10 * MS, tuple(late_us), {})
    rounds, deliveries = [round_at(1, 100, 200, 250)], {1: deliveries_at(steady(1_000, (110, 160)))}
    judged = judge_rounds(rounds, deliveries, hiccups)
    assert (judged[0].hiccup_ms, judged[0].return_hiccup_ms) == (48.0, 7.0)
    row = ledger_row("kill-active", judged, deliveries, NONE, undisturbed_windows(rounds, 0, 1_000 * MS), hiccups)
    assert row["stall_above_hiccup_ms"]["max"] == 2.0
    assert row["undisturbed_hiccup_ms"]["max"] == 9.0


def test_undisturbed_stalls_come_from_the_windows_without_faults() -> None:
    pauses = ((50, 57), (105, 155), (260, 290), (700, 712), (950, 999))
    deliveries = {1: deliveries_at(steady(1_000, *pauses))}
    rounds = [round_at(1, 100, 200, 250)]
    # Neither the fault's 50, nor 30 right after the recovery, nor 49 after the end.
    assert longest_pauses_ms(undisturbed_windows(rounds, 0, 900 * MS), deliveries) == [7.0, 12.0]


def test_a_disturbance_before_the_fault_counts_neither_as_undisturbed_nor_as_a_stall() -> None:
    deliveries = {1: deliveries_at(steady(1_000, (50, 55), (60, 95)))}
    rounds = [replace(round_at(1, 100, 200, 250), disturbed_at_ns=58 * MS)]
    assert longest_pauses_ms(undisturbed_windows(rounds, 0, 900 * MS), deliveries)[0] == 5.0
    assert judge_rounds(rounds, deliveries, QUIET)[0].stall_ms == 1.0


def test_every_lost_repeated_and_late_message_has_a_time() -> None:
    received = [0.0, 1.0, 2.0, 100.0, 101.0, 102.0, 200.0]
    seqs = [1, 2, 2, 5, 4, 7, 8]  # 2 twice, 3 and 6 never, 4 late, 9 and 10 lost at the end
    found = anomalies(deliveries_at(received, seqs=seqs, sent=10))
    assert found.duplicated.tolist() == [2 * MS]
    assert found.out_of_order.tolist() == [101 * MS]
    assert found.lost.tolist() == [101 * MS, 102 * MS, 200 * MS, 200 * MS]


def test_losses_count_in_their_rounds_and_fail_the_drill() -> None:
    received = [0.0, 10.0, 20.0, 110.0, 120.0, 210.0]
    deliveries = {1: deliveries_at(received, seqs=[1, 2, 2, 4, 3, 7], sent=7)}
    rounds = [round_at(1, 15, 50, 60), round_at(2, 100, 150, 160), round_at(3, 200, 250, 260)]
    judged = judge_rounds(rounds, deliveries, QUIET)
    assert [each.duplicated for each in judged] == [1, 0, 0]
    assert [each.out_of_order for each in judged] == [0, 1, 0]
    assert [each.lost for each in judged] == [0, 0, 2]
    row = ledger_row("kill-active", judged, deliveries, NONE, [], QUIET)
    assert (row["lost"], row["duplicated"], row["out_of_order"]) == (2, 1, 1)
    assert not is_clean(row)


def test_losses_count_in_every_feed_but_stalls_only_in_the_feed_with_the_fault() -> None:
    deliveries = {1: deliveries_at(steady(400, (110, 150))), 2: deliveries_at(steady(400, (110, 190)), sent=1_000)}
    (judged,) = judge_rounds([round_at(1, 100, 200, 250, feed_id=1)], deliveries, QUIET)
    assert judged.stall_ms == 40.0
    assert judged.lost == 1_000 - len(steady(400, (110, 190)))


def test_a_loss_at_a_second_client_fails_the_drill() -> None:
    deliveries = {1: deliveries_at(steady(300))}
    judged = judge_rounds([round_at(1, 100, 200, 250)], deliveries, QUIET)
    assert is_clean(ledger_row("restart-all", judged, deliveries, NONE, [], QUIET))
    assert not is_clean(ledger_row("restart-all", judged, deliveries, NONE | {"duplicated": 1}, [], QUIET))


@pytest.mark.parametrize("name", ["missing", "repeated", "distrusted"])
def test_a_drill_in_which_the_reader_beside_it_found_something_wrong_is_not_clean(name: str) -> None:
    counts = {"lost": 0, "duplicated": 0, "out_of_order": 0, "content_wrong": 0}
    observer = {"passes": 3, "delivered": 10, "missing": 0, "repeated": 0, "distrusted": 0}
    assert is_clean({**counts, "observer": observer})
    assert not is_clean({**counts, "observer": observer | {name: 1}})


@pytest.mark.parametrize(("count", "p99"), [(1, 1.0), (10, 10.0), (100, 100.0), (1_000, 991.0)])
def test_with_few_rounds_the_99th_percentile_is_the_maximum(count: int, p99: float) -> None:
    figures = summary(float(each) for each in range(1, count + 1))
    assert figures is not None
    assert (figures["p99"], figures["max"]) == (p99, float(count))
    assert summary([]) is None


def test_the_printed_ledger_and_the_page_show_the_same() -> None:
    deliveries = {1: deliveries_at(steady(2_000, (505, 512)))}
    rounds = [round_at(1, 500, 600, 700)]
    judged = judge_rounds(rounds, deliveries, QUIET)
    row = ledger_row("kill-active", judged, deliveries, NONE, [], QUIET) | {"stall_aim_ms": 10.0}
    result = DrillResult(rounds, judged, deliveries, QUIET, row)
    out = io.StringIO()
    console = Console(file=out, width=100)
    print_ledger([row], ["disk-full: no disk"], console)
    print_rounds(result, console)
    assert "no message lost, repeated, reordered or changed" in out.getvalue()
    assert "kill-active" in out.getvalue()
    assert "7.0" in out.getvalue()
    assert "did not run: disk-full: no disk" in out.getvalue()
    page = render_ledger([row], [result], ["disk-full: no disk"], {"rate": 20_000.0})
    assert "<svg" in page
    assert "7.0" in page
    assert "no message lost" in page
