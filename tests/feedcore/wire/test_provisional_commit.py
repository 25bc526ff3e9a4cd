"""A commit of provisional packets: which of them it contains."""

from __future__ import annotations

import pytest

from tandemfeed.feedcore.wire.provisional_commit import Commit, decode_commit
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal

COMMIT = Commit(1, 2, first_input_seq=10, end_input_seq=20, begin_index=5, end_index=8, session=1)


@pytest.mark.parametrize(
    ("index", "first", "end", "is_held"),
    [
        (5, 10, 20, True),
        (7, 10, 20, True),
        (4, 10, 20, False),
        (8, 10, 20, False),
        (5, 9, 20, False),
        (5, 10, 21, False),
    ],
)
def test_a_commit_contains_what_is_within_its_numbers_and_its_part_of_the_journal(
    index: int, first: int, end: int, *, is_held: bool
) -> None:
    assert COMMIT.holds(index, first, end) is is_held


def test_a_record_that_is_not_a_commit_is_refused_with_its_size_and_beginning() -> None:
    with pytest.raises(ValueError, match=f"{len(COMMIT.encode())} bytes beginning with b'ABCD', expected"):
        decode_commit(b"ABCDE".ljust(len(COMMIT.encode())))


def test_a_refusal_gives_its_reason_and_the_details() -> None:
    assert str(PacketRefused(Refusal.VERSION, "9")) == f"{Refusal.VERSION.value}: 9"
