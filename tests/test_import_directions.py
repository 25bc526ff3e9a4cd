"""Which package may import which: imports go in one direction, and every import uses the project's one name."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# package -> the other packages it may import; `v1` is the generated code of the contracts.
ALLOWED = {
    "feedcore": set(),
    "runtime": set(),
    "journal": {"runtime"},
    "tables": {"runtime", "feedcore"},
    "transport": {"runtime", "feedcore", "v1"},
    "adapter": {"runtime", "feedcore", "tables", "transport", "journal", "v1"},
    "client_lib": {"runtime", "feedcore", "tables", "transport", "v1"},
    "spark_feed": {"runtime", "feedcore", "tables", "transport", "journal", "client_lib", "v1"},
    "admin_server": {"runtime", "feedcore", "transport", "v1"},
    "offline": {"runtime", "feedcore", "tables", "transport", "journal", "client_lib", "adapter", "spark_feed"},
}
PACKAGES = (*ALLOWED, "deploy", "benchmarks")
OURS = {*PACKAGES, "v1", "tests"}
# A core gets time, random numbers and input as arguments; it must not import modules that provide them.
IMPURE = {
    "asyncio", "datetime", "io", "logging", "multiprocessing", "os", "queue", "random", "secrets", "select",
    "selectors", "signal", "socket", "subprocess", "sys", "tempfile", "threading", "time", "uuid",
}  # fmt: skip


def imports_of(path: Path) -> Iterator[tuple[str, int]]:
    """The imported modules and their lines; modules of this project without `tandemfeed.`."""
    for name, line in full_imports_of(path):
        yield name.removeprefix("tandemfeed."), line


def full_imports_of(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            if module == "tandemfeed":
                yield from ((f"tandemfeed.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield module, node.lineno


def test_every_import_uses_the_name_tandemfeed_because_a_module_imported_twice_is_two_modules() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for package in (*PACKAGES, "tests")
        for path in sorted((ROOT / package).rglob("*.py"))
        for name, line in full_imports_of(path)
        if name.split(".")[0] in PACKAGES
    ]
    assert not wrong


def test_the_folder_tandemfeed_links_to_every_package() -> None:
    links = {each.name: each.resolve() for each in (ROOT / "tandemfeed").iterdir() if each.is_symlink()}
    assert links == {**{package: ROOT / package for package in PACKAGES}, "v1": ROOT / "proto" / "tandemfeed" / "v1"}


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
        if name.split(".")[0] in IMPURE | {"transport", "journal", "v1"}
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
