"""The driver reads from Spark's checkpoint which files of a recording the query has found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandemfeed.spark_feed.journaling.records import SourceJournalError
from tandemfeed.spark_feed.numbering.driver.found_files import FoundFiles


def _log(checkpoint: Path, name: str, *found: tuple[int, str], version: str = "v1") -> None:
    """A part of the log as Spark 4.3 writes it: (offset, path) for each file."""
    folder = checkpoint / "sources" / "0"
    folder.mkdir(parents=True, exist_ok=True)
    entries = (json.dumps({"path": path, "timestamp": 1000, "batchId": offset}) for offset, path in found)
    (folder / name).write_text("\n".join([version, *entries]))
    (folder / f".{name}.crc").write_bytes(b"crc")


def test_each_file_is_found_once(tmp_path: Path) -> None:
    found = FoundFiles(tmp_path)
    assert found.new() == []
    _log(tmp_path, "0", (0, "file:///a%20b/part-0"), (0, "file:///a%20b/part-1"))
    assert found.new() == ["file:///a%20b/part-0", "file:///a%20b/part-1"]
    assert found.new() == []
    _log(tmp_path, "1", (1, "part-2"))
    _log(tmp_path, "2", (2, "part-3"))
    assert found.new() == ["part-2", "part-3"]


def test_a_compacted_log_has_all_files_for_a_new_driver_and_the_new_ones_for_a_running_one(tmp_path: Path) -> None:
    running = FoundFiles(tmp_path)
    for offset in range(8, 11):
        _log(tmp_path, str(offset), (offset, f"part-{offset}"))
    assert running.new() == ["part-8", "part-9", "part-10"]
    _log(tmp_path, "11", (11, "part-11"))
    _log(tmp_path, "12.compact", *((offset, f"part-{offset}") for offset in range(13)))
    _log(tmp_path, "13", (13, "part-13"))
    assert running.new() == ["part-11", "part-12", "part-13"]
    assert FoundFiles(tmp_path).new() == [f"part-{offset}" for offset in range(14)]


def test_a_log_of_another_version_is_refused(tmp_path: Path) -> None:
    _log(tmp_path, "0", version="v9")
    with pytest.raises(SourceJournalError, match=r"version 'v9', expected 'v1'"):
        FoundFiles(tmp_path).new()


@pytest.mark.parametrize("left", ["", 'v1\n{"path":', "v1\n\0\0\0"])
def test_a_log_that_a_power_failure_damaged_is_refused_with_what_to_do(tmp_path: Path, left: str) -> None:
    _log(tmp_path, "0")
    (tmp_path / "sources" / "0" / "0").write_text(left)
    with pytest.raises(SourceJournalError, match="after a power failure, remove the checkpoint"):
        FoundFiles(tmp_path).new()
