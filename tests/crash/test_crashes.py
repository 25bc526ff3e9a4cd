"""Runs five hundred crash cases; `./run crash-test` runs more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.journal_cases import CASES
from tests.crash.journal_losses import losses_case
from tests.crash.runner import all_cases, main, run_chunk


@pytest.mark.long
def test_no_crash_loses_an_acknowledged_record_or_adds_a_record() -> None:
    assert main(["--cases", "500"]) == 0


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("damage", 2442),  # a flipped bit in a segment's sequence, which seeking relied on
        ("damage", 9597),
        ("power", 6716),  # half of an entry of the sparse index was lost, and zeros matched zeros
        ("power", 20),
        ("power", 36),
    ],
)
def test_a_crash_case_that_once_failed_passes(tmp_path: Path, kind: str, seed: int) -> None:
    CASES[kind](tmp_path / "journal", seed)


# What these seeds found once: 11, two appenders compressed a block, and the second one deleted it; 5, a tail that
# reached the disk without its end mark; 163, only the compressed form of the newest block was left; 227, a name without
# content beside the compressed form.
@pytest.mark.parametrize("seed", [5, 11, 163, 227])
def test_no_power_failure_loses_what_was_acknowledged(tmp_path: Path, seed: int) -> None:
    losses_case(tmp_path / "case", seed)


def test_a_failing_case_is_reported_with_its_seed() -> None:
    kinds = list(all_cases())
    assert "journal-kill" in kinds
    (result,) = run_chunk([7], ["no such kind"])
    assert result[:2] == (7, "no such kind")
    assert "KeyError" in (result[2] or "")
