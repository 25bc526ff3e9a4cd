"""A file that is gone is noticed by every reader that passes its place, and counts as lost."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tandemfeed.journal import Journal, JournalLocked, Retention, Tailer, Upkeep
from tandemfeed.journal.append.maintenance import plan, prune
from tandemfeed.journal.check.findings import FileMissing
from tandemfeed.journal.check.journal_files import JournalFiles
from tandemfeed.journal.check.verification import Verification
from tandemfeed.journal.commands.cli import main
from tandemfeed.journal.format.compression import compress_block
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN
from tandemfeed.journal.replication.segments import SegmentReader
from tests.journal.journals_made import damage, files_of

SECOND = 1_000_000_000
START = 1_800_000_000 * SECOND
PER_CYCLE, PER_FILE = 6, 2  # records
KEY = bytes(range(32))
KINDS = ("plain", "encrypted", "compressed")
Made = tuple[Path, list[tuple[int, bytes]]]  # the folder, and the records with their indices
# Four cycles of three files of two records each, and which of the files are removed: (files, records lost, is exact).
CASES = {
    "in the middle of a cycle": ([4], 2, True),
    "two at the end of a cycle": ([4, 5], 1, False),
    "the first of a cycle": ([6], 2, True),
    "the last of a cycle": ([5], 1, False),
    "a whole cycle": ([3, 4, 5], 1, False),
    "the end of a cycle and the begin of the next": ([5, 6], 2, False),
    "two places": ([1, 7], 4, True),
}


def made(folder: Path, *, key: bytes | None = None, cycles: int = 4) -> list[tuple[int, bytes]]:
    """The journal's records with their indices."""
    now_ns, written = START, []
    with Journal.open(
        folder, block_size=BLOCK_SIZE_MIN, roll_cycle="SECONDLY", key=key, clock_ns=lambda: now_ns
    ) as journal:
        for number in range(cycles * PER_CYCLE):
            now_ns = START + number // PER_CYCLE * SECOND
            record = b"%d " % number + bytes(80_000)
            written.append((journal.append(record), record))
    assert len(files_of(folder)) == cycles * PER_CYCLE // PER_FILE
    return written


def without(folder: Path, written: list[tuple[int, bytes]], places: list[int]) -> list[tuple[int, bytes]]:
    """Remove files; the records that are left."""
    for place, path in enumerate(files_of(folder)):
        if place in places:
            path.unlink()
    return [entry for number, entry in enumerate(written) if number // PER_FILE not in places]


def by_record(tailer: Tailer) -> list[tuple[int, bytes]]:
    return list(tailer)


def by_batch(tailer: Tailer) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    while (batch := tailer.read_batch(5)) is not None:
        found += zip(range(batch.first_index, batch.next_index), batch.records(), strict=True)
    return found


def by_mixed_batch(tailer: Tailer) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    while (batch := tailer.read_batch(5, mixed=True)) is not None:
        found += zip(range(batch.first_index, batch.next_index), batch.records(), strict=True)
    return found


def backward(tailer: Tailer) -> list[tuple[int, bytes]]:
    return list(iter(tailer.to_end().read_back, None))[::-1]


READERS: list[Callable[[Tailer], list[tuple[int, bytes]]]] = [by_record, by_batch, by_mixed_batch, backward]


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    """A whole journal of each kind."""
    folder = tmp_path_factory.mktemp("journals")
    found = {kind: (folder / kind, made(folder / kind, key=KEY if kind == "encrypted" else None)) for kind in KINDS}
    for path in files_of(folder / "compressed")[:-1]:
        compress_block(path)
    return found


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_reader_counts_what_is_missing_with_a_file(
    tmp_path: Path, journals: dict[str, Made], reader: Callable[[Tailer], list[tuple[int, bytes]]], case: str,
    kind: str, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    key = KEY if kind == "encrypted" else None
    whole, written = journals[kind]
    with Tailer(whole, key=key) as tailer:
        assert reader(tailer) == written
        assert tailer.lost_count == 0
    assert not caplog.records
    places, lost, is_exact = CASES[case]
    folder = shutil.copytree(whole, tmp_path / "journal")
    missing_name = files_of(folder)[places[0]].name.removesuffix(".zst")
    left = without(folder, written, places)
    with Tailer(folder, key=key) as tailer, caplog.at_level(logging.WARNING):
        assert reader(tailer) == left
        assert tailer.lost_count == lost
    assert f"{missing_name} is missing; {'' if is_exact else 'at least '}" in caplog.text


@pytest.mark.parametrize("case", CASES)
def test_every_command_says_so_with_its_exit_status(
    tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = [
        ["tail", str(tmp_path), "--one-line"],
        ["tail", str(tmp_path), "--one-line", "--reverse"],
        ["tail", str(tmp_path), "--one-line", "--name", "audit"],
        ["history", str(tmp_path)],
        ["replay", str(tmp_path), "--to", str(tmp_path / "out"), "--speed", "max", "--overwrite"],
        ["verify", str(tmp_path)],
        ["info", str(tmp_path)],
        ["dump", str(tmp_path), "--hex-bytes", "0"],
    ]
    written = made(tmp_path)
    for command in commands:
        assert main(command) == 0, command
    (tmp_path / "tailers" / "audit.position").unlink()
    places, _, _ = CASES[case]
    name = files_of(tmp_path)[places[0]].name
    without(tmp_path, written, places)
    for command in commands:
        capsys.readouterr()
        assert main(command) == 1, command
        out, err = capsys.readouterr()
        if command[0] in ("tail", "history", "replay"):
            assert "lost to damage or with missing files" in err
        else:
            assert name in out


def test_the_check_names_each_missing_file(tmp_path: Path) -> None:
    written = made(tmp_path)
    names = [path.name for path in files_of(tmp_path)]
    without(tmp_path, written, [1, 3, 4, 5, 8])
    with JournalFiles(tmp_path) as files:
        found = [each for each in Verification(files).findings() if isinstance(each, FileMissing)]
    assert [each.missing for each in found] == [names[1], names[3], names[8]]


def test_a_missing_newest_file_is_noticed_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written = made(tmp_path)
    name = files_of(tmp_path)[-1].name
    left = without(tmp_path, written, [11])
    with Tailer(tmp_path) as tailer:
        assert list(tailer) == left
        assert tailer.read() is None
        assert tailer.lost_count == 2
    assert f"{name} is missing; 2 records lost" in caplog.text
    assert main(["tail", str(tmp_path), "--one-line"]) == 1
    assert main(["info", str(tmp_path)]) == 1


def test_a_leaders_reading_of_blocks_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written = made(tmp_path)
    left = without(tmp_path, written, [4])
    reader = SegmentReader(tmp_path)
    place = reader.place_at(0)
    assert place is not None
    assert len(reader.read(place, 1 << 30)) == len(left)
    assert "is missing; 2 records lost" in caplog.text


def test_damage_at_the_end_of_a_file_counts_in_both_directions(tmp_path: Path) -> None:
    written = made(tmp_path, cycles=1)
    first = files_of(tmp_path)[0]
    damage(first, 4_096 + 80_040 + 200)  # in the second, which is the last of the file
    for reader in READERS:
        with Tailer(tmp_path) as tailer:
            assert reader(tailer) == [entry for number, entry in enumerate(written) if number != 1]
            assert tailer.lost_count == 1


def test_a_block_that_was_never_used_is_not_missing(tmp_path: Path) -> None:
    """The first record is too long for the block that was begun with the journal."""
    with Journal.open(tmp_path, block_size=BLOCK_SIZE_MIN) as journal:
        written = [(journal.append(bytes(size)), bytes(size)) for size in (1_000_000, 10, 2_000_000, 20)]
    for reader in READERS:
        with Tailer(tmp_path) as tailer:
            assert reader(tailer) == written
            assert tailer.lost_count == 0


# ---- named tailers ----


def _read_one(folder: Path, name: str) -> None:
    with Tailer(folder, name=name) as tailer:
        assert tailer.read() is not None
        tailer.commit()


def test_retention_keeps_what_a_named_tailer_has_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Journal.open(tmp_path, block_size=BLOCK_SIZE_MIN, upkeep=Upkeep(Retention(files=2))) as journal:
        written = [(journal.append(bytes([0]) * 80_000), bytes([0]) * 80_000)]
        _read_one(tmp_path, "slow")
        written += [(journal.append(bytes([number]) * 80_000), bytes([number]) * 80_000) for number in range(1, 20)]
        journal._keeper._pool.submit(lambda: None).result()
        assert len(files_of(tmp_path)) == 10
        assert "kept for named tailer slow, which is at" in caplog.text
        with Tailer(tmp_path, name="slow") as tailer:
            assert list(tailer) == written[1:]
            assert tailer.lost_count == 0
            tailer.commit()
        for number in range(6):
            journal.append(bytes([number]) * 80_000)
        journal._keeper._pool.submit(lambda: None).result()
        assert len(files_of(tmp_path)) == 3  # from the one that the tailer reads next
    with Tailer(tmp_path, name="slow") as tailer:
        assert len(list(tailer)) == 6
        assert tailer.lost_count == 0


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_named_tailer_counts_what_was_released_before_it_read_it(tmp_path: Path, by_hand: bool) -> None:
    upkeep = Upkeep() if by_hand else Upkeep(Retention(files=2), even_unread=True)
    with Journal.open(tmp_path, block_size=BLOCK_SIZE_MIN, upkeep=upkeep) as journal:
        journal.append(bytes(80_000))
        _read_one(tmp_path, "slow")
        for number in range(1, 20):
            journal.append(bytes([number]) * 80_000)
        journal._keeper._pool.submit(lambda: None).result()
        if by_hand:
            pruning, _ = plan(tmp_path, Retention(files=2), 0.0, even_unread=True)
            prune(tmp_path, pruning)
    with Tailer(tmp_path, name="slow") as tailer:
        found = list(tailer)
        assert len(found) < 5
        assert tailer.lost_count == 19 - len(found)


def test_a_named_tailer_that_had_read_all_of_a_released_cycle_has_lost_nothing(tmp_path: Path) -> None:
    written = made(tmp_path)
    with Tailer(tmp_path, name="slow") as tailer:
        assert tailer.read_many(PER_CYCLE) == written[:PER_CYCLE]
        tailer.commit()
    pruning, kept_count = plan(tmp_path, Retention(files=1), 0.0)
    assert (len(pruning.files), kept_count) == (3, 9)
    prune(tmp_path, pruning)
    with Tailer(tmp_path, name="slow") as tailer:
        assert list(tailer) == written[PER_CYCLE:]
        assert tailer.lost_count == 0


def test_a_named_tailer_continues_after_a_damaged_record_and_not_at_the_end(tmp_path: Path) -> None:
    written = made(tmp_path, cycles=1)
    _read_one(tmp_path, "slow")
    damage(files_of(tmp_path)[0], 4_096 + 80_040 + 200)  # the record that it reads next
    with Tailer(tmp_path, name="slow") as tailer:
        assert list(tailer) == written[2:]
        assert tailer.lost_count == 1


def test_a_second_tailer_of_a_name_is_refused_while_the_first_one_lives(tmp_path: Path) -> None:
    written = made(tmp_path, cycles=1)
    with Tailer(tmp_path, name="billing") as tailer:
        with pytest.raises(JournalLocked, match=f"process {os.getpid()} reads under this name"):
            Tailer(tmp_path, name="billing")
        assert main(["tail", str(tmp_path), "--one-line", "--name", "billing"]) == 2
        tailer.read()
        tailer.commit()
    with Tailer(tmp_path, name="billing") as tailer:
        assert tailer.read() == written[1]
