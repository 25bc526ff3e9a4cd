"""The mutation tool itself: which faults it plants, that it plants them only in memory, and what it reports."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.__main__ import main
from tests.mutation.equivalent import EQUIVALENT
from tests.mutation.mutants import mutants_of, mutated_code, mutated_tree
from tests.mutation.recording import LineRecorder
from tests.mutation.report import reason_of
from tests.mutation.table import GROUPS, SIMULATOR
from tests.mutation.trying import ROOT

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
        ("b = a or 0", "operand_removed", ["b = False or 0"]),
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


def test_a_result_that_is_false_does_not_become_none() -> None:
    assert changes_of("return False") == {"constant": ["return True"]}


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
    modules = [module for group in GROUPS for module in group.modules]
    assert len(set(modules)) == len(modules)
    tests = [test.partition("::")[0] for group in GROUPS for test in (*group.tests, SIMULATOR)]
    assert [path for path in (*modules, *tests) if not (ROOT / path).exists()] == []


def test_every_mutant_that_is_listed_as_equivalent_exists() -> None:
    functions: dict[str, set[str]] = {}
    for module, function, _ in EQUIVALENT:
        functions.setdefault(module, set()).add(function)
    every = {
        (module, mutant.function, mutant.change)
        for module, names in functions.items()
        for mutant in mutants_of((ROOT / module).read_text(), module, names)
    }
    assert [entry for entry in EQUIVALENT if entry not in every] == []


@pytest.mark.parametrize("module", ["admin_server/lease/candidates.py", "feedcore/replica/roles/deciding.py"])
def test_every_mutant_of_a_module_differs_from_it(module: str) -> None:
    source = (ROOT / module).read_text()
    for mutant in mutants_of(source, module)[::10]:
        tree = mutated_tree(source, mutant)
        assert ast.unparse(tree) != ast.unparse(ast.parse(source)), mutant.id


def test_mutated_code_has_the_free_names_of_the_right_code_even_if_their_last_use_is_gone() -> None:
    source = "class C:\n    def __init__(self):\n        super().__init__()\n"
    (removed,) = mutants_of(source, "m.py")
    assert mutated_code(source, "m.py", removed, ()).co_freevars == ()
    assert mutated_code(source, "m.py", removed, ("__class__",)).co_freevars == ("__class__",)


def test_the_lines_of_a_fault_are_those_of_its_statement_without_inner_statements() -> None:
    source = (
        "def f(a, b):\n    if (\n        a and\n        b\n    ):\n        return (\n            a\n            + b)\n"
    )
    lines = {mutant.kind: mutant.lines for mutant in mutants_of(source, "m.py")}
    assert lines["and_or"] == range(2, 6)
    assert lines["arithmetic"] == range(6, 9)


def test_a_recorder_notes_the_executed_lines_of_its_files_only() -> None:
    namespace: dict[str, Any] = {}
    exec(compile("def f(a):\n    if a:\n        return 1\n    return 2\n", "watched.py", "exec"), namespace)
    with LineRecorder(["watched.py"]) as recorder:
        namespace["f"](True)
        Path("unwatched").exists()
    assert recorder.lines == {("watched.py", 2), ("watched.py", 3)}


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    room = tmp_path / "toy_room"
    room.mkdir()
    (room / "toy.py").write_text(SOURCE)
    (tmp_path / "test_toy.py").write_text(TESTS)
    return tmp_path


def run_tool(toy: Path, *options: str) -> tuple[int, str]:
    """Run the tool in a separate process, because it runs pytest itself."""
    command = [sys.executable, "-m", "tests.mutation", "--root", str(toy), "--out", str(toy / "out")]
    command += ["--module", "toy_room/toy.py", "--tests", "test_toy.py", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
def test_outcomes_are_stored_and_only_changed_functions_and_survivors_are_tried_again(toy: Path) -> None:
    status, text = run_tool(toy, "--jobs", "2")
    assert status == 1, text
    # At the limit, `>=` has the same result as `>`: the mutant is equivalent, but is not listed as such.
    assert "survived (1 tests): toy_room/toy.py:9:boundary in clip" in text
    assert "- if value > LIMIT and is_strict:\n+ if value >= LIMIT and is_strict:" in text
    stored = toy / "out" / "toy_room.toy.jsonl"
    rows = [json.loads(line) for line in stored.read_text().splitlines()]
    assert [row["id"] for row in rows if row["outcome"] == "survived"] == ["toy_room/toy.py:9:boundary"]
    assert {row["by"] for row in rows} == {"test_toy.py::test_clip_limits_only_large_values", ""}
    share = f"{(len(rows) - 1) / len(rows):.1%}"
    row = f"| `toy_room/toy.py` | {len(rows)} | {len(rows)} | {len(rows) - 1} | 0 | 1 | {share} |"
    assert row in text
    assert row in (toy / "out" / "toy_room.toy.md").read_text()
    assert ("less than 90% of the mutants were noticed" in text) is (len(rows) < 10)
    assert (toy / "toy_room" / "toy.py").read_text() == SOURCE, "faults are planted only in memory"
    for options, tried in (("--resume",), 0), (("--resume", "--again"), 1):
        _, text = run_tool(toy, *options)
        assert row in text
        assert len(stored.read_text().splitlines()) == len(rows) + tried
    (toy / "toy_room" / "toy.py").write_text(SOURCE + "\n\ndef other(value: int) -> int:\n    return value + 1\n")
    _, text = run_tool(toy, "--resume", "--only", "arithmetic")
    assert f"| {len(rows) + 4} | {len(rows) + 1} |" in text
    assert "survived (no test executes it): toy_room/toy.py:15:arithmetic in other" in text


def test_a_run_of_limited_time_leaves_the_rest_to_the_next(toy: Path) -> None:
    _, text = run_tool(toy, "--seconds", "0")
    assert "| 0 | 0 | 0 | 0 |  |" in text


def test_if_tests_fail_without_a_fault_the_tool_reports_it_and_runs_no_mutant(toy: Path) -> None:
    (toy / "test_toy.py").write_text(TESTS.replace("== 3", "== 4"))
    status, text = run_tool(toy)
    assert status == 2
    assert "test_toy.py::test_clip_limits_only_large_values fails without a fault" in text


def test_a_mutant_that_hangs_is_ended(toy: Path) -> None:
    looping = SOURCE + "\n\ndef count(n):\n    while n > 0:\n        n -= 1\n    return n\n"
    (toy / "toy_room" / "toy.py").write_text(looping)
    counted = TESTS + "\n\ndef test_count():\n    from toy_room.toy import count\n    assert count(3) == 0\n"
    (toy / "test_toy.py").write_text(counted)
    run_tool(toy, "--only", ":16:arithmetic")
    (row,) = [json.loads(line) for line in (toy / "out" / "toy_room.toy.jsonl").read_text().splitlines()]
    assert (row["id"], row["outcome"]) == ("toy_room/toy.py:16:arithmetic", "timed out")


def test_a_sample_is_the_same_in_every_run_and_a_module_without_tests_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    listed = []
    for _ in range(2):
        assert main(["--module", "admin_server/lease/lease_core.py", "--sample", "5", "--list"]) == 0
        listed.append(capsys.readouterr().out)
    assert listed[0] == listed[1]
    assert listed[0].count("admin_server/lease/lease_core.py:") == 6
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
