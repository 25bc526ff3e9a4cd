"""The mutation tool itself: which faults it plants, that it plants them only in memory, and what it reports."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.__main__ import ROOT, main
from tests.mutation.mutants import mutants_of, mutated_tree
from tests.mutation.report import reason_of
from tests.mutation.running import FaultFinder
from tests.mutation.table import TESTS_OF

SOURCE = '''\
"""A module."""

LIMIT = 7


def clip(value: int, is_strict: bool = True) -> int:
    """Limit the value."""
    assert value >= 0
    if value > LIMIT and is_strict:
        return LIMIT
    return value
'''
TESTS = """\
from toy_room.toy import clip


def test_clip_limits_only_large_values():
    assert clip(3) == 3
    assert clip(9) == 7
    assert clip(9, False) == 9
"""


def changes_of(line: str) -> dict[str, list[str]]:
    """kind -> the changed line of each fault of that kind, in a function with only this line."""
    changes: dict[str, list[str]] = {}
    for mutant in mutants_of(f"def function(a, b, c):\n    {line}\n", "m.py"):
        changes.setdefault(mutant.kind, []).append(mutant.change.splitlines()[-1].removeprefix("+ "))
    return changes


@pytest.mark.parametrize(
    ("line", "kind", "changed"),
    [
        ("b = a < c", "comparison", ["b = a >= c"]),
        ("b = a < c", "boundary", ["b = a <= c"]),
        ("b = a < b == c", "comparison", ["b = a >= b == c", "b = a < b != c"]),
        ("b = a is None", "comparison", ["b = a is not None"]),
        ("b = a in c", "comparison", ["b = a not in c"]),
        ("b = a + c", "arithmetic", ["b = a - c"]),
        ("b += c", "arithmetic", ["b -= c"]),
        ("b += c", "statement_removed", ["pass"]),
        ("b = a and c", "and_or", ["b = a or c"]),
        ("b = a and c", "operand_removed", ["b = True and c", "b = a and True"]),
        ("b = not a", "not_removed", ["b = not not a"]),
        ("b = -a", "sign_removed", ["b = --a"]),
        ("b = 5", "constant", ["b = 6", "b = 4"]),
        ("b = 0", "constant", ["b = 1"]),
        ("b = True", "constant", ["b = False"]),
        ("b = a if c else b", "condition_true", ["b = a if True else b"]),
        ("b = [a for a in b if a]", "filter_removed", ["b = [a for a in b]"]),
        ("b = min(a, c)", "min_max", ["b = max(a, c)"]),
        ("a.b = c", "statement_removed", ["pass"]),
        ("print(a)", "statement_removed", ["pass"]),
        ("raise ValueError(a)", "statement_removed", ["pass"]),
        ("return a", "return_none", ["return None"]),
        ("if a: return", "return_removed", ["pass"]),
    ],
)
def test_a_line_gets_exactly_the_expected_faults(line: str, kind: str, changed: list[str]) -> None:
    assert changes_of(line)[kind] == changed


@pytest.mark.parametrize("line", ["'a text'", "assert a > 1", "b: int = c", "b = 'text'", "return None"])
def test_strings_assertions_and_annotations_get_no_faults(line: str) -> None:
    assert changes_of(line) == {}


def test_methods_and_branches_get_faults_and_constants_outside_functions_do_not() -> None:
    source = "A = 1\nclass C:\n    b = 2\n    def d(self):\n        if self: pass\n        else: e = 0\n"
    assert {(mutant.function, mutant.kind) for mutant in mutants_of(source, "m.py")} == {
        ("C.d", "condition_true"),
        ("C.d", "condition_false"),
        ("C.d", "constant"),
    }


def test_ids_are_stable_and_unique() -> None:
    ids = [mutant.id for mutant in mutants_of(SOURCE, "toy_room/toy.py")]
    assert ids == [mutant.id for mutant in mutants_of(SOURCE, "toy_room/toy.py")]
    assert len(set(ids)) == len(ids)
    assert {"toy_room/toy.py:9:boundary", "toy_room/toy.py:9:operand_removed#2"} <= set(ids)


def test_every_module_and_test_in_the_table_exists() -> None:
    for module, tests in TESTS_OF.items():
        assert (ROOT / module).exists()
        assert all((ROOT / test.partition("::")[0]).exists() for test in tests)


@pytest.mark.parametrize("module", ["admin_server/lease/candidates.py", "feedcore/replica/roles/deciding.py"])
def test_every_mutant_of_a_module_differs_from_it(module: str) -> None:
    source = (ROOT / module).read_text()
    for mutant in mutants_of(source, module)[::10]:
        tree = mutated_tree(source, mutant.place)
        assert ast.unparse(tree) != ast.unparse(ast.parse(source)), mutant.id


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    room = tmp_path / "toy_room"
    room.mkdir()
    (room / "toy.py").write_text(SOURCE)
    (tmp_path / "test_toy.py").write_text(TESTS)
    return tmp_path


def test_a_fault_is_planted_only_in_memory(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(toy)
    (boundary,) = [mutant for mutant in mutants_of(SOURCE, "toy_room/toy.py") if mutant.kind == "and_or"]
    finder = FaultFinder("toy_room.toy", toy / "toy_room" / "toy.py", boundary.place)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    faulty = importlib.import_module("toy_room.toy")
    monkeypatch.delitem(sys.modules, "toy_room.toy")
    assert faulty.clip(3) == 7, "or instead of and"
    assert (toy / "toy_room" / "toy.py").read_text() == SOURCE
    assert not list(toy.rglob("*.pyc"))


def run_tool(toy: Path, *options: str) -> tuple[int, str]:
    """Run the tool in a separate process, because it must fork from one that has imported little."""
    command = [sys.executable, "-m", "tests.mutation", "--root", str(toy), "--out", str(toy / "out")]
    command += ["--module", "toy_room/toy.py", "--tests", "test_toy.py", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
def test_outcomes_are_stored_and_finished_mutants_are_not_run_again(toy: Path) -> None:
    status, text = run_tool(toy, "--jobs", "2")
    assert status == 1, text
    # At the limit, `>=` has the same result as `>`: the mutant is equivalent, but is not listed as such.
    assert "survived: toy_room/toy.py:9:boundary in clip" in text
    assert "- if value > LIMIT and is_strict:\n+ if value >= LIMIT and is_strict:" in text
    rows = [json.loads(line) for line in (toy / "out" / "toy_room.toy.jsonl").read_text().splitlines()[1:]]
    assert [row["id"] for row in rows if row["outcome"] == "survived"] == ["toy_room/toy.py:9:boundary"]
    page = (toy / "out" / "toy_room.toy.md").read_text()
    assert page.startswith(f"# toy_room/toy.py: {len(rows)} mutants, {len(rows) - 1} killed, 1 survived")
    status, text = run_tool(toy, "--resume")
    assert (status, f"0 of {len(rows)} mutants" in text) == (1, True)
    status, text = run_tool(toy, "--resume", "--again")
    assert (status, f"1 of {len(rows)} mutants" in text) == (1, True)
    (toy / "toy_room" / "toy.py").write_text(SOURCE + "\n# changed\n")
    status, text = run_tool(toy, "--resume")
    assert status == 2
    assert "has changed since" in text


def test_if_tests_fail_without_a_fault_the_tool_reports_it_and_runs_no_mutant(toy: Path) -> None:
    (toy / "test_toy.py").write_text(TESTS.replace("== 3", "== 4"))
    status, text = run_tool(toy)
    assert status == 2
    assert "toy_room/toy.py: its tests end with status 1 without a fault; expected 0" in text


@pytest.mark.long
def test_a_mutant_that_hangs_is_ended_by_the_time_out(toy: Path) -> None:
    looping = SOURCE + "\n\ndef count(n):\n    while n > 0:\n        n -= 1\n    return n\n"
    (toy / "toy_room" / "toy.py").write_text(looping)
    counted = TESTS + "\n\ndef test_count():\n    from toy_room.toy import count\n    assert count(3) == 0\n"
    (toy / "test_toy.py").write_text(counted)
    run_tool(toy, "--timeout", "5", "--only", ":16:")
    rows = (toy / "out" / "toy_room.toy.jsonl").read_text()
    assert '{"id": "toy_room/toy.py:16:arithmetic", "outcome": "timed out"}' in rows


@pytest.mark.long
def test_a_sample_is_the_same_in_every_run_and_a_module_without_tests_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    listed = []
    for _ in range(2):
        assert main(["--module", "admin_server/lease/lease_core.py", "--sample", "5", "--list"]) == 0
        listed.append(capsys.readouterr().out)
    assert listed[0] == listed[1]
    assert listed[0].count("admin_server/lease/lease_core.py:") == 5
    with pytest.raises(SystemExit):
        main(["--module", "admin_server/records/audit.py"])
    assert "admin_server/records/audit.py: no tests are known" in capsys.readouterr().err


def test_an_equivalent_mutant_is_recognised_by_its_change_even_if_its_line_moved() -> None:
    mutant = mutants_of(SOURCE, "toy_room/toy.py")[0]
    reasons = {("toy_room/toy.py", mutant.function, mutant.change): "has no effect"}
    moved = mutants_of("# a line\n" + SOURCE, "toy_room/toy.py")[0]
    assert moved.id != mutant.id
    assert reason_of(moved, reasons) == "has no effect"
    assert reason_of(mutants_of(SOURCE, "toy_room/toy.py")[1], reasons) is None
