"""The earliest of several deadlines."""

from __future__ import annotations

from itertools import permutations

from tandemfeed.feedcore.deadlines import earliest


def test_the_earliest_deadline_is_found_in_any_order_and_no_deadline_counts_as_never() -> None:
    for deadlines in permutations((30, None, 10, 20)):
        assert earliest(*deadlines) == 10


def test_without_any_deadline_there_is_none() -> None:
    assert earliest() is None
    assert earliest(None, None) is None
