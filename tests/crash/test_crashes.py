"""Five hundred crashes in the suite; `./run crash-test` has more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.journal_cases import CASES
from tests.crash.runner import all_cases, main, run_chunk


def test_no_crash_loses_what_was_acknowledged_nor_serves_what_was_not_appended() -> None:
    assert main(["--cases", "500"]) == 0


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("damage", 2442),  # a bit of a segment's sequence flipped: seeking believed it
        ("damage", 9597),
        ("power", 6716),  # an entry of the sparse index half lost: zeros agreed with zeros
        ("power", 20),
        ("power", 36),
    ],
)
def test_what_a_crash_once_broke_stays_mended(tmp_path: Path, kind: str, seed: int) -> None:
    CASES[kind](tmp_path / "journal", seed)


def test_a_failing_case_is_told_with_its_seed() -> None:
    kinds = list(all_cases())
    assert "journal-kill" in kinds
    (result,) = run_chunk([7], ["no such kind"])
    assert result[:2] == (7, "no such kind")
    assert "KeyError" in (result[2] or "")
