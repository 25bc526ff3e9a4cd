"""What `convert file` has written when it ends with status 0 survives a power failure, and so does what it replaces.

On a disk that keeps only what was flushed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tandemfeed.adapter.convert_command.cli import main
from tandemfeed.adapter.convert_command.recordings.staging import PREFIX
from tests.conversion.test_convert_captures import ITCH, itch_file
from tests.losing_disk import FailsAt, LosingDisk, losing_disk

SBE, CSV, PARQUET, ARROW = (("--as", kind) for kind in ("sbe", "csv", "parquet", "arrow"))
SIDE_BY_SIDE = (*PARQUET, "--jobs", "2")
FORMS: list[tuple[str, ...]] = [SBE, CSV, PARQUET, ARROW, SIDE_BY_SIDE, (*CSV, "--jobs", "2"), ("--partition", "2")]
Content = dict[str, bytes]


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    return [itch_file(tmp_path / f"{number}.itch", 100 + number) for number in range(2)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LosingDisk]:
    (tmp_path / "disk").mkdir()
    with losing_disk(tmp_path / "disk", tmp_path / "kept") as disk:
        yield disk


def convert(disk: LosingDisk, inputs: Sequence[Path], *options: str) -> int:
    return main(["file", *map(str, inputs), *ITCH, "--to", str(disk.root / "deep" / "out"), *options])


def content(root: Path) -> Content:
    """The output files, by their paths; not those that readers pass over."""
    out = root / "deep" / "out"
    paths = [path.relative_to(out) for path in out.rglob("*") if path.is_file()]
    return {str(path): (out / path).read_bytes() for path in paths if not path.parts[0].startswith(PREFIX)}


def left(disk: LosingDisk, chance: random.Random | None = None) -> Content:
    """What a power failure would leave now."""
    return content(disk.image(disk.root.parent / f"image-{len(list(disk.root.parent.iterdir()))}", chance))


@pytest.mark.parametrize("options", FORMS, ids=" ".join)
def test_what_a_conversion_has_written_survives_a_power_failure(
    disk: LosingDisk, inputs: list[Path], options: tuple[str, ...]
) -> None:
    assert convert(disk, inputs, *options) == 0
    assert content(disk.root)
    assert left(disk) == content(disk.root)
    assert convert(disk, inputs[:1] if "--jobs" not in options else inputs[::-1], *options) == 0
    assert left(disk) == content(disk.root)


@pytest.mark.parametrize(("first", "then"), [(SBE, SBE), (SIDE_BY_SIDE, SIDE_BY_SIDE), (PARQUET, SIDE_BY_SIDE)])
def test_a_power_failure_leaves_each_file_of_the_former_or_of_the_new_conversion(
    disk: LosingDisk, inputs: list[Path], first: tuple[str, ...], then: tuple[str, ...]
) -> None:
    assert convert(disk, inputs, *first) == 0
    before, images, chance = content(disk.root), list[Content](), random.Random(1)

    def fault(operation: str, path: Path) -> None:
        images.append(left(disk))
        images.extend(left(disk, chance) for _ in range(3))

    disk.fault = fault
    assert convert(disk, inputs[::-1], *then) == 0
    after = content(disk.root)
    assert before != after
    allowed = before.items() | after.items()
    assert images
    assert all(image.items() <= allowed for image in images)


@pytest.mark.parametrize("options", [SBE, SIDE_BY_SIDE, ("--partition", "2")], ids=" ".join)
@pytest.mark.parametrize("operation", ["flush", "flush_folder"])
def test_a_conversion_whose_files_cannot_be_flushed_replaces_nothing(
    disk: LosingDisk,
    inputs: list[Path],
    options: tuple[str, ...],
    operation: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert convert(disk, inputs, *options) == 0
    before, capsys_before = content(disk.root), capsys.readouterr()
    assert capsys_before.err
    disk.fault = FailsAt(1, operations=(operation,))
    assert convert(disk, inputs[::-1], *options) == 2
    assert "could not be flushed to the disk" in " ".join(capsys.readouterr().err.split())
    assert content(disk.root) == left(disk) == before
    assert not list((disk.root / "deep" / "out").glob(f"{PREFIX}*"))


def test_a_conversion_whose_names_cannot_be_flushed_does_not_end_with_status_0(
    disk: LosingDisk, inputs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    out = disk.root / "deep" / "out"
    fail_for: Callable[[str, Path], None] = FailsAt(1, operations=("flush_folder",), matching=out.name)
    assert convert(disk, inputs, *SBE) == 0
    disk.fault = fail_for
    assert convert(disk, inputs[::-1], *SBE) == 2
    assert f"{out}: could not be flushed" in "".join(capsys.readouterr().err.split("\n"))


def test_a_folder_with_files_of_others_is_not_replaced(
    disk: LosingDisk, inputs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(disk, inputs, *SIDE_BY_SIDE) == 0
    (folder,) = (disk.root / "deep" / "out").glob("*.parquet")
    (folder / "notes.txt").write_text("of a user")
    before = content(disk.root)
    assert convert(disk, inputs, *PARQUET) == 2
    assert "notes.txt, which no conversion has written; move it away" in " ".join(capsys.readouterr().err.split())
    assert content(disk.root) == before
