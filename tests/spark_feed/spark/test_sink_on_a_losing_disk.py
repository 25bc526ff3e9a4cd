"""A query's micro-batch on a disk that loses what was not flushed, or refuses: numbered once, and whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemfeed.spark_feed.journaling.journal_writer import SourceJournalWriter
from tandemfeed.spark_feed.journaling.pending_batch import NAME, load_pending
from tests.losing_disk import FailsAt, LosingDisk, losing_disk
from tests.spark_feed.spark.test_feed_sink import sizes_in, take_batch, trade, writer_of

STREAMS = 2


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LosingDisk]:
    (tmp_path / "work").mkdir()
    with losing_disk(tmp_path / "work", tmp_path / "kept") as found:
        yield found


def plan(folder: Path, batch_id: int) -> None:
    """What Spark writes before it runs a micro-batch, without a flush."""
    for name in ("offsets", "sources/0"):
        (folder / "checkpoint" / name).mkdir(parents=True, exist_ok=True)
    (folder / "checkpoint" / "offsets" / str(batch_id)).write_text(f'v1\n{{"logOffset":{batch_id}}}')
    log = "9.compact" if batch_id == 9 else str(batch_id)
    (folder / "checkpoint" / "sources" / "0" / log).write_text("v1\n")


class Died(Exception):
    """In place of the process."""


def on_append(monkeypatch: pytest.MonkeyPatch, look: Any) -> None:
    """Do something just before the packets of a batch are appended."""
    append = SourceJournalWriter.append_batch

    def looking(self: SourceJournalWriter, *arguments: Any) -> int:
        look()
        return append(self, *arguments)

    monkeypatch.setattr(SourceJournalWriter, "append_batch", looking)


@pytest.mark.parametrize("batch_id", [0, 9])
def test_the_plan_of_a_batch_and_its_rows_are_on_the_disk_before_any_of_it_is_appended(
    disk: LosingDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_id: int
) -> None:
    image = tmp_path / "image"
    on_append(monkeypatch, lambda: disk.image(image))
    writer = writer_of(disk.root)
    plan(disk.root, batch_id)
    take_batch(writer, batch_id, [trade(1)], [trade(2)])
    checkpoint = image / "checkpoint"
    assert json.loads((checkpoint / "metadata").read_text()) == {"id": "query-1"}
    assert f'"logOffset":{batch_id}' in (checkpoint / "offsets" / str(batch_id)).read_text()
    assert [each.read_text() for each in (checkpoint / "sources" / "0").iterdir()] == ["v1\n"]
    parts = load_pending(image / "journal", batch_id, STREAMS)
    assert parts is not None
    assert [sum(block.sizes.size for block in part) for part in parts] == [1, 1]


def test_a_pending_batch_that_a_dead_driver_did_not_flush_is_on_the_disk_before_it_is_appended(
    disk: LosingDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die() -> None:
        raise Died

    with monkeypatch.context() as dying:
        on_append(dying, die)
        with pytest.raises(Died):
            take_batch(writer_of(disk.root), 0, [trade(1)], [trade(3)])
    left = disk.root / "journal" / NAME
    again = left.read_bytes()
    left.unlink()
    left.write_bytes(again)  # as if it had died before the flush
    on_append(monkeypatch, lambda: disk.image(tmp_path / "image"))
    take_batch(writer_of(disk.root), 0, [trade(3)], [trade(1)])
    assert load_pending(tmp_path / "image" / "journal", 0, STREAMS) is not None
    assert sizes_in(disk.root / "journal") == [1, 3]


@pytest.mark.parametrize("operation", ["flush", "flush_folder", "rename"])
def test_a_batch_that_cannot_be_stored_is_not_appended_and_the_next_attempt_numbers_it_once(
    disk: LosingDisk, operation: str
) -> None:
    take_batch(writer_of(disk.root), 0, [trade(1)])
    plan(disk.root, 1)
    matching = "journal" if operation == "flush_folder" else NAME
    disk.fault = fault = FailsAt(1, operations=(operation,), matching=matching)
    with pytest.raises(OSError, match=r"Input/output error|could not be flushed"):
        take_batch(writer_of(disk.root), 1, [trade(3)])
    assert fault.failed == 1
    assert sizes_in(disk.root / "journal") == [1]
    take_batch(writer_of(disk.root), 1, [trade(3)])
    assert sizes_in(disk.root / "journal") == [1, 3]


def test_a_batch_that_was_dropped_and_is_there_again_after_a_power_failure_does_no_harm(
    disk: LosingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = list[bytes]()
    on_append(monkeypatch, lambda: kept.append((disk.root / "journal" / NAME).read_bytes()))
    take_batch(writer_of(disk.root), 0, [trade(1)])
    (disk.root / "journal" / NAME).write_bytes(kept[0])
    take_batch(writer_of(disk.root), 0, [trade(1)])  # Spark's own record of the commit is lost as well
    take_batch(writer_of(disk.root), 1, [trade(3)])
    assert sizes_in(disk.root / "journal") == [1, 3]
