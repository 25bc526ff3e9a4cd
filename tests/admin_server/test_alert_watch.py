"""When an alert begins and ends, for the log and the history."""

from __future__ import annotations

from tandemfeed.admin_server.alert_watch import BEGIN_COUNT, END_COUNT, AlertRecord
from tandemfeed.admin_server.alerts import Alert, Level

MUTE = Alert(Level.CRITICAL, "the multicast of a reaches no adapter: not received by b for 3.0 s", "a is mute")
LATER = MUTE._replace(text="the multicast of a reaches no adapter: not received by b for 4.0 s")


def test_an_alert_begins_once_it_was_found_twice_in_a_row_and_lasts_while_its_text_changes() -> None:
    record = AlertRecord()
    assert record.on_look([MUTE]) == ([], [])
    assert record.on_look([]) == ([], [])
    assert record.on_look([MUTE]) == ([], [])
    assert record.on_look([LATER]) == ([LATER], [])
    assert [record.on_look([each]) for each in (MUTE, LATER, MUTE)] == [([], [])] * 3


def test_an_alert_ends_once_it_was_not_found_for_a_while() -> None:
    record = AlertRecord()
    for _ in range(BEGIN_COUNT):
        record.on_look([MUTE])
    assert [record.on_look([]) for _ in range(END_COUNT - 1)] == [([], [])] * (END_COUNT - 1)
    assert record.on_look([]) == ([], [MUTE.about])
    assert record.on_look([]) == ([], [])


def test_an_alert_that_comes_and_goes_is_one_alert() -> None:
    record = AlertRecord()
    looks = [record.on_look([MUTE] if number % END_COUNT < BEGIN_COUNT else []) for number in range(50)]
    assert [(began, ended) for began, ended in looks if began or ended] == [([MUTE], [])]
