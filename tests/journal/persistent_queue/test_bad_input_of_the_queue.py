"""Bad files in the folder and bad arguments: each causes a clear error and changes nothing."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tandemfeed.journal import (
    BlockCorrupt,
    ForeignFile,
    Journal,
    JournalClosed,
    JournalLocked,
    NewerFormat,
    ReadOnly,
    SettingsDiffer,
)
from tandemfeed.journal.block import blocks_in
from tandemfeed.journal.layout import BLOCK_SIZE_MIN, DATA_OFFSET, SEGMENT_SIZE
from tandemfeed.journal.persistent_queue import NotInFlight, PersistentQueue, QueueFailed, TooManyInFlight, Unknown

BLOCK = BLOCK_SIZE_MIN


def make(folder: Path, items: list[bytes]) -> Path:
    """Make a closed queue; return its only block."""
    with PersistentQueue.open(folder, block_size=BLOCK) as queue:
        for item in items:
            queue.put(item)
    return blocks_in(folder)[0].path


def test_foreign_newer_and_damaged_blocks_are_refused_unchanged(tmp_path: Path) -> None:
    path = make(tmp_path, [b"item"])
    whole = path.read_bytes()
    for data, error in (
        (b"ELF" + whole[3:], ForeignFile),
        (whole[:4] + b"\x63\0\0\0" + whole[8:], NewerFormat),
        (whole[:30] + b"\xff" + whole[31:], BlockCorrupt),
        (b"short", ForeignFile),
    ):
        path.write_bytes(data)
        with pytest.raises(error, match=path.name):
            PersistentQueue.open(tmp_path, block_size=BLOCK)
        assert path.read_bytes() == data
    path.write_bytes(whole)
    with PersistentQueue.open(tmp_path, block_size=BLOCK) as queue:
        assert queue.get() == (0, b"item")


def test_a_foreign_name_a_copy_and_a_block_of_another_queue_are_refused(tmp_path: Path) -> None:
    path = make(tmp_path / "queue", [b"item"])
    for name, text in (("notes.tfj", "name"), ("000000000-000007.tfj", "restore the file's name")):
        stray = path.with_name(name)
        stray.write_bytes(path.read_bytes())
        with pytest.raises(ForeignFile, match=text):
            PersistentQueue.open(tmp_path / "queue", block_size=BLOCK)
        stray.unlink()
    other = make(tmp_path / "other", [b"item"])
    path.with_name("000000000-000001.tfj").write_bytes(other.read_bytes())
    with pytest.raises(ForeignFile, match="another journal"):
        PersistentQueue.open(tmp_path / "queue", block_size=BLOCK)
    with pytest.raises(ForeignFile, match="contains a journal"):
        PersistentQueue.open(tmp_path / "third", more_paths=[tmp_path / "other"], block_size=BLOCK)


def test_block_files_without_their_control_file_are_refused(tmp_path: Path) -> None:
    make(tmp_path, [b"item"])
    (tmp_path / "journal.tfc").unlink()
    with pytest.raises(ForeignFile, match=r"journal\.tfc"):
        PersistentQueue.open(tmp_path, block_size=BLOCK)


def test_other_settings_and_other_faces_are_refused(tmp_path: Path) -> None:
    make(tmp_path / "queue", [])
    with pytest.raises(SettingsDiffer, match="block_size"):
        PersistentQueue.open(tmp_path / "queue", block_size=2 * BLOCK)
    with pytest.raises(SettingsDiffer, match="queue"):
        Journal.open(tmp_path / "queue", block_size=BLOCK)
    Journal.open(tmp_path / "journal", block_size=BLOCK).close()
    with pytest.raises(SettingsDiffer, match="journal"):
        PersistentQueue.open(tmp_path / "journal", block_size=BLOCK)


@pytest.mark.parametrize(
    "settings",
    [
        {"block_size": 1_000},
        {"blocks_max": 1},
        {"group_size_max": 0},
        {"group_delay_s": -1.0},
        {"checkpoint_interval_s": 0.0},
        {"in_flight_max": 0},
    ],
)
def test_invalid_settings_are_refused(tmp_path: Path, settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        PersistentQueue.open(tmp_path, **settings)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def _open_and_report(folder: Path, pipe: Connection) -> None:
    try:
        PersistentQueue.open(folder, block_size=BLOCK).close()
        pipe.send("opened")
    except JournalLocked as refused:
        pipe.send(str(refused))


def test_a_second_opener_is_refused_and_the_error_names_the_first_process(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with PersistentQueue.open(tmp_path, block_size=BLOCK):
        with pytest.raises(JournalLocked, match=str(os.getpid())):
            PersistentQueue.open(tmp_path, block_size=BLOCK)
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_open_and_report, args=(tmp_path, sender))
        process.start()
        assert str(os.getpid()) in receiver.recv()
        process.join()
    PersistentQueue.open(tmp_path, block_size=BLOCK).close()


def test_a_file_instead_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ReadOnly):
        PersistentQueue.open(tmp_path / "file", block_size=BLOCK)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write any file")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(ReadOnly):
        PersistentQueue.open(tmp_path, block_size=BLOCK)


def test_a_closed_queue_refuses_every_call(tmp_path: Path) -> None:
    queue = PersistentQueue.open(tmp_path, block_size=BLOCK)
    queue.close()
    queue.close()
    for call in (lambda: queue.put(b""), queue.get, queue.cancel_all, lambda: queue.put_nowait(b"")):
        with pytest.raises(JournalClosed):
            call()


def test_items_that_are_not_in_flight_cannot_be_settled_and_nothing_changes(tmp_path: Path) -> None:
    with PersistentQueue.open(tmp_path, block_size=BLOCK, in_flight_max=2) as queue:
        ids = queue.put_many([b"a", b"b", b"c"])
        assert queue.get() == (0, b"a")
        for wrong in ([0, 1], [0, 0], [-1], [99]):
            with pytest.raises(NotInFlight):
                queue.done_many(wrong)
        with pytest.raises(NotInFlight):
            queue.release(1)
        assert queue.cancel(-1) == Unknown(-1)
        assert queue.in_flight_count == 1
        queue.get()
        with pytest.raises(TooManyInFlight):
            queue.get()
        queue.done_many(ids[:2])
        assert queue.get() == (2, b"c")


def test_an_item_that_is_not_bytes_is_refused(tmp_path: Path) -> None:
    with PersistentQueue.open(tmp_path, block_size=BLOCK) as queue:
        for wrong in (5, "text", None):
            with pytest.raises(TypeError):
                queue.put(wrong)  # type: ignore[arg-type]
        queue.put(bytearray(b"fine"))
        assert queue.get() == (0, b"fine")


@pytest.mark.parametrize("is_after_checkpoint", [False, True])
def test_damage_loses_the_items_of_the_damaged_segment_and_no_others(tmp_path: Path, is_after_checkpoint: bool) -> None:
    items = [b"alpha", b"beta-beta", b"gamma"]
    path = make(tmp_path, items)
    data = bytearray(path.read_bytes())
    data[DATA_OFFSET + SEGMENT_SIZE + 8 + SEGMENT_SIZE] ^= 1  # the first byte of the second item
    if is_after_checkpoint:
        data[512:DATA_OFFSET] = bytes(DATA_OFFSET - 512)
    path.write_bytes(data)
    for _ in range(2):
        with PersistentQueue.open(tmp_path, block_size=BLOCK) as queue:
            assert [queue.get(), queue.get(), queue.get()] == [(0, b"alpha"), (2, b"gamma"), None]
            assert type(queue.cancel(1)).__name__ == "Lost"


def test_a_failing_disk_stops_the_queue_and_acknowledged_items_are_there_after_reopening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = PersistentQueue.open(tmp_path, block_size=BLOCK, checkpoint_interval_s=60)
    queue.put(b"safe")

    def fail(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fail)
        with pytest.raises(QueueFailed, match="open the queue again"):
            queue.put(b"doubtful")
    with pytest.raises(QueueFailed):
        queue.put(b"refused")
    queue.close()
    with PersistentQueue.open(tmp_path, block_size=BLOCK) as queue:
        assert queue.get() == (0, b"safe")
