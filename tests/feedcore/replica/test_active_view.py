"""The active as a backup knows it: who it is, and for how long it has been silent."""

from __future__ import annotations

from tandemfeed.feedcore.replica.active_view import ActiveView


def test_silence_counts_from_the_beginning_and_then_from_the_last_message() -> None:
    view = ActiveView(100)
    assert view.silent_ns(130) == 30
    view.on_message(1, 1, 150)
    assert view.silent_ns(160) == 10


def test_a_report_changes_the_known_active_unless_it_is_older_or_names_none_in_the_same_epoch() -> None:
    view = ActiveView(0)
    assert view.note_active(1, 3)
    assert not view.note_active(2, 2)
    assert not view.note_active(0, 3)
    assert (view.adapter_id, view.epoch) == (1, 3)
    assert not view.note_active(1, 4)
    assert view.note_active(0, 5)
    assert (view.adapter_id, view.epoch) == (0, 5)


def test_a_message_of_the_active_makes_it_known() -> None:
    view = ActiveView(0)
    assert view.on_message(1, 1, 10)
    assert not view.on_message(1, 1, 20)
    assert view.on_message(2, 2, 30)
    assert not view.on_message(1, 1, 40)
    assert view.adapter_id == 2
