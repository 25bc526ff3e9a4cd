"""Whether a process notices its own pauses, each once (docs/protocol.md clause 11)."""

from __future__ import annotations

from tandemfeed.feedcore.hiccup import NEVER_NS, OwnPauses

LATE = 20


def test_a_call_at_the_deadline_ends_no_pause() -> None:
    pauses = OwnPauses(LATE)
    pauses.expect(100, 90)
    assert pauses.take(100) == 0
    assert pauses.take(100 + LATE - 1) == 0


def test_a_late_call_ends_a_pause_that_began_at_the_deadline() -> None:
    pauses = OwnPauses(LATE)
    pauses.expect(100, 90)
    assert pauses.noticed_at_ns == 100 + LATE
    assert pauses.take(100 + LATE) == LATE


def test_a_pause_is_reported_once() -> None:
    pauses = OwnPauses(LATE)
    pauses.expect(100, 90)
    assert pauses.take(700) == 600
    assert pauses.take(700) == 0
    pauses.expect(100, 700)  # still overdue, but everything since the last event was served
    assert pauses.take(700 + LATE - 1) == 0
    assert pauses.take(700 + LATE) == LATE


def test_a_core_that_asked_for_no_call_was_not_paused() -> None:
    pauses = OwnPauses(LATE)
    assert pauses.take(10**12) == 0
    pauses.expect(100, 90)
    pauses.expect(None, 95)
    assert pauses.noticed_at_ns > NEVER_NS
    assert pauses.take(10**12) == 0
