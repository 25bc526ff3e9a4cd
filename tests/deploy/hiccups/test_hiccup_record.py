"""What a hiccup meter records, from made-up sleeps."""

from __future__ import annotations

import json

import pytest

from tandemfeed.deploy.hiccups import record
from tandemfeed.deploy.hiccups.record import MS, SLEEP_NS, US, WINDOW_NS, HiccupRecorder, Hiccups

BEGAN_NS = 5_000 * MS


def recorded(*late_us: int) -> Hiccups:
    """One sleep after another, each this much too long."""
    recorder, now_ns = HiccupRecorder(BEGAN_NS), BEGAN_NS
    for late in late_us:
        due_ns = now_ns + SLEEP_NS
        now_ns = due_ns + late * US
        recorder.add(due_ns, now_ns)
    return recorder.record()


def test_the_longest_hiccup_is_that_of_the_window_asked_for() -> None:
    hiccups = recorded(*[60] * 20, 3_000, *[60] * 20, 900, *[60] * 20)
    at_ns = BEGAN_NS + 20 * (SLEEP_NS + 60 * US) + SLEEP_NS  # the hiccup of 3 ms begins
    assert hiccups.longest_ms(at_ns, at_ns + MS) == 3.0
    assert hiccups.longest_ms(BEGAN_NS, at_ns - 2 * WINDOW_NS) == 0.06
    assert hiccups.longest_ms(at_ns + 2 * WINDOW_NS, at_ns + 60_000 * MS) == 0.9
    assert hiccups.longest_ms(0, BEGAN_NS - 1) == 0.0


def test_a_long_hiccup_counts_in_every_window_that_it_touches() -> None:
    hiccups = recorded(60, 95_000, 60)
    assert [late for late in hiccups.longest_us if late == 95_000] == [95_000] * 10
    assert hiccups.longest_ms(BEGAN_NS + 50 * MS, BEGAN_NS + 51 * MS) == 95.0


def test_sleeps_that_a_long_hiccup_prevented_count_as_late_as_well() -> None:
    figures = recorded(*[50] * 900, 100_000).figures()
    assert figures["p50"] == pytest.approx(0.05, rel=0.04)
    assert figures["p99"] == pytest.approx(90.0, rel=0.04)  # of 1,000 sleeps, 100 would have ended 1 to 100 ms late
    assert figures["max"] == pytest.approx(100.0, rel=0.04)


def test_memory_is_bounded_however_long_the_meter_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "WINDOWS_MAX", 8)
    hiccups = recorded(*[60] * 30, 2_000, *[60] * 500)
    assert len(hiccups.longest_us) <= 8
    assert hiccups.window_ns == 8 * WINDOW_NS
    assert hiccups.longest_ms(BEGAN_NS, BEGAN_NS + 100 * MS) == 2.0
    assert hiccups.longest_ms(BEGAN_NS + 200 * MS, BEGAN_NS + 500 * MS) == 0.06
    assert len(recorded(*range(0, 2_000_000, 997)).counts) < 1_000


def test_a_record_is_read_as_it_was_written() -> None:
    hiccups = recorded(60, 5_000, 70)
    assert Hiccups.from_json(json.loads(json.dumps(hiccups.as_json()))) == hiccups


def test_a_plot_gets_the_windows_around_a_moment() -> None:
    hiccups = recorded(*[60] * 30, 40_000, *[60] * 30)
    at_ms, late_ms = hiccups.around(BEGAN_NS + 50 * MS, 15)
    assert len(at_ms) == len(late_ms) == 4
    assert max(late_ms) == 40.0
    assert hiccups.around(BEGAN_NS + 60_000 * MS, 15) == ([], [])
