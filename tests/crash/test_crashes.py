"""Five hundred crashes in the suite; `./run crash-test` has more."""

from __future__ import annotations

from tests.crash.runner import all_cases, main, run_chunk


def test_no_crash_loses_what_was_acknowledged_nor_serves_what_was_not_appended() -> None:
    assert main(["--cases", "500"]) == 0


def test_a_failing_case_is_told_with_its_seed() -> None:
    kinds = list(all_cases())
    assert "journal-kill" in kinds
    (result,) = run_chunk([7], ["no such kind"])
    assert result[:2] == (7, "no such kind")
    assert "KeyError" in (result[2] or "")
