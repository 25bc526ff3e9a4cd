"""The demo's report, made from recorded figures."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from rich.console import Console

from tandemfeed.client_lib.recording.record import ROW_DTYPE, SPAN_DTYPE, ChannelRecord, DeliveryRecord
from tandemfeed.deploy.demo.content import count_wrong
from tandemfeed.deploy.demo.report import Report, is_clean, print_report, render_html
from tandemfeed.deploy.drills.application import CONTENT_DTYPE
from tandemfeed.deploy.hiccups.record import Hiccups
from tandemfeed.feedcore.merge.effects import Takeover

MS = 1_000_000
QUIET = Hiccups(0, 10 * MS, (0,) * 30, {})


def record_of(spans: list[tuple[int, int, int]]) -> DeliveryRecord:
    rows = np.zeros(200, ROW_DTYPE)
    rows["received_monotonic_ns"] = np.arange(200) * MS
    rows["received_monotonic_ns"][100:] += 30 * MS  # the takeover's stall
    rows["received_at_ns"] = 10_000_000 + rows["received_monotonic_ns"]
    rows["source_sent_at_ns"] = rows["received_at_ns"] - 400_000
    rows["message_count"] = 1
    made = np.array([(stream, first, end, True, 20_261_121) for stream, first, end in spans], SPAN_DTYPE)
    takeover = Takeover(1, 2, 2, 101, 110 * MS)
    return DeliveryRecord({1: ChannelRecord(rows, made)}, (takeover,), ())


def test_the_report_of_a_clean_run_says_that_nothing_was_lost() -> None:
    record = record_of([(1, 1, 101), (2, 1, 101)])
    report = Report("a run", {1: 100, 2: 100}, record, 0, 20_000.0, QUIET, ("killed a",))
    figures = report.figures()
    assert is_clean(figures)
    assert (figures["sent"], figures["delivered"], figures["lost"]) == (200, 200, 0)
    assert [each["stall_ms"] for each in figures["takeovers"]] == [31.0]
    assert figures["latency_us"]["p50"] == 400.0
    out = io.StringIO()
    print_report("a run", figures, Console(file=out, width=100))
    assert "no message lost, repeated, reordered or changed" in out.getvalue()
    page = render_html(report, figures)
    assert "<svg" in page
    assert "killed a" in page
    assert "no message lost" in page


def test_a_stall_is_shown_beside_the_pauses_of_the_source_and_the_machine_in_the_same_time() -> None:
    hiccups = Hiccups(-1_000 * MS, 10 * MS, (90_000,) * 5 + (0,) * 100 + (21_500,) + (0,) * 120 + (90_000,), {})
    record = record_of([(1, 1, 101), (2, 1, 101)])
    record.channels[1].rows["source_sent_at_ns"] = 10_000_000 + np.arange(200) * MS  # the source did not pause
    report = Report("a run", {1: 100, 2: 100}, record, 0, 20_000.0, hiccups)
    (takeover,) = report.figures()["takeovers"]
    assert (takeover["stall_ms"], takeover["source_stall_ms"], takeover["hiccup_ms"]) == (31.0, 1.0, 21.5)
    out = io.StringIO()
    print_report("a run", report.figures(), Console(file=out, width=100))
    (line,) = [line for line in out.getvalue().splitlines() if "takeover 1" in line]
    assert " ".join(line.strip("│ ").split()) == "31.0 ms longest stall around takeover 1 1.0 ms 21.5 ms"
    assert "machine's longest pause" in render_html(report, report.figures())


def test_lost_and_repeated_messages_are_counted_and_fail_the_run() -> None:
    record = record_of([(1, 1, 51), (1, 61, 101), (2, 1, 101), (2, 91, 101)])
    figures = Report("a run", {1: 100, 2: 100}, record, None, 20_000.0, QUIET).figures()
    assert (figures["lost"], figures["duplicated"]) == (10, 10)
    assert not is_clean(figures)


def test_messages_that_differ_from_the_recording_are_counted() -> None:
    expected = {1: np.array([(b"A", 5, 7), (b"B", 6, 8)], [("symbol", "S8"), ("event_at", "<u8"), ("value", "<i8")])}
    delivered = np.array([(1, 1, b"A", 5, 7, 0), (1, 2, b"B", 6, 9, 0), (1, 3, b"C", 0, 0, 0)], CONTENT_DTYPE)
    assert count_wrong(delivered[:1], expected) == 0
    assert count_wrong(delivered, expected) == 2


def test_git_ignores_the_folder_of_the_reports() -> None:
    ignored = (Path(__file__).resolve().parents[3] / ".gitignore").read_text().split()
    assert "var/" in ignored
