"""Who may import whom: the house's arrows run one way."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# room -> rooms it may import beside itself; `tandemfeed` is the generated contracts.
ALLOWED = {
    "feedcore": set(),
    "journal": set(),
    "transport": {"feedcore", "tandemfeed"},
    "adapter": {"feedcore", "transport", "journal", "tandemfeed"},
    "client_lib": {"feedcore", "transport", "tandemfeed"},
    "spark_feed": {"feedcore", "transport", "journal", "tandemfeed"},
    "admin_server": {"feedcore", "transport", "tandemfeed"},
}
OURS = {*ALLOWED, "deploy", "benchmarks", "tests", "tandemfeed"}
# A core is told time, chance and the world; it never reaches for them.
WORLDLY = {
    "asyncio", "datetime", "io", "logging", "multiprocessing", "os", "queue", "random", "secrets", "select",
    "selectors", "signal", "socket", "subprocess", "sys", "tempfile", "threading", "time", "uuid",
}  # fmt: skip


def imports_of(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield node.module or "", node.lineno


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_a_room_imports_only_what_lies_below_it(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted((ROOT / room).rglob("*.py"))
        for name, line in imports_of(path)
        if (top := name.split(".")[0]) in OURS and top != room and top not in ALLOWED[room]
    ]
    assert not wrong


def test_a_core_imports_the_standard_library_and_numpy_only_and_nothing_of_the_world() -> None:
    wrong = []
    for path in sorted((ROOT / "feedcore").rglob("*.py")):
        for name, line in imports_of(path):
            top = name.split(".")[0]
            known = top in sys.stdlib_module_names or top in ("numpy", "feedcore")
            if not known or top in WORLDLY:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong


def test_the_conversion_is_as_pure_as_a_core() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted((ROOT / "adapter" / "conversion").rglob("*.py"))
        for name, line in imports_of(path)
        if name.split(".")[0] in WORLDLY | {"transport", "journal", "tandemfeed"}
    ]
    assert not wrong


def test_nobody_imports_a_command_line_of_a_component() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for room in ALLOWED
        for path in sorted((ROOT / room).rglob("*.py"))
        for name, line in imports_of(path)
        if name.split(".")[0] in OURS and name.endswith(".cli")
    ]
    assert not wrong
