"""What a journal promises of the disk: after power failures, failed flushes, and the death of who appended."""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tandemfeed.journal import Journal, JournalFailed, Retention, Tailer, Upkeep
from tandemfeed.journal.append import durability
from tandemfeed.journal.commands.cli import main
from tandemfeed.journal.format.block import blocks_in
from tandemfeed.journal.format.control import Control
from tandemfeed.journal.format.layout import (
    BLOCK_SIZE_MIN,
    CONTROL_NAME,
    FAILED_NAME,
    FLUSHER,
    IS_CLEAN,
    IS_FAILED,
    LOCK,
)
from tandemfeed.runtime import durable
from tests.failing_device import FailingDevice
from tests.losing_disk import FailsAt, losing_disk

BLOCK = BLOCK_SIZE_MIN
FORK = multiprocessing.get_context("fork")
PATIENCE_S = 60.0


def opened(folder: Path, **options: object) -> Journal:
    return Journal.open(folder, block_size=BLOCK, **options)  # type: ignore[arg-type]


def records_of(folder: Path) -> list[bytes]:
    with Tailer(folder) as tailer:
        found = [record for _, record in tailer]
        assert tailer.lost_count == 0
        return found


def recovered(image: Path) -> list[bytes]:
    """The records after an appender opened the image."""
    opened(image).close()
    return records_of(image)


def numbered(count: int, size: int = 2_000) -> list[bytes]:
    """Records of which about 120 fit into a block."""
    return [b"%d " % number + bytes(size) for number in range(count)]


def in_child(work: Callable[[], object]) -> None:
    """Run something in a process that then dies without closing anything."""

    def run() -> None:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)

    process = FORK.Process(target=run)
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == 0


# ---- power failures ----


def test_a_new_journal_is_there_after_a_power_failure_with_its_folder_and_its_synced_records(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with losing_disk(root, tmp_path / "kept") as disk:
        journal = opened(root / "made" / "for" / "it")
        journal.append(b"synced")
        journal.sync()
        journal.append(b"not synced")
        image = disk.image(tmp_path / "image")
        journal.close()
    assert recovered(image / "made" / "for" / "it") == [b"synced"]


def test_the_folder_of_a_journal_whose_maker_died_is_there_after_a_power_failure(tmp_path: Path) -> None:
    """Of what the dead process did not flush, nothing is taken for durable: not even the name of the folder."""
    root = tmp_path / "root"
    root.mkdir()
    with losing_disk(root, tmp_path / "kept") as disk:
        (root / "journal").mkdir()
        in_child(lambda: opened(root / "journal").append(b"by the dead"))
        with opened(root / "journal") as journal:
            journal.append(b"by the heir")
            journal.sync()
            image = disk.image(tmp_path / "image")
    assert recovered(image / "journal") == [b"by the dead", b"by the heir"]


@pytest.mark.parametrize("has_survivor", [False, True])
def test_who_inherits_a_journal_makes_durable_what_the_dead_appender_rolled(tmp_path: Path, has_survivor: bool) -> None:
    """Blocks, their ends, and their names: those of a dead process too, whether another lives or opens the journal."""
    folder, records = tmp_path / "journal", numbered(950)
    folder.mkdir()
    with losing_disk(folder, tmp_path / "kept") as disk:
        survivor = opened(folder) if has_survivor else None

        def append_and_die() -> None:
            journal = opened(folder)
            for record in records:
                journal.append(record)

        in_child(append_and_die)
        with survivor or opened(folder) as journal:
            journal.append(b"acknowledged")
            journal.sync()
            image = disk.image(tmp_path / "image")
    assert len(blocks_in(image)) > 3
    assert recovered(image) == [*records, b"acknowledged"]


def test_a_sync_makes_durable_what_another_living_appender_rolled(tmp_path: Path) -> None:
    folder, records = tmp_path / "journal", numbered(400)
    folder.mkdir()
    with losing_disk(folder, tmp_path / "kept") as disk, opened(folder) as one, opened(folder) as other:
        one.append(b"first")
        for record in records:
            other.append(record)
        one.append(b"last")
        one.sync()
        image = disk.image(tmp_path / "image")
    assert recovered(image) == [b"first", *records, b"last"]


def test_a_reopened_journal_does_not_look_cleanly_closed_after_a_power_failure(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    opened(folder).close()
    with losing_disk(folder, tmp_path / "kept") as disk:
        with Control(folder / CONTROL_NAME, writable=False) as control:
            assert control.word(IS_CLEAN)
        with opened(folder):
            image = disk.image(tmp_path / "while open")
            with Control(image / CONTROL_NAME, writable=False) as control:
                assert not control.word(IS_CLEAN)
        image = disk.image(tmp_path / "closed")
        with Control(image / CONTROL_NAME, writable=False) as control:
            assert control.word(IS_CLEAN)


def test_a_journal_that_the_disk_let_open_only_at_the_second_attempt_does_not_look_cleanly_closed(
    tmp_path: Path,
) -> None:
    """The first attempt stores the same word as the second one, and only the kernel sees that (`stored_to`)."""
    folder = tmp_path / "journal"
    opened(folder).close()
    with losing_disk(folder, tmp_path / "kept", FailsAt(1, matching=CONTROL_NAME)) as disk:
        disk.stored_to = CONTROL_NAME
        with pytest.raises(JournalFailed, match="cannot be opened"):
            opened(folder)
        journal = opened(folder)
        journal.append(b"acknowledged")
        journal.sync()
        image = disk.image(tmp_path / "image")
        journal.close()
    assert recovered(image) == [b"acknowledged"]


def test_after_a_clean_close_nothing_old_is_flushed_again(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    with opened(folder) as journal:
        for record in numbered(400):
            journal.append(record)
    with losing_disk(folder, tmp_path / "kept") as disk, opened(folder) as journal:
        journal.append(b"more")
        journal.sync()
        assert {path.name for path in disk.flushes} == {CONTROL_NAME, blocks_in(folder)[-1].path.name}


def test_a_compressed_block_is_durable_before_the_block_is_removed(tmp_path: Path) -> None:
    folder, now_ns = tmp_path / "journal", 0
    folder.mkdir()
    options: dict[str, object] = {"roll_cycle": "SECONDLY", "clock_ns": lambda: now_ns, "upkeep": Upkeep(compress=True)}
    with losing_disk(folder, tmp_path / "kept") as disk:
        images: list[Path] = []
        synced: list[bytes] = []
        expected = []

        def note(operation: str, path: Path) -> None:
            if operation == "remove":
                expected.append(list(synced))
                images.append(disk.image(tmp_path / f"image {len(images)}"))

        disk.fault = note
        with opened(folder, **options) as journal:
            for second in range(4):
                now_ns = second * 1_000_000_000
                journal.append(b"%d" % second)
                journal.sync()
                synced.append(b"%d" % second)
        note("remove", folder)
    assert len(images) == 4
    for image, there in zip(images, expected, strict=True):
        opened(image, **options).close()
        assert records_of(image)[: len(there)] == there
    assert [name.path.suffix for name in blocks_in(images[-1])] == [".zst"] * 3 + [".tfj"]


# ---- failed flushes ----


def test_after_a_failed_flush_no_later_sync_succeeds(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    fault = FailsAt(1, matching=".tfj")
    with losing_disk(folder, tmp_path / "kept", fault):
        journal = opened(folder)
        journal.append(b"lost")
        for _ in range(2):
            with pytest.raises(JournalFailed, match="open it again"):
                journal.sync()
        with pytest.raises(JournalFailed):
            journal.append(b"never acknowledged")
        with pytest.raises(JournalFailed):
            journal.append_batch([b"never", b"acknowledged"])
        with pytest.raises(JournalFailed):
            journal.close()
        assert fault.failed == 1
        assert records_of(folder) == [b"lost"]  # can be read, but is not acknowledged


@pytest.mark.parametrize("matching", ["000000.tfj", "000001.tfj", "journal", CONTROL_NAME])
@pytest.mark.parametrize("number", [1, 2])
def test_whatever_flush_fails_nothing_acknowledged_is_lost(tmp_path: Path, matching: str, number: int) -> None:
    """The n-th flush of the ended block, the current one, the folder, or the control file."""
    folder, records = tmp_path / "journal", numbered(180)
    folder.mkdir()
    operation = "flush_folder" if matching == "journal" else "flush"
    fault, acknowledged = FailsAt(number, operations=(operation,), matching=matching), 0
    with losing_disk(folder, tmp_path / "kept", fault) as disk:
        for attempt in range(4):
            try:
                with opened(folder) as journal:
                    for record in records[len(records_of(folder)) :][:60]:
                        journal.append(record)
                    journal.sync()
                    acknowledged = len(records_of(folder))
                    image = disk.image(tmp_path / f"image {attempt}")
                    assert recovered(image) == records[:acknowledged]
            except JournalFailed:
                assert not (folder / CONTROL_NAME).exists() or records_of(folder) == records[: len(records_of(folder))]
        image = disk.image(tmp_path / "image")
    assert fault.calls >= number
    assert acknowledged == 180
    assert recovered(image) == records


def test_a_failed_flush_concerns_every_thread_process_and_restart_until_it_is_written_again(tmp_path: Path) -> None:
    folder, records = tmp_path / "journal", numbered(300)
    folder.mkdir()
    is_broken = [True]

    def fault(operation: str, path: Path) -> None:
        if is_broken[0] and operation in ("flush", "rewrite") and ".tfj" in path.name:
            raise OSError(5, "Input/output error")

    with losing_disk(folder, tmp_path / "kept", fault) as disk:
        journal, other = opened(folder), opened(folder)
        for record in records:
            journal.append(record)
        with pytest.raises(JournalFailed):
            journal.sync()
        with ThreadPoolExecutor(1) as pool, pytest.raises(JournalFailed):
            pool.submit(journal.sync).result()
        for refused in (lambda: other.append(b"in vain"), other.sync, lambda: journal.append(b"in vain")):
            with pytest.raises(JournalFailed):
                refused()
        with pytest.raises(JournalFailed, match="cannot be opened"):
            opened(folder)
        with pytest.raises(JournalFailed):
            other.append(b"in vain")
        is_broken[0] = False
        with pytest.raises(JournalFailed):
            journal.append(b"in vain")  # this appender's failure stays
        again = opened(folder)
        assert other.append(b"after") > 0  # the others continue
        other.sync()
        image = disk.image(tmp_path / "image")
        assert not (folder / FAILED_NAME).exists()
        for each in (again, other):
            each.close()
        with pytest.raises(JournalFailed):
            journal.close()
    assert recovered(image) == [*records, b"after"]


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_process_that_died_while_it_flushed_may_have_been_the_only_one_to_learn_of_the_failure(
    tmp_path: Path, is_alone: bool
) -> None:
    folder, records = tmp_path / "journal", numbered(300)
    folder.mkdir()

    def die(operation: str, path: Path) -> None:
        if operation == "flush" and ".tfj" in path.name:
            raise OSError(5, "Input/output error")

    with losing_disk(folder, tmp_path / "kept") as disk:
        survivor = None if is_alone else opened(folder)

        def append_and_die() -> None:
            journal = opened(folder)
            for record in records:
                journal.append(record)
            disk.fault = die
            journal.chain.durability.fail = lambda refusal: os._exit(0)  # type: ignore[method-assign]
            journal.sync()

        in_child(append_and_die)
        with Control(folder / CONTROL_NAME, writable=False) as control:
            assert control.word(FLUSHER)
            assert not control.word(IS_FAILED)
        with survivor or opened(folder) as journal:
            journal.append(b"acknowledged")
            journal.sync()
            image = disk.image(tmp_path / "image")
    assert recovered(image) == [*records, b"acknowledged"]


def test_a_sync_waits_for_that_of_another_thread(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    is_flushing, may_go = threading.Event(), threading.Event()

    def wait(operation: str, path: Path) -> None:
        if operation == "flush" and path.name.endswith("000000.tfj") and not may_go.is_set():
            is_flushing.set()
            assert may_go.wait(PATIENCE_S)

    with losing_disk(folder, tmp_path / "kept") as disk, opened(folder) as journal:
        for record in numbered(200):
            journal.append(record)
        disk.fault = wait
        first = threading.Thread(target=journal.sync)
        first.start()
        assert is_flushing.wait(PATIENCE_S)
        flushed: list[Path] = []
        second = threading.Thread(target=lambda: (journal.sync(), flushed.extend(disk.flushes)))  # type: ignore[func-returns-value]
        second.start()
        second.join(0.05)
        assert not flushed
        may_go.set()
        for each in (first, second):
            each.join(PATIENCE_S)
        assert [path.name[-10:] for path in flushed if path.name.endswith("000000.tfj")] == ["000000.tfj"]


def test_a_journal_that_is_never_synced_flushes_its_oldest_blocks_and_fails_if_the_disk_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durability, "HELD_MAX", 4)
    folder, has_failed = tmp_path / "journal", threading.Event()
    folder.mkdir()

    def refuse(operation: str, path: Path) -> None:
        if operation == "flush":
            has_failed.set()
            raise OSError(5, "Input/output error")

    with losing_disk(folder, tmp_path / "kept") as disk:
        journal = opened(folder)
        disk.fault = refuse
        with pytest.raises(JournalFailed):  # noqa: PT012
            for record in numbered(100_000):
                journal.append(record)
        assert has_failed.is_set()
        with pytest.raises(JournalFailed):
            journal.close()


def test_retention_that_the_disk_refuses_makes_the_next_sync_write_again(tmp_path: Path) -> None:
    """A folder's failed flush is reported once, and may concern the name of a new block."""
    folder, records = tmp_path / "journal", numbered(900)
    folder.mkdir()
    with losing_disk(folder, tmp_path / "kept") as disk:
        journal = opened(folder, upkeep=Upkeep(Retention(files=3)))
        journal.sync()
        disk.fault = FailsAt(1, operations=("flush_folder",))
        for record in records:
            journal.append(record)
        journal._keeper._pool.submit(lambda: None).result()
        with Control(folder / CONTROL_NAME, writable=False) as control:
            assert control.word(IS_FAILED)
        journal.sync()
        with Control(folder / CONTROL_NAME, writable=False) as control:
            assert not control.word(IS_FAILED)
            assert not control.word(LOCK)
        image = disk.image(tmp_path / "image")
        journal.close()
    found = recovered(image)
    assert found == records[-len(found) :]


def test_the_commands_say_that_a_journal_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    with losing_disk(folder, tmp_path / "kept", FailsAt(1, matching=".tfj")):
        journal = opened(folder)
        journal.append(b"readable")
        with pytest.raises(JournalFailed):
            journal.close()
    assert main(["info", str(folder)]) == 1
    assert "the disk refused a flush" in capsys.readouterr().out
    assert main(["unlock", str(folder)]) == 1
    assert "open the journal for appending again" in capsys.readouterr().err
    opened(folder).close()
    assert main(["info", str(folder)]) == 0
    assert main(["unlock", str(folder)]) == 0
    assert records_of(folder) == [b"readable"]


# ---- a real disk ----


def test_nothing_acknowledged_is_lost_on_a_disk_that_refuses_writes_for_a_while(tmp_path: Path) -> None:
    records = numbered(1_000)
    with FailingDevice(tmp_path) as device:
        folder = device.folder / "journal"
        with opened(folder) as journal:
            for record in records[:400]:
                journal.append(record)
            journal.sync()
        journal = opened(folder)
        for record in records[400:]:
            journal.append(record)
        with device.failing():
            with pytest.raises(JournalFailed, match="No space left"):
                journal.sync()
            with pytest.raises(JournalFailed):
                journal.sync()
            with pytest.raises(JournalFailed):
                journal.close()
            with pytest.raises(JournalFailed, match="cannot be opened"):
                opened(folder)
            assert records_of(folder) == records
        with opened(folder) as journal:
            journal.append(b"acknowledged")
            journal.sync()
        del journal
        device.lose_power()
        assert recovered(folder) == [*records, b"acknowledged"]


@pytest.mark.parametrize("size", [0, BLOCK])
def test_a_reader_takes_a_block_without_a_header_for_one_that_was_never_begun(tmp_path: Path, size: int) -> None:
    """As a power failure leaves it, if only its name was on the disk; the next appender begins another one."""
    in_child(lambda: opened(tmp_path).append(b"not flushed"))
    (block,) = blocks_in(tmp_path)
    block.path.write_bytes(bytes(size))
    with Tailer(tmp_path) as tailer:
        assert tailer.read() is None
        with opened(tmp_path) as journal:
            journal.append(b"by the next appender")
            assert tailer.read() == (journal.first_index, b"by the next appender")


@pytest.mark.parametrize("lost", ["pages", "names"])
@pytest.mark.parametrize("size", [100, 6_000])
def test_a_journal_that_is_cut_ends_where_a_power_failure_has_lost_the_first_record(
    tmp_path: Path, lost: str, size: int
) -> None:
    """As that of a follower: a prefix of what was appended, with everything that was synced, and nothing after it."""
    records, folder = [b"%d " % number + bytes(size) for number in range(1_500_000 // (size + 300))], tmp_path / "made"
    with losing_disk(tmp_path, tmp_path.with_name(f"{tmp_path.name}-kept")) as disk, opened(folder) as journal:
        synced = len(records) // 5
        for number, record in enumerate(records):
            journal.append(record)
            if number == synced:
                journal.sync()
        if lost == "names":
            for name in blocks_in(folder):
                durable.flush_file(name.path)
        images = tmp_path.with_name(f"{tmp_path.name}-images")
        images.mkdir()
        cut = [disk.image(images / str(seed), random.Random(seed)) / folder.name for seed in range(20)]
    lengths = set()
    for image in cut:
        opened(image, is_cut=True).close()
        with Tailer(image) as tailer:
            left = [record for _, record in tailer]
            assert tailer.lost_count == 0
        assert left == records[: len(left)]
        assert len(left) > synced
        lengths.add(len(left))
        with opened(image) as journal:
            journal.append(b"next")
            assert [record for _, record in journal.records()] == [*left, b"next"]
            assert journal.chain.current.path == blocks_in(image)[-1].path
    assert len(lengths) > 1
