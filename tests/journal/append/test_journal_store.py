"""The journal under reopening, damage, several processes and kills."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemfeed.journal import (
    ForeignFile,
    Journal,
    JournalLocked,
    NamedPosition,
    NewerFormat,
    NoSuchRecord,
    Retention,
    Tailer,
    Upkeep,
)
from tandemfeed.journal.format.block import blocks_in
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN, DATA_OFFSET, SEGMENT_SIZE

BLOCK = BLOCK_SIZE_MIN


def test_upkeep_that_is_started_has_its_thread_before_the_first_append(tmp_path: Path) -> None:
    with Journal.open(tmp_path, block_size=BLOCK) as journal:
        before = set(threading.enumerate())
        journal.start_upkeep()
        (keeper,) = set(threading.enumerate()) - before
        for number in range(2 * BLOCK // SEGMENT_SIZE):  # it makes the next block
            journal.append(b"%d" % number * 20)
        assert keeper.is_alive()
        assert set(threading.enumerate()) - before == {keeper}


def test_a_record_is_read_back_by_its_index(tmp_path: Path) -> None:
    with Journal.open(tmp_path, block_size=BLOCK) as journal:
        indices = [journal.append(b"record %d" % number) for number in range(100)]
        assert [journal.read(index) for index in indices] == [b"record %d" % number for number in range(100)]
        assert indices[0] == journal.first_index
        with pytest.raises(NoSuchRecord):
            journal.read(indices[-1] + 1)


@settings(max_examples=25)
@given(st.lists(st.one_of(st.lists(st.binary(max_size=4_000), min_size=1, max_size=30), st.none()), max_size=30))
def test_batches_reopenings_and_block_rolls_keep_every_record_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[bytes] | None]
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    journal, expected = Journal.open(folder, block_size=BLOCK), []
    for step in steps:
        if step is None:
            journal.close()
            journal = Journal.open(folder, block_size=BLOCK)
        elif len(step) == 1:
            expected.append((journal.append(step[0]), step[0]))
        else:
            first = journal.append_batch(step)
            expected += [(first + place, record) for place, record in enumerate(step)]
    assert list(journal.records()) == expected
    tailer = Tailer(folder)
    assert list(tailer) == expected
    if expected:
        middle = expected[len(expected) // 2]
        tailer.to_index(middle[0])
        assert tailer.read() == middle
    tailer.close()
    journal.close()


def test_a_second_appender_is_refused_beside_an_exclusive_one_and_the_error_names_its_process(tmp_path: Path) -> None:
    with Journal.open(tmp_path, block_size=BLOCK, exclusive=True), pytest.raises(JournalLocked, match=str(os.getpid())):
        Journal.open(tmp_path, block_size=BLOCK)
    Journal.open(tmp_path, block_size=BLOCK).close()


def test_a_record_larger_than_a_block_gets_a_larger_block(tmp_path: Path) -> None:
    large = os.urandom(3 * BLOCK)
    with Journal.open(tmp_path, block_size=BLOCK) as journal:
        indices = [journal.append(record) for record in (b"before", large, b"after")]
        assert [journal.read(index) for index in indices] == [b"before", large, b"after"]
    assert [record for _, record in Tailer(tmp_path)] == [b"before", large, b"after"]


def test_retention_releases_the_oldest_files_and_reports_them(tmp_path: Path) -> None:
    added: list[Path] = []
    released: list[Path] = []
    upkeep = Upkeep(Retention(files=2), on_file_added=added.append, on_file_released=released.append)
    with Journal.open(tmp_path, block_size=BLOCK, upkeep=upkeep) as journal:
        first = journal.append(bytes(60_000))
        for _ in range(20):
            newest = journal.append(bytes(60_000))
        journal.close()
    with Journal.open(tmp_path, block_size=BLOCK) as journal:
        assert journal.read(newest) == bytes(60_000)
        with pytest.raises(NoSuchRecord):
            journal.read(first)
        assert journal.first_index > first
    assert len(blocks_in(tmp_path)) == 2
    assert len(added) >= 6
    assert released == added[:-2] or released[1:] == added[:-2]  # the first file existed before any roll


def test_foreign_and_newer_files_are_refused_unchanged(tmp_path: Path) -> None:
    Journal.open(tmp_path, block_size=BLOCK).close()
    path = blocks_in(tmp_path)[0].path
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"\x63\0\0\0" + whole[8:])
    with pytest.raises(NewerFormat):
        Journal.open(tmp_path, block_size=BLOCK)
    path.write_bytes(b"ELF" + whole[3:])
    with pytest.raises(ForeignFile):
        Journal.open(tmp_path, block_size=BLOCK)
    assert path.read_bytes()[:3] == b"ELF"


def test_damage_at_any_byte_of_the_last_segments_loses_only_the_damaged_segment(tmp_path: Path) -> None:
    records = [b"alpha", b"beta-beta", b"gamma"]
    with Journal.open(tmp_path / "whole", block_size=BLOCK) as journal:
        first = journal.append(records[0])
        for record in records[1:]:
            journal.append(record)
    control = (tmp_path / "whole" / "journal.tfc").read_bytes()
    name = blocks_in(tmp_path / "whole")[0].path.name
    whole = (tmp_path / "whole" / name).read_bytes()
    starts = [DATA_OFFSET, DATA_OFFSET + SEGMENT_SIZE + 8, DATA_OFFSET + 2 * SEGMENT_SIZE + 24]
    end = starts[-1] + SEGMENT_SIZE + 8
    for offset in range(DATA_OFFSET, end):
        hit = max(place for place, start in enumerate(starts) if start <= offset)
        for damage in ("flip", "cut"):
            folder = tmp_path / f"{damage}{offset}"
            folder.mkdir()
            (folder / "journal.tfc").write_bytes(control[:4096] + bytes(len(control) - 4096))  # as after a power loss
            data = bytearray(whole)
            if damage == "flip":
                data[offset] ^= 0xFF
            else:
                del data[offset:]
            data[512:DATA_OFFSET] = bytes(DATA_OFFSET - 512)  # before the first checkpoint
            (folder / name).write_bytes(data)
            with Journal.open(folder, block_size=BLOCK) as journal:
                served = list(journal.records())
                left = [(first + place, record) for place, record in enumerate(records) if place != hit]
                padding = offset >= starts[hit] + SEGMENT_SIZE + len(records[hit])
                if damage == "cut":
                    left = [entry for entry in left if entry[0] < first + hit]
                if padding:  # the bytes from a segment's end to the next multiple of 8 are unused
                    assert {entry[0] for entry in left} <= {entry[0] for entry in served}
                else:
                    assert served == left
                index = journal.append(b"after")
                assert journal.read(index) == b"after"
                assert list(Tailer(folder)) == [*served, (index, b"after")]
            shutil.rmtree(folder)


def _append_forever(folder: Path, pipe: Connection) -> None:
    journal = Journal.open(folder, block_size=BLOCK)
    for number in range(1_000_000):
        pipe.send((journal.append(b"%d" % number), number))


def test_records_that_a_killed_appender_reported_survive(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    for life in range(3):
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=_append_forever, args=(tmp_path, sender))
        child.start()
        sender.close()
        reported = [receiver.recv() for _ in range(2_000)]
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        try:
            while True:
                reported.append(receiver.recv())
        except EOFError:
            pass
        with Journal.open(tmp_path, block_size=BLOCK) as journal:
            for index, number in reported:
                assert journal.read(index) == b"%d" % number, f"life {life}"


def test_a_tailer_follows_a_running_appender_across_blocks(tmp_path: Path) -> None:
    tailer = Tailer(tmp_path)
    assert tailer.read() is None
    with Journal.open(tmp_path, block_size=BLOCK) as journal:
        for number in range(40):
            journal.append(b"%d" % number + bytes(20_000))
            assert tailer.wait(5)
            entry = tailer.read()
            assert entry is not None
            assert entry[1].startswith(b"%d\0" % number)
        assert tailer.read() is None
        tailer.to_start()
        assert len(tailer.read_many(100)) == 40
        tailer.to_end()
        assert not tailer.wait(0.01)
    tailer.close()


def test_a_named_position_survives_a_torn_slot(tmp_path: Path) -> None:
    position = NamedPosition(tmp_path / "reader.position")
    assert position.load() is None
    for value in range(10):
        position.store(value)
    position.close()
    data = bytearray((tmp_path / "reader.position").read_bytes())
    data[0] ^= 1  # the slot of generation 10, the newest
    (tmp_path / "reader.position").write_bytes(data)
    assert NamedPosition(tmp_path / "reader.position").load() == 8


def test_a_journal_that_is_never_synced_keeps_no_old_blocks_mapped_and_no_released_files_open(tmp_path: Path) -> None:
    with Journal.open(tmp_path, block_size=BLOCK, upkeep=Upkeep(Retention(files=3))) as journal:
        for _ in range(200):
            index = journal.append(bytes(60_000))
        journal._keeper._pool.submit(lambda: None).result()  # the keeper has finished its work
        opened = []
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
                opened.append(os.readlink(f"/proc/self/fd/{name}"))
        # Two for each mapped block, and one for each ended block that is kept, until it is flushed.
        assert sum(f"{tmp_path}/" in path and ".tfj" in path for path in opened) <= 4 + 2
        assert Path("/proc/self/maps").read_text().count(f"{tmp_path}/0") <= 2
        journal.sync()
        assert journal.read(index) == bytes(60_000)
