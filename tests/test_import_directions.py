"""Which package may import which: imports go in one direction."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# package -> the other packages it may import; `tandemfeed` is the generated code of the contracts.
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
# A core gets time, random numbers and input as arguments; it must not import modules that provide them.
IMPURE = {
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


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_a_package_imports_only_allowed_packages(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for name, line in imports_of(path)
        if (top := name.split(".")[0]) in OURS and top != package and top not in ALLOWED[package]
    ]
    assert not wrong


def test_cores_import_only_numpy_and_pure_modules_of_the_standard_library() -> None:
    wrong = []
    for path in sorted((ROOT / "feedcore").rglob("*.py")):
        for name, line in imports_of(path):
            top = name.split(".")[0]
            known = top in sys.stdlib_module_names or top in ("numpy", "feedcore")
            if not known or top in IMPURE:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong


def test_the_conversion_imports_nothing_impure() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted((ROOT / "adapter" / "conversion").rglob("*.py"))
        for name, line in imports_of(path)
        if name.split(".")[0] in IMPURE | {"transport", "journal", "tandemfeed"}
    ]
    assert not wrong


def test_no_module_imports_a_command_line() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for package in ALLOWED
        for path in sorted((ROOT / package).rglob("*.py"))
        for name, line in imports_of(path)
        if name.split(".")[0] in OURS and name.endswith(".cli")
    ]
    assert not wrong
