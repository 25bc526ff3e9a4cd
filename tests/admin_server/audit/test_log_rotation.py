"""What the audit log has acknowledged is in it, whichever system call fails, and whenever the power does."""

from __future__ import annotations

import json
import os
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tandemfeed.admin_server.audit import verification
from tandemfeed.admin_server.audit.chain import encode_fields
from tandemfeed.admin_server.audit.files import audit_files
from tandemfeed.admin_server.audit.log_file import DAY_NS, FILE_SIZE_MAX, LogFile
from tandemfeed.admin_server.audit.verification import verify
from tests.failing_calls_here import CASES, failing_calls
from tests.losing_disk import FailsAt, LosingDisk, losing_disk

EVENTS = [f"event {number}" for number in range(8)]
TRIES_MAX = 4
SMALL = 1  # every append begins another file


def opened_log(folder: Path, file_size_max: int = FILE_SIZE_MAX) -> LogFile:
    return LogFile(folder, file_size_max, now_unix_ns=lambda: 1)  # all on one day


def append(log: LogFile, event: str) -> None:
    log.append(0, [encode_fields(1, event, {})])


def events(folder: Path) -> list[str]:
    return [json.loads(line)["event"] for path in audit_files(folder) for line in path.read_bytes().splitlines()]


def append_all(log: LogFile, acknowledged: list[str] | None = None) -> None:
    """Append every event, again if it was refused. Args: acknowledged: gets each when it is appended."""
    for event in EVENTS:
        for attempt in range(TRIES_MAX):
            try:
                append(log, event)
            except OSError:
                assert attempt + 1 < TRIES_MAX, f"{event} is refused for good"
            else:
                (acknowledged if acknowledged is not None else []).append(event)
                break


def check(folder: Path, expected: list[str], log: LogFile | None = None) -> None:
    assert events(folder) == expected
    assert verify(folder, None if log is None else log.head).problems == []


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Let this process open only so many more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    filled = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, hard))
    with suppress(OSError):
        while True:  # numbers below the highest one may be free
            filled.append(os.dup(0))
    for _ in range(count):
        os.close(filled.pop())
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in filled:
            os.close(each)


@pytest.mark.parametrize("count", [0, 1])
def test_a_rotation_that_finds_too_few_descriptors_loses_no_entry_and_stops_nothing(tmp_path: Path, count: int) -> None:
    log = opened_log(tmp_path, 2_000)
    written = 0
    while log.size < 2_000:
        append(log, f"event {written}")
        written += 1
    with descriptors_left(count):
        for _ in range(3):
            append(log, f"event {written}")
            written += 1
    append(log, f"event {written}")
    log.close()
    check(tmp_path, [f"event {number}" for number in range(written + 1)], log)
    assert len(audit_files(tmp_path)) == 2, "the next file began when a descriptor was free again"


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(("name", "number"), CASES)
def test_whichever_call_fails_every_acknowledged_entry_is_in_the_log_once_and_the_next_is_taken(
    tmp_path: Path, name: str, number: int, count: int
) -> None:
    for first in range(1, 200):
        folder = tmp_path / str(first)
        folder.mkdir()
        log = opened_log(folder, SMALL)
        with failing_calls(name, number, first, folder, count) as calls:
            append_all(log)
        log.close()
        check(folder, EVENTS, log)
        again = opened_log(folder, SMALL)
        append(again, "after the restart")
        again.close()
        check(folder, [*EVENTS, "after the restart"], again)
        if calls.failed < count:
            return
    raise AssertionError("the calls do not end")


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_server_that_could_not_start_because_a_call_failed_starts_when_it_works_again(
    tmp_path: Path, name: str, number: int
) -> None:
    for first in range(1, 200):
        folder = tmp_path / str(first)
        folder.mkdir()
        log = opened_log(folder, SMALL)
        append_all(log)
        log.close()
        with (folder / "audit.jsonl").open("ab") as opened:
            opened.write(b'{"number":9,"torn')
        with failing_calls(name, number, first, folder) as calls, suppress(OSError):
            opened_log(folder, SMALL).close()
        log = opened_log(folder, SMALL)
        append(log, "after the restart")
        log.close()
        check(folder, [*EVENTS, "after the restart"], log)
        kept = [each.read_bytes() for each in folder.glob("audit-damaged-*.bytes")]
        assert b'{"number":9,"torn' in kept
        if not calls.failed:
            return
    raise AssertionError("the calls do not end")


def test_a_power_failure_after_any_acknowledgement_loses_no_entry(tmp_path: Path) -> None:
    folder, chance = tmp_path / "log", random.Random(1)
    folder.mkdir()
    with losing_disk(folder, tmp_path / "kept") as disk:
        log = opened_log(folder, 200)
        for place, event in enumerate(EVENTS * 3):
            append(log, event)
            for which, luck in enumerate((None, chance, chance)):
                image = disk.image(tmp_path / f"image-{place}-{which}", luck)
                check(image, (EVENTS * 3)[: place + 1], log)
                continued = opened_log(image, 200)
                append(continued, "after the power failure")
                continued.close()
                check(image, [*(EVENTS * 3)[: place + 1], "after the power failure"], continued)
        log.close()


class PowerFailures:
    """A fault of a disk: takes an image before every call, with what was acknowledged by then; then others fail."""

    def __init__(self, folder: Path, fails: FailsAt) -> None:
        self.disk: LosingDisk | None = None
        self.acknowledged: list[str] = []
        self.images: list[tuple[Path, list[str]]] = []
        self._folder, self._fails, self._chance = folder, fails, random.Random(str(folder))

    def __call__(self, operation: str, path: Path) -> None:
        if self.disk is not None:
            image = self.disk.image(self._folder / f"image-{len(self.images)}", self._chance)
            self.images.append((image, list(self.acknowledged)))
            self._fails(operation, path)


@pytest.mark.parametrize("operation", ["flush", "flush_folder", "write", "rename", "rewrite"])
def test_a_power_failure_at_any_call_of_a_rotation_and_after_one_that_failed_loses_no_entry(
    tmp_path: Path, operation: str
) -> None:
    for first in range(1, 100):
        fails = FailsAt(first, 2, (operation,))
        failures = PowerFailures(tmp_path / str(first), fails)
        (folder := tmp_path / str(first) / "log").mkdir(parents=True)
        with losing_disk(folder, tmp_path / str(first) / "kept", failures) as disk:
            log = opened_log(folder, 200)
            failures.disk = disk
            append_all(log, failures.acknowledged)
            failures.disk = None
            log.close()
        check(folder, EVENTS, log)
        for image, acknowledged in failures.images:
            opened_log(image).close()
            found = events(image)
            assert found[: len(acknowledged)] == acknowledged
            check(image, found)
        if not fails.failed:
            return
    raise AssertionError("the calls do not end")


def test_entries_of_a_killed_server_are_on_the_disk_before_another_follows(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    with losing_disk(folder, tmp_path / "kept") as disk:
        log = opened_log(tmp_path)  # elsewhere: its entries are complete, but only in the page cache of this folder
        append(log, "left by a killed server")
        log.close()
        (folder / "audit.jsonl").write_bytes((tmp_path / "audit.jsonl").read_bytes())
        continued = opened_log(folder)
        append(continued, "next")
        continued.close()
        check(disk.image(tmp_path / "image"), ["left by a killed server", "next"], continued)


def test_a_torn_end_is_kept_over_a_power_failure_and_the_log_continues_before_it(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    log = opened_log(folder)
    append(log, "first")
    log.close()
    with (folder / "audit.jsonl").open("ab") as opened:
        opened.write(b'{"number":2,"prev')
    with losing_disk(folder, tmp_path / "kept") as disk:
        opened_log(folder).close()
        image = disk.image(tmp_path / "image")
    check(image, ["first"])
    (kept,) = image.glob("audit-damaged-*.bytes")
    assert kept.read_bytes() == b'{"number":2,"prev'


def test_a_file_of_that_name_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "audit-000000000001.jsonl.bak").write_bytes(b"")
    log = opened_log(tmp_path, SMALL)
    append(log, "first")
    (tmp_path / "audit-000000000001.jsonl").write_bytes(b"of another history\n")
    append(log, "second")
    log.close()
    assert (tmp_path / "audit-000000000001.jsonl").read_bytes() == b"of another history\n"
    assert len((tmp_path / "audit.jsonl").read_bytes().splitlines()) == 2


@pytest.mark.parametrize("which", [0, 1])
def test_a_file_that_lost_all_its_entries_is_named(tmp_path: Path, which: int) -> None:
    log = opened_log(tmp_path, SMALL)
    append_all(log)
    log.close()
    lost = audit_files(tmp_path)[which]
    lost.write_bytes(b"")
    problems = verify(tmp_path).problems
    assert f"{lost.name}: the file has no entry; its name says that it began with entry {which + 1}" in problems[0]


def test_a_file_that_ends_in_the_middle_of_an_entry_is_named(tmp_path: Path) -> None:
    log = opened_log(tmp_path, 400)
    append_all(log)
    log.close()
    cut = audit_files(tmp_path)[0]
    cut.write_bytes(cut.read_bytes()[:-5])
    assert f"{cut.name}: the file ends in the middle of an entry" in verify(tmp_path).problems[0]


def test_a_rotation_while_the_log_is_checked_is_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened_log(tmp_path, SMALL)
    append(log, "first")
    append(log, "second")
    verify_file = verification._verify_file

    def verify_and_rotate(*arguments: Any) -> bool:
        is_whole = verify_file(*arguments)
        if len(audit_files(tmp_path)) < 6:
            append(log, "meanwhile")
        return is_whole

    monkeypatch.setattr(verification, "_verify_file", verify_and_rotate)
    found = verify(tmp_path)
    assert found.problems == []
    assert found.head.number >= 2
    log.close()


def test_the_log_rotates_at_a_change_of_the_day_and_after_steps_of_the_clock(tmp_path: Path) -> None:
    now = [20_000 * DAY_NS + 1_800_000_000_000]  # half an hour after midnight
    log = LogFile(tmp_path, now_unix_ns=lambda: now[0])
    hour = 3_600_000_000_000
    for place, step in enumerate((0, -hour, hour, hour, -hour)):
        now[0] += step
        log.append(0, [encode_fields(now[0], f"event {place}", {})])
    log.close()
    check(tmp_path, [f"event {place}" for place in range(5)], log)
