"""Compiled kernels are unpickled and run, so files that another user may have written are never read."""

from __future__ import annotations

import os
import pickle
import stat
import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from tandemfeed.journal.compiled.compiling import compile_into
from tandemfeed.journal.compiled.places import kernel_folder, private_file, private_folder

STRANGER = 54_321  # a user other than the one who runs the tests
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another user")


def strange_owner(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER)


def mode(bits: int) -> Callable[[Path], None]:
    return lambda path: path.chmod(bits)


def through_a_link(path: Path) -> None:
    """The same folder, reached through a symbolic link."""
    real = path.with_name(f"real-{path.name}")
    path.rename(real)
    path.symlink_to(real)


# --- folders


def test_a_cache_folder_is_created_private_to_its_owner(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "kernels"
    assert private_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert private_folder(folder), "a second start cannot use it"


@pytest.mark.parametrize(
    "spoil",
    [mode(0o720), mode(0o702), mode(0o750), mode(0o704), through_a_link, pytest.param(strange_owner, marks=needs_root)],
)
def test_a_folder_that_others_can_read_or_replace_is_not_used(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    folder = tmp_path / "kernels"
    assert private_folder(folder)
    spoil(folder)
    before = folder.lstat()
    assert not private_folder(folder)
    assert folder.lstat() == before, "the folder was changed, although its files may be another user's"


@pytest.mark.parametrize("spoil", [mode(0o777), pytest.param(strange_owner, marks=needs_root)])
def test_a_folder_whose_parent_lets_others_replace_it_is_not_used(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    parent = tmp_path / "parent"
    assert private_folder(parent / "inner" / "kernels")
    spoil(parent)
    assert not private_folder(parent / "inner" / "kernels")
    assert not private_folder(parent / "new")


def test_a_sticky_parent_folder_is_as_safe_as_a_private_one(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)  # like /tmp
    assert private_folder(tmp_path / "shared" / "kernels")


def test_kernels_go_to_the_first_folder_that_is_private(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file in place of the folder")
    (tmp_path / "open" / "kernels-d").mkdir(parents=True)
    (tmp_path / "open" / "kernels-d").chmod(0o777)
    places = (tmp_path / "file", tmp_path / "open", tmp_path / "own")
    assert kernel_folder("d", *places) == tmp_path / "own" / "kernels-d"
    assert kernel_folder("d", *places[:2]) is None


@pytest.mark.parametrize(
    "spoil", [mode(0o620), mode(0o602), through_a_link, Path.unlink, pytest.param(strange_owner, marks=needs_root)]
)
def test_a_file_is_private_if_it_is_regular_and_only_its_owner_can_write_it(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    path = tmp_path / "file"
    path.write_text("")
    path.chmod(0o644)
    assert private_file(str(path))
    spoil(path)
    assert not private_file(str(path))


# --- compiled functions

SOURCE = """
def plus(value):
    return value + {}
"""


def compiled_plus(folder: Path, number: int) -> Any:
    """A compiled function of a separate module, loaded from the folder if it is cached there."""
    path = folder.parent / "plus_module.py"
    path.write_text(SOURCE.format(number))
    spec = spec_from_file_location("plus_module", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return compile_into(folder, module.plus)


def hits(function: Any) -> int:
    """How often the function was loaded from the cache instead of compiled."""
    found: int = sum(function.stats.cache_hits.values())
    return found


class Planted:
    """Has code that runs when it is unpickled."""

    def __init__(self, ran: Path) -> None:
        self._ran = ran

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self._ran), "w")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "kernels"
    assert private_folder(folder)
    written = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # Python would not notice that the module changes within a second
    yield folder
    sys.dont_write_bytecode = written


def test_a_compiled_function_is_cached_privately_and_loaded_again(folder: Path) -> None:
    before = os.umask(0)
    try:
        assert compiled_plus(folder, 1)(1) == 2
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert {path.suffix for path in folder.iterdir()} == {".nbi", ".nbc"}
    again = compiled_plus(folder, 1)
    assert again(1) == 2
    assert hits(again) == 1


def test_a_cached_function_from_another_source_is_not_used(folder: Path) -> None:
    assert compiled_plus(folder, 1)(1) == 2
    other = compiled_plus(folder, 7)  # differs only in a constant, which numba's key does not contain
    assert other(1) == 8
    assert hits(other) == 0


def test_a_function_without_a_source_is_not_cached(folder: Path) -> None:
    module: dict[str, Any] = {}
    exec(compile(SOURCE.format(1), "<nowhere>", "exec"), module)
    assert compile_into(folder, module["plus"])(1) == 2
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("spoil", [mode(0o666), through_a_link, pytest.param(strange_owner, marks=needs_root)])
def test_a_planted_file_is_not_run_but_replaced(folder: Path, suffix: str, spoil: Callable[[Path], None]) -> None:
    assert compiled_plus(folder, 1)(1) == 2
    (path,) = folder.glob(f"*{suffix}")
    ran = folder.parent / "ran"
    path.write_bytes(pickle.dumps(Planted(ran)))
    spoil(path)
    assert compiled_plus(folder, 1)(1) == 2
    assert not ran.exists()
    (path,) = folder.glob(f"plus*{suffix}")
    assert private_file(str(path))
    again = compiled_plus(folder, 1)
    assert again(1) == 2
    assert hits(again) == 1


def test_the_file_that_these_tests_plant_would_run(folder: Path) -> None:
    compiled_plus(folder, 1)(1)
    (path,) = folder.glob("*.nbi")
    ran = folder.parent / "ran"
    path.write_bytes(pickle.dumps(Planted(ran)))
    compiled_plus(folder, 1)(1)
    assert ran.exists()
