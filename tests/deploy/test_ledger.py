"""The ledger from made-up deliveries: pairing by time, whose stall it was, what was lost when."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from client_lib.record import ROW_DTYPE, SPAN_DTYPE, ChannelRecord, DeliveryRecord
from deploy.ledger import (
    MS,
    Round,
    Seen,
    anomalies,
    is_clean,
    judge_rounds,
    ledger_row,
    longest_pause_ms,
    summary,
    undisturbed_stalls_ms,
)
from deploy.ledger_report import print_ledger, print_rounds, render_ledger
from deploy.rounds import DrillResult

NONE = {"lost": 0, "duplicated": 0, "out_of_order": 0}
WALL_AHEAD_NS = 1_700_000_000_000_000_000


def seen_of(
    received_ms: Sequence[float],
    transmitted_ms: Sequence[float] | None = None,
    sourced_ms: Sequence[float] | None = None,
    seqs: Sequence[int] | None = None,
    sent: int | None = None,
) -> Seen:
    """One stream, one message a delivery, at these times."""
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
    return Seen(record, {1: sent or count}, np.ones(count, np.uint16), numbers, received, 0)


def round_at(number: int, struck_ms: float, mended_ms: float, whole_ms: float, feed_id: int = 1) -> Round:
    times = (int(at_ms * MS) for at_ms in (struck_ms, mended_ms, whole_ms))
    return Round(number, feed_id, f"round {number}", *times)


def steady(until_ms: int, *pauses: tuple[int, int]) -> list[float]:
    """A delivery a millisecond, but none within the pauses (from, until)."""
    return [float(at) for at in range(until_ms) if not any(first < at < last for first, last in pauses)]


def test_a_stall_belongs_to_the_round_in_whose_time_it_lies() -> None:
    seen = {1: seen_of(steady(1_000, (105, 135), (405, 465), (700, 720)))}
    rounds = [round_at(1, 100, 200, 250), round_at(2, 400, 500, 550)]
    judged = judge_rounds(rounds, seen)
    assert [each.stall_ms for each in judged] == [30.0, 60.0]
    assert [each.return_stall_ms for each in judged] == [1.0, 1.0]


def test_who_served_the_client_during_the_fault_is_told() -> None:
    seen = {1: seen_of(steady(400))}
    rows = seen[1].record.channels[1].rows
    rows["adapter_id"] = 1
    rows["adapter_id"][150:350] = 2
    (judged,) = judge_rounds([round_at(1, 100, 199, 250)], seen)
    assert judged.served_by == {1: 0.5, 2: 0.5}


def test_a_pause_while_the_cluster_mends_is_told_apart_from_the_fault_s() -> None:
    seen = {1: seen_of(steady(1_000, (105, 110), (210, 240)))}
    (judged,) = judge_rounds([round_at(1, 100, 200, 300)], seen)
    assert (judged.stall_ms, judged.return_stall_ms) == (5.0, 30.0)


def test_a_stall_that_began_before_the_strike_or_ends_behind_the_window_counts_whole() -> None:
    times = np.array([0, 10, 50, 60, 90], np.int64) * MS
    assert longest_pause_ms(times, 20 * MS, 55 * MS) == 40.0
    assert longest_pause_ms(times, 55 * MS, 70 * MS) == 30.0
    assert longest_pause_ms(times, 200 * MS, 300 * MS) == 0.0
    assert longest_pause_ms(times[:1], 0, 300 * MS) == 0.0


def test_a_client_that_stood_still_itself_shows_no_stall_of_transmission() -> None:
    received = steady(300, (105, 165))
    at = received.index(165.0)
    transmitted = [float(each) for each in range(300)][: len(received)]
    received[at:] = [165.0 + 0.1 * place for place in range(len(received) - at)]  # one burst
    transmitted = transmitted[:at] + [106.0 + place for place in range(len(received) - at)]
    (judged,) = judge_rounds([round_at(1, 100, 200, 250)], {1: seen_of(received, transmitted, transmitted)})
    assert judged.stall_ms == 60.0
    assert judged.transmit_stall_ms <= 1.0
    assert judged.source_stall_ms <= 1.0


def test_a_source_that_pauses_is_seen_as_the_source_s_pause() -> None:
    times = steady(400, (110, 160))
    (judged,) = judge_rounds([round_at(1, 100, 200, 250)], {1: seen_of(times)})
    assert judged.stall_ms == judged.transmit_stall_ms == judged.source_stall_ms == 50.0


def test_undisturbed_stalls_are_taken_where_nothing_was_done() -> None:
    pauses = ((50, 57), (105, 155), (260, 290), (700, 712), (950, 999))
    seen = {1: seen_of(steady(1_000, *pauses))}
    rounds = [round_at(1, 100, 200, 250)]
    # Not the fault's 50, nor 30 right behind the mending, nor 49 behind the end.
    assert undisturbed_stalls_ms(rounds, seen, began_ns=0, ended_ns=900 * MS) == [7.0, 12.0]


def test_what_a_round_does_before_its_strike_is_neither_normal_nor_the_fault_s_stall() -> None:
    seen = {1: seen_of(steady(1_000, (50, 55), (60, 95)))}
    rounds = [replace(round_at(1, 100, 200, 250), touched_ns=58 * MS)]
    assert undisturbed_stalls_ms(rounds, seen, began_ns=0, ended_ns=900 * MS)[0] == 5.0
    assert judge_rounds(rounds, seen)[0].stall_ms == 1.0


def test_every_loss_repetition_and_lateness_is_dated() -> None:
    received = [0.0, 1.0, 2.0, 100.0, 101.0, 102.0, 200.0]
    seqs = [1, 2, 2, 5, 4, 7, 8]  # 2 twice, 3 and 6 never, 4 late, 9 and 10 lost at the end
    found = anomalies(seen_of(received, seqs=seqs, sent=10))
    assert found.duplicated.tolist() == [2 * MS]
    assert found.out_of_order.tolist() == [101 * MS]
    assert found.lost.tolist() == [101 * MS, 102 * MS, 200 * MS, 200 * MS]


def test_losses_are_counted_in_their_rounds_and_condemn_the_fault() -> None:
    received = [0.0, 10.0, 20.0, 110.0, 120.0, 210.0]
    seen = {1: seen_of(received, seqs=[1, 2, 2, 4, 3, 7], sent=7)}
    rounds = [round_at(1, 15, 50, 60), round_at(2, 100, 150, 160), round_at(3, 200, 250, 260)]
    judged = judge_rounds(rounds, seen)
    assert [each.duplicated for each in judged] == [1, 0, 0]
    assert [each.out_of_order for each in judged] == [0, 1, 0]
    assert [each.lost for each in judged] == [0, 0, 2]
    row = ledger_row("kill-active", judged, seen, NONE, [1.0])
    assert (row["lost"], row["duplicated"], row["out_of_order"]) == (2, 1, 1)
    assert not is_clean(row)


def test_losses_count_in_every_feed_but_the_stall_in_the_one_struck() -> None:
    seen = {1: seen_of(steady(400, (110, 150))), 2: seen_of(steady(400, (110, 190)), sent=1_000)}
    (judged,) = judge_rounds([round_at(1, 100, 200, 250, feed_id=1)], seen)
    assert judged.stall_ms == 40.0
    assert judged.lost == 1_000 - len(steady(400, (110, 190)))


def test_what_another_client_missed_condemns_the_fault() -> None:
    seen = {1: seen_of(steady(300))}
    judged = judge_rounds([round_at(1, 100, 200, 250)], seen)
    assert is_clean(ledger_row("restart-all", judged, seen, NONE, [1.0]))
    assert not is_clean(ledger_row("restart-all", judged, seen, NONE | {"duplicated": 1}, [1.0]))


@pytest.mark.parametrize(("count", "p99"), [(1, 1.0), (10, 10.0), (100, 100.0), (1_000, 991.0)])
def test_the_percentile_of_few_rounds_is_their_maximum(count: int, p99: float) -> None:
    told = summary(float(each) for each in range(1, count + 1))
    assert told is not None
    assert (told["p99"], told["max"]) == (p99, float(count))
    assert summary([]) is None


def test_the_ledger_reads_the_same_printed_and_as_a_page() -> None:
    seen = {1: seen_of(steady(2_000, (505, 512)))}
    rounds = [round_at(1, 500, 600, 700)]
    judged = judge_rounds(rounds, seen)
    row = ledger_row("kill-active", judged, seen, NONE, [1.0]) | {"stall_aim_ms": 10.0}
    result = DrillResult(rounds, judged, seen, row)
    out = io.StringIO()
    console = Console(file=out, width=100)
    print_ledger([row], ["disk-full: no disk"], console)
    print_rounds(result, console)
    assert "nothing lost, repeated or reordered" in out.getvalue()
    assert "kill-active" in out.getvalue()
    assert "7.0" in out.getvalue()
    assert "not drilled: disk-full: no disk" in out.getvalue()
    page = render_ledger([row], [result], ["disk-full: no disk"], {"rate": 20_000.0})
    assert "<svg" in page
    assert "7.0" in page
    assert "Nothing lost" in page
