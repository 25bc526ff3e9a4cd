"""Mapped pages of a block: only those that appends need soon; releasing pages loses no data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tandemfeed.journal import Journal, Upkeep
from tandemfeed.journal.format.block import Block, make_spare
from tandemfeed.journal.format.layout import DATA_OFFSET

MB = 1 << 20
AHEAD = MB // 2


def mapped_bytes(path: Path) -> int:
    """The bytes of a file that are mapped in this process."""
    found = 0
    for part in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        if part.splitlines()[0].endswith(str(path)):
            found += 1024 * sum(int(size) for size in re.findall(r"^Rss: +(\d+) kB$", part, re.M))
    return found


@pytest.mark.parametrize(("ahead", "at_least", "at_most"), [(None, 8 * MB, 8 * MB), (AHEAD, AHEAD, 2 * AHEAD)])
def test_a_spare_has_only_the_requested_pages_mapped(
    ahead: int | None, at_least: int, at_most: int, tmp_path: Path
) -> None:
    spare = make_spare(tmp_path / "a.spare", 8 * MB, mapped_ahead=ahead)
    assert at_least <= mapped_bytes(spare.path) <= at_most


def test_released_pages_keep_their_contents(tmp_path: Path) -> None:
    spare = make_spare(tmp_path / "a.spare", 8 * MB, mapped_ahead=AHEAD)
    written = bytes(range(256)) * (4 * MB // 256)
    spare.array[DATA_OFFSET : DATA_OFFSET + 4 * MB] = list(written)
    assert mapped_bytes(spare.path) > 4 * MB
    spare.map_around(DATA_OFFSET + 4 * MB, AHEAD)
    assert AHEAD <= mapped_bytes(spare.path) <= 3 * AHEAD
    assert bytes(spare.view[DATA_OFFSET : DATA_OFFSET + 4 * MB]) == written
    spare.release_pages()
    assert mapped_bytes(spare.path) == 0
    spare.flush()
    assert spare.path.read_bytes()[DATA_OFFSET : DATA_OFFSET + 4 * MB] == written


def test_an_appender_keeps_little_of_its_blocks_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    map_around = Block.map_around

    def map_and_record(block: Block, end: int, ahead: int) -> None:
        map_around(block, end, ahead)
        asked.append((block.ordinal, end))

    monkeypatch.setattr(Block, "map_around", map_and_record)
    with Journal.open(tmp_path, block_size=8 * MB, exclusive=True, upkeep=Upkeep(mapped_ahead=AHEAD)) as journal:
        first = journal.append(bytes(1_000))
        for number in range(20_000):
            journal.append(number.to_bytes(8, "little") * 125)
        records = [record for _, record in journal.records()]
        assert records[1:] == [number.to_bytes(8, "little") * 125 for number in range(20_000)]
        assert journal.read(first) == bytes(1_000)
    assert len({ordinal for ordinal, _ in asked}) >= 3  # the mapped pages of each block advanced
    steps = [end for ordinal, end in asked if ordinal == asked[0][0]]
    assert steps == sorted(steps)
    assert len(steps) >= 8 * MB // AHEAD
