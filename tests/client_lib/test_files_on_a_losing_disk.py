"""What the client library writes: it survives a power failure as the table in docs/client.md says, a refused flush is
not forgotten, and it is for its user only.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import random
import stat
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandemfeed.client_lib import CursorUnusable, NotStored, StoredAgain, read_losses
from tandemfeed.client_lib.commands.outputs import add_output_arguments, open_output
from tandemfeed.client_lib.losses.loss import JOINED_NS, Loss
from tandemfeed.client_lib.losses.loss_report import LINE_COUNT, LINE_SIZE, RETRY_NS, LossReport
from tandemfeed.client_lib.reading.cursor import STORE_EVERY_NS, Cursor
from tandemfeed.client_lib.recording.record import ROW_DTYPE, SPAN_DTYPE, ChannelRecord, DeliveryRecord
from tests.client_lib.losses.test_loss_report import LOSS
from tests.client_lib.messages.test_message_attributes import batch_of, trade
from tests.dying_process import die_after
from tests.losing_disk import FailsAt, losing_disk

OPERATIONS = ("write", "flush", "rename", "flush_folder", "rewrite", "remove")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    umask = os.umask(0)  # nothing here may rely on it
    made = tmp_path / "state"
    made.mkdir()
    yield made
    os.umask(umask)


def modes(folder: Path) -> set[tuple[bool, int]]:
    """Whether it is a folder, and the mode, of everything in a folder."""
    return {(each.is_dir(), stat.S_IMODE(each.stat().st_mode)) for each in folder.rglob("*")}


# ---- the cursor ----


def store(path: Path, *notes: Any) -> None:
    """Store these notes, one after another, and end without closing anything."""
    cursor = opened(path)
    for note in notes:
        cursor.note = note
        cursor.write(cursor.snapshot())


def opened(path: Path) -> Cursor:
    cursor = Cursor(path)
    cursor.open()
    return cursor


def note_in(path: Path) -> Any:
    return json.loads(path.read_bytes())["note"] if path.exists() else None


def test_a_stored_position_survives_a_power_failure_with_the_folders_that_were_made_for_it(
    folder: Path, tmp_path: Path
) -> None:
    with losing_disk(folder, tmp_path / "kept") as disk:
        store(folder / "a" / "cursors" / "model.json", 1, 2)
        image = disk.image(tmp_path / "image")
    assert note_in(image / "a" / "cursors" / "model.json") == 2


def test_a_position_that_a_killed_process_has_not_flushed_is_durable_once_the_next_one_has_read_it(
    folder: Path, tmp_path: Path
) -> None:
    path = folder / "model.json"

    def be_killed_before_the_flush_of_the_name() -> None:
        with pytest.raises(OSError, match="could not be flushed"):
            store(path, 2)

    with losing_disk(folder, tmp_path / "kept") as disk:
        die_after(partial(store, path, 1))
        disk.fault = FailsAt(2, count=None, operations=("flush_folder",))  # the first is at its start
        die_after(be_killed_before_the_flush_of_the_name)
        disk.fault = lambda operation, path: None
        assert note_in(disk.image(tmp_path / "before") / "model.json") == 1
        assert opened(path).note == 2
        assert note_in(disk.image(tmp_path / "after") / "model.json") == 2


def test_a_position_whose_flush_is_refused_at_the_start_is_written_again(folder: Path, tmp_path: Path) -> None:
    path = folder / "model.json"
    with losing_disk(folder, tmp_path / "kept") as disk:
        die_after(partial(store, path, 1))
        path.write_bytes(path.read_bytes().replace(b'"note": 1', b'"note": 7'))  # as an editor, which flushes nothing
        disk.fault = FailsAt(1, matching="model.json")
        assert opened(path).note == 7
        image = disk.image(tmp_path / "image")
    assert note_in(image / "model.json") == 7


def test_a_cursor_on_a_disk_that_refuses_flushes_is_not_opened_and_the_error_says_what_to_do(
    folder: Path, tmp_path: Path
) -> None:
    path = folder / "model.json"
    with losing_disk(folder, tmp_path / "kept") as disk:
        die_after(partial(store, path, 1))
        disk.fault = FailsAt(1, count=None, operations=("flush", "flush_folder"))
        with pytest.raises(CursorUnusable, match=r"^\S+ could not be flushed to the disk .*\. Check the disk"):
            opened(path)
        disk.fault = lambda operation, path: None
        assert opened(path).note == 1


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("operation", ["write", "flush", "rename", "flush_folder"])
def test_a_store_that_failed_is_repeated_also_if_it_stores_what_was_stored_before(
    folder: Path, tmp_path: Path, operation: str, count: int
) -> None:
    """The new file may be in its place, and the name not be durable: what the file has is unknown."""
    path = folder / "model.json"
    with losing_disk(folder, tmp_path / "kept") as disk:
        cursor = opened(path)
        cursor.note = "first"
        cursor.write(cursor.snapshot())
        disk.fault = FailsAt(1, count, (operation,))
        for note in ["second", "first"][:count]:
            cursor.note = note
            with pytest.raises(OSError, match=r"(?i)input/output error"):
                cursor.write(cursor.snapshot())
        cursor.note = "first"
        cursor.write(cursor.snapshot())
        image = disk.image(tmp_path / "image")
    assert note_in(image / "model.json") == note_in(path) == "first"


@pytest.mark.parametrize("seed", range(40))
def test_after_any_fault_and_power_failure_a_cursor_is_whole_and_not_older_than_what_was_stored(
    folder: Path, tmp_path: Path, seed: int
) -> None:
    chance, path, stored = random.Random(seed), folder / "model.json", 0

    def sometimes(operation: str, path: Path) -> None:
        if chance.random() < 0.15:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with losing_disk(folder, tmp_path / "kept") as disk:
        store(path, 0)
        disk.fault, cursor = sometimes, None
        for note in range(1, 30):
            if cursor is None:
                try:
                    cursor = opened(path)
                except CursorUnusable:
                    continue
                stored = cursor.note
            cursor.note = note
            try:
                cursor.write(cursor.snapshot())
            except OSError:
                pass
            else:
                stored = note
            found = note_in(disk.image(tmp_path / str(note), chance) / "model.json")
            assert stored <= found <= note
            if chance.random() < 0.3:
                cursor.close()
                cursor = None


def test_a_position_is_due_to_be_stored_some_time_after_the_last_try(folder: Path, tmp_path: Path) -> None:
    now_ns = [5_000_000_000]
    cursor = Cursor(folder / "model.json", lambda: now_ns[0])
    cursor.open()
    assert cursor.due_in_s == 0
    for is_refused in (False, True, False, True):
        with losing_disk(folder, tmp_path / "kept", FailsAt(1, count=int(is_refused))):
            cursor.note = now_ns[0]
            with nullcontext() if not is_refused else pytest.raises(OSError, match="flushed"):
                cursor.write(cursor.snapshot())
        assert cursor.due_in_s == STORE_EVERY_NS / 1e9
        now_ns[0] += STORE_EVERY_NS - 1_000_000
        assert cursor.due_in_s == pytest.approx(0.001)
        now_ns[0] += 2_000_000
        assert cursor.due_in_s == 0


def test_a_draft_that_a_killed_process_has_left_is_removed(folder: Path) -> None:
    draft, other = folder / ".model.json.17.4711.draft", folder / ".model.json2.17.4711.draft"
    draft.write_bytes(b"{")
    other.write_bytes(b"{")
    opened(folder / "model.json")
    assert not draft.exists()
    assert other.exists()


# ---- the loss report ----


def losses(count: int, first: int = 0) -> list[Loss]:
    return [replace(LOSS, first_at_ns=at * JOINED_NS, last_at_ns=at * JOINED_NS) for at in range(first, first + count)]


def report(folder: Path, *entries: Loss) -> LossReport:
    made = LossReport(folder / "losses", "equities")
    assert made.write(entries) is None
    return made


def test_a_closed_loss_report_survives_a_power_failure(folder: Path, tmp_path: Path) -> None:
    with losing_disk(folder, tmp_path / "kept") as disk:
        report(folder, *losses(3)).close()
        image = disk.image(tmp_path / "image")
    assert read_losses(image / "losses") == losses(3)


def test_losses_that_a_killed_process_has_recorded_are_durable_once_the_next_one_continues_its_file(
    folder: Path, tmp_path: Path
) -> None:
    with losing_disk(folder, tmp_path / "kept") as disk:
        die_after(lambda: bool(report(folder, *losses(3))))
        assert read_losses(folder / "losses") == losses(3)
        assert read_losses(disk.image(tmp_path / "before") / "losses") == []
        report(folder, *losses(1, 3))
        assert read_losses(disk.image(tmp_path / "after") / "losses") == losses(3)


@pytest.mark.parametrize("count", [1, 2])
def test_losses_whose_flush_was_refused_are_written_again(folder: Path, tmp_path: Path, count: int) -> None:
    with losing_disk(folder, tmp_path / "kept") as disk:
        first = report(folder, *losses(3))
        disk.fault = FailsAt(1)
        first.close()
        assert read_losses(disk.image(tmp_path / "first") / "losses") == losses(3)
        disk.fault = FailsAt(1, count)
        second = LossReport(folder / "losses", "equities")
        event = second.write(losses(1, 3))
        assert (event is not None) == (count == 2)
        second._retry_at_ns = 0
        assert event is None or isinstance(second.write([]), StoredAgain)
        second.close()
        assert read_losses(disk.image(tmp_path / "second") / "losses") == losses(4)


def test_losses_wait_in_memory_while_the_disk_refuses_and_are_written_when_it_works_again(
    folder: Path, tmp_path: Path
) -> None:
    now_ns = [0]
    with losing_disk(folder, tmp_path / "kept", FailsAt(1, count=None)) as disk:
        made = LossReport(folder / "losses", "equities", lambda: now_ns[0])
        failed = made.write(losses(2))
        assert isinstance(failed, NotStored)
        assert failed.reason == (
            f"cannot write {folder}/losses/equities-0.losses: Input/output error; losses are kept in memory meanwhile; "
            "repair the disk or the folder"
        )
        assert made.write(losses(2, 2)) is None
        disk.fault = lambda operation, path: None
        assert made.write(losses(1, 4)) is None  # not before some time has passed
        assert read_losses(folder / "losses") == []
        now_ns[0] += RETRY_NS
        assert made.write(losses(1, 5)) == StoredAgain(f"{folder}/losses/equities-0.losses")
        assert read_losses(folder / "losses") == losses(6)
        made.close()


def test_a_report_that_is_closed_while_entries_wait_tries_once_more(folder: Path, tmp_path: Path) -> None:
    with losing_disk(folder, tmp_path / "kept", FailsAt(1, count=2)) as disk:
        made = LossReport(folder / "losses", "equities")
        assert isinstance(made.write(losses(2)), NotStored)
        made.close()
        assert read_losses(disk.image(tmp_path / "image") / "losses") == losses(2)


def test_an_entry_may_be_as_long_as_a_line(folder: Path) -> None:
    entries = [replace(each, detail="x" * (380 + at)) for at, each in enumerate(losses(200))]
    report(folder, *entries).close()
    (file,) = (folder / "losses").iterdir()
    lines = [line.rstrip() for line in file.read_bytes()[: 200 * LINE_SIZE].split(b"\n")][:200]
    whole = [entry for entry, line in zip(entries, lines, strict=True) if line.endswith(b"}")]
    assert read_losses(folder / "losses") == whole
    assert max(len(line) for line in lines if line.endswith(b"}")) == LINE_SIZE - 1


def test_a_line_of_which_a_power_failure_has_kept_one_half_of_each_version_is_left_out(folder: Path) -> None:
    """A line may be on two pages, and the ring writes over older lines."""
    report(folder, *losses(1)).close()
    (file,) = (folder / "losses").iterdir()
    older = file.read_bytes()[:LINE_SIZE]
    newer = json.dumps({**json.loads(older), "count": 9}, separators=(",", ":")).encode()
    file.write_bytes(newer.ljust(LINE_SIZE - 1) + b"\n")
    assert read_losses(folder / "losses") == []
    document = json.loads(older)
    del document["crc"]  # as an earlier version wrote it
    file.write_bytes(json.dumps(document).encode())
    assert read_losses(folder / "losses") == losses(1)


def test_losses_around_a_step_of_the_wall_clock_are_two_entries() -> None:
    hour_ns = 3_600 * JOINED_NS
    for at_ns in (LOSS.last_at_ns - hour_ns, LOSS.last_at_ns + hour_ns):
        assert LOSS.joined(replace(LOSS, first_at_ns=at_ns, last_at_ns=at_ns)) is None


def test_more_losses_than_the_file_has_lines_do_not_fill_the_memory_meanwhile(folder: Path, tmp_path: Path) -> None:
    entries = losses(LINE_COUNT + 7)
    with losing_disk(folder, tmp_path / "kept", FailsAt(1, count=2)):
        made = LossReport(folder / "losses", "equities")
        assert isinstance(made.write(entries), NotStored)
        assert len(made._waiting) == LINE_COUNT
        made.close()
    assert read_losses(folder / "losses") == entries[7:]


# ---- recordings and outputs ----


def record(number: int) -> DeliveryRecord:
    rows = np.zeros(number, ROW_DTYPE)
    return DeliveryRecord({1: ChannelRecord(rows, np.zeros(0, SPAN_DTYPE))}, (), ({"event": str(number)},))


def found_in(path: Path) -> int | None:
    """Which record a file has; None: none."""
    try:
        loaded = DeliveryRecord.load(path)
    except FileNotFoundError:
        return None
    assert loaded.events == ({"event": str(len(loaded.channels[1].rows))},)
    return len(loaded.channels[1].rows)


def test_a_saved_record_survives_a_power_failure(folder: Path, tmp_path: Path) -> None:
    with losing_disk(folder, tmp_path / "kept") as disk:
        record(3).save(folder / "record")
        assert found_in(disk.image(tmp_path / "image") / "record") == 3


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_record_is_the_former_or_the_new_one_or_missing_and_never_part_of_each(
    folder: Path, tmp_path: Path, operation: str, number: int
) -> None:
    with losing_disk(folder, tmp_path / "kept") as disk:
        record(3).save(folder / "record")
        disk.fault = fault = FailsAt(number, operations=(operation,))
        try:
            record(5).save(folder / "record")
        except OSError:
            assert fault.failed
        else:
            assert not fault.failed
        for seed in range(8):
            image = disk.image(tmp_path / str(seed), random.Random(seed))
            assert found_in(image / "record") in ((3, 5, None) if fault.failed else (5,))
        disk.fault = lambda operation, path: None
        record(7).save(folder / "record")
        assert found_in(disk.image(tmp_path / "again") / "record") == 7
        assert not list(folder.glob(".*"))


def output_to(*options: str) -> None:
    parser = argparse.ArgumentParser()
    add_output_arguments(parser, "text")
    with open_output(parser.parse_args(options)) as output:
        output.write([batch_of([bytes(trade())])])


OUTPUTS: dict[str, Callable[[Path], tuple[str, ...]]] = {
    "lines": lambda folder: ("-o", str(folder / "out")),
    "a CSV file": lambda folder: ("--as", "csv", "-o", str(folder / "out.csv")),
    "a Parquet file": lambda folder: ("--as", "parquet", "-o", str(folder / "out.parquet")),
    "a folder": lambda folder: ("--as", "parquet", "-o", str(folder / "new" / "out")),
}


@pytest.mark.parametrize("options", OUTPUTS.values(), ids=OUTPUTS)
def test_what_a_command_has_written_is_on_the_disk_when_it_ends(
    folder: Path, tmp_path: Path, options: Callable[[Path], tuple[str, ...]]
) -> None:
    with losing_disk(folder, tmp_path / "kept") as disk:
        output_to(*options(folder))
        image = disk.image(tmp_path / "image")
    (written,) = (each for each in folder.rglob("*") if each.is_file())
    assert written.stat().st_size > 0
    assert (image / written.relative_to(folder)).read_bytes() == written.read_bytes()


@pytest.mark.parametrize("options", OUTPUTS.values(), ids=OUTPUTS)
def test_a_command_whose_output_the_disk_refuses_fails(
    folder: Path, tmp_path: Path, options: Callable[[Path], tuple[str, ...]]
) -> None:
    with (
        losing_disk(folder, tmp_path / "kept", FailsAt(1, operations=("flush",))),
        pytest.raises(OSError, match="could not be flushed"),
    ):
        output_to(*options(folder))


def test_an_output_may_be_a_pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    reader = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    output_to("-o", str(folder / "pipe"))
    assert b"XEL" in os.read(reader, 4_096)
    os.close(reader)


# ---- who may read ----


def test_everything_that_the_client_writes_is_for_its_user_only(folder: Path) -> None:
    store(folder / "cursors" / "model.json", 1)
    report(folder, *losses(1)).close()
    record(3).save(folder / "record")
    for options in OUTPUTS.values():
        output_to(*options(folder))
    assert modes(folder) <= {(False, 0o600), (True, 0o700)}
