"""Positions of a query in the live stream: what was taken is known by source message, whatever it was numbered."""

from __future__ import annotations

import json

import numpy as np

from tandemfeed.feedcore.wire.lineage import ENTRIES_MAX, EpochStart
from tandemfeed.spark_feed.spark.live.positions import Position, are_between

START = Position(20_261_121, 3, 106, {1: 50, 2: 40})
END = Position(20_261_121, 4, 120, {1: 60, 2: 40, 3: 5})


def between(start: Position, end: Position, session: int, messages: list[tuple[int, int]]) -> list[bool]:
    streams, seqs = (np.array(column, np.int64) for column in zip(*messages, strict=True))
    return are_between(start, end, session, streams, seqs).tolist()


def test_messages_between_two_positions_are_known_by_their_source_message() -> None:
    messages = [(1, 49), (1, 50), (1, 59), (1, 60), (2, 39), (2, 40), (3, 1), (3, 5), (4, 1)]
    expected = [False, True, True, False, False, False, True, False, False]
    assert between(START, END, START.session, messages) == expected


def test_between_positions_of_two_sessions_are_the_rest_of_one_and_the_beginning_of_the_other() -> None:
    end = Position(START.session + 1, 5, 3, {1: 3})
    messages = [(1, 2), (1, 3), (1, 70), (2, 1), (2, 40)]
    assert between(START, end, START.session, messages) == [False, False, True, False, True]
    assert between(START, end, end.session, messages) == [True, False, False, False, False]
    assert between(START, end, end.session + 1, messages) == [False] * 5


def test_a_position_survives_as_the_offset_that_spark_stores() -> None:
    text = json.dumps(END.as_json())
    assert Position.from_json(json.loads(text)) == END
    same = Position(END.session, END.epoch, END.message_seq, dict(sorted(END.next_source_seqs.items(), reverse=True)))
    assert json.dumps(same.as_json()) == text


def test_reading_begins_where_the_first_newer_epoch_numbered_again() -> None:
    first, ours = EpochStart(2, 1, 1), EpochStart(3, 60, 60)
    assert START.first_needed([first, ours]) == 106
    assert START.first_needed([first, ours, EpochStart(4, 103, 103), EpochStart(5, 110, 110)]) == 103
    assert START.first_needed([first, ours, EpochStart(4, 300, 300)]) == 106
    many = [EpochStart(10 + place, 500, 500) for place in range(ENTRIES_MAX)]
    assert START.first_needed(many) == 1  # the epochs between are not known
    assert Position(START.session, 0, 77).first_needed(many) == 77  # the user's own choice


def test_one_position_has_reached_another_if_nothing_before_the_other_is_left() -> None:
    assert END.has_reached(START)
    assert not START.has_reached(END)
    assert not Position(START.session, 9, 500, {1: 90, 2: 90}).has_reached(END)  # nothing of stream 3
    assert Position(START.session + 1, 0, 1).has_reached(END)
    assert Position(START.session, 4, 1, {}, is_ended=True).has_reached(END)


def test_a_position_is_numbered_from_another_by_session_and_number_alone() -> None:
    assert END.is_numbered_from(START)
    assert not START.is_numbered_from(END)
    assert START.is_numbered_from(Position(START.session, 9, 106))
    assert Position(START.session + 1, 1, 1).is_numbered_from(END)
    assert Position(START.session, 0, 1, is_ended=True).is_numbered_from(END)
