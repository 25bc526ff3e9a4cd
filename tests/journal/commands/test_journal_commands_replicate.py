"""`lead` and `follow` as real processes, with and without keys."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from tandemfeed.journal import Journal, Tailer
from tandemfeed.journal.commands.cli import main
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN
from tandemfeed.journal.replication.follower.follower_core import FollowerCore
from tandemfeed.journal.replication.leader.leader_core import LeaderCore
from tests.losing_disk import FailsAt, losing_disk

COMMAND = [
    sys.executable,
    "-c",
    "import sys; from tandemfeed.journal.commands.cli import main; raise SystemExit(main(sys.argv[1:]))",
]


class Running:
    """A sub-command that runs until stopped."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen([*COMMAND, *map(str, arguments)], stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.first_line = self.process.stderr.readline()

    def stop(self) -> tuple[int, str]:
        """The exit status and the rest of the output."""
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=30)
        return self.process.returncode, said


def _wait_for(folder: Path, records: list[bytes]) -> None:
    with Tailer(folder) as tailer:
        found: list[bytes] = []
        while len(found) < len(records):
            assert tailer.wait(30), f"only {len(found)} of {len(records)}"
            found += [record for _, record in tailer]
        assert found == records


@pytest.mark.parametrize("has_keys", [False, True])
def test_the_follow_command_keeps_a_copy_and_continues_after_a_restart(tmp_path: Path, has_keys: bool) -> None:
    lead_options: list[object] = []
    follow_options: list[object] = ["--durable"]
    if has_keys:
        for name in ("lead", "follow"):
            assert main(["keygen", str(tmp_path / f"{name}.key")]) == 0
        assert (tmp_path / "lead.key").stat().st_mode & 0o077 == 0
        lead_options = ["--secret-key-file", tmp_path / "lead.key", "--allow", _public(tmp_path / "follow.key")]
        follow_options += ["--secret-key-file", tmp_path / "follow.key", "--leader-key", _public(tmp_path / "lead.key")]
    records = [b"record %d" % number for number in range(300)]
    with Journal.open(tmp_path / "journal", block_size=BLOCK_SIZE_MIN) as journal:
        journal.append_batch(records[:100])
        leader = Running("lead", tmp_path / "journal", "--bind", "tcp://127.0.0.1:*", *lead_options)
        endpoint = leader.first_line.split(" on ")[1].split(";")[0]
        follower = Running("follow", tmp_path / "copy", "--leader", endpoint, *follow_options)
        _wait_for(tmp_path / "copy", records[:100])
        assert follower.stop()[0] == 0
        journal.append_batch(records[100:])
        follower = Running("follow", tmp_path / "copy", "--leader", endpoint, *follow_options)
        _wait_for(tmp_path / "copy", records)
        assert follower.stop()[0] == 0
        assert leader.stop()[0] == 0
        assert list(Tailer(tmp_path / "copy")) == list(journal.records())


def test_a_group_may_use_what_the_follow_command_makes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Journal.open(tmp_path / "journal", block_size=BLOCK_SIZE_MIN) as journal:
        journal.append(b"record")
        leader = Running("lead", tmp_path / "journal", "--bind", "tcp://127.0.0.1:*")
        endpoint = leader.first_line.split(" on ")[1].split(";")[0]
        for name, options, file_mode, folder_mode in (
            ("own", [], 0o600, 0o700),
            ("shared", ["--group", str(os.getgid())], 0o660, 0o2770),
        ):
            copy = tmp_path / name
            follower = Running("follow", copy, "--leader", endpoint, *options)
            _wait_for(copy, [b"record"])
            assert follower.stop()[0] == 0
            assert {stat.S_IMODE(each.stat().st_mode) for each in copy.iterdir()} == {file_mode}
            assert stat.S_IMODE(copy.stat().st_mode) == folder_mode
        assert leader.stop()[0] == 0
    assert main(["follow", str(tmp_path / "copy"), "--leader", "tcp://127.0.0.1:1", "--group", "no such group"]) == 2
    assert "name or id of a group of this host" in capsys.readouterr().err
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("operation", ["flush", "flush_folder"])
def test_keys_are_on_the_disk_before_the_public_key_is_printed(
    tmp_path: Path, operation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "disk").mkdir()
    with losing_disk(tmp_path / "disk", tmp_path / "kept") as disk:
        assert main(["keygen", str(disk.root / "lead.key")]) == 0
        image = disk.image(tmp_path / "image")
        assert (image / "lead.key").read_bytes() == (disk.root / "lead.key").read_bytes()
        assert (image / "lead.key.pub").read_text() == capsys.readouterr().out
        disk.fault = FailsAt(1, operations=(operation,))
        assert main(["keygen", str(disk.root / "other.key")]) != 0
        said = capsys.readouterr()
        assert not said.out
        assert "could not be flushed" in said.err
        assert not (disk.root / "other.key").exists()


def _public(path: Path) -> str:
    return path.with_name(path.name + ".pub").read_text().strip()


def test_invalid_arguments_are_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Journal.open(tmp_path / "journal", block_size=BLOCK_SIZE_MIN):
        pass
    (tmp_path / "no.key").write_text("short")
    bind = ["--bind", "tcp://127.0.0.1:*"]
    for arguments, text in (
        (["lead", str(tmp_path / "nothing"), *bind], "no such folder"),
        (["lead", str(tmp_path / "journal"), *bind, "--allow", "x" * 40], "needs --secret-key-file"),
        (["lead", str(tmp_path / "journal"), *bind, "--secret-key-file", str(tmp_path / "no.key")], "40 characters"),
        (["lead", str(tmp_path / "journal"), *bind, "--secret-key-file", str(tmp_path / "gone")], "keygen"),
        (["follow", str(tmp_path / "copy"), "--leader", "tcp://127.0.0.1:1", "--leader-key", "k"], "given together"),
        (["keygen", str(tmp_path / "no.key")], "exists"),
    ):
        assert main(arguments) == 2
        assert text in capsys.readouterr().err


def test_a_leader_or_follower_that_has_failed_ends_its_command_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> NoReturn:
        raise RuntimeError("a bug")

    with Journal.open(tmp_path / "journal", block_size=BLOCK_SIZE_MIN):
        pass
    monkeypatch.setattr(LeaderCore, "next_deadline_ns", broken)
    assert main(["lead", str(tmp_path / "journal"), "--bind", "tcp://127.0.0.1:*"]) == 1
    assert "failed: RuntimeError: a bug" in capsys.readouterr().err
    monkeypatch.setattr(FollowerCore, "next_deadline_ns", broken)
    assert main(["follow", str(tmp_path / "copy"), "--leader", "tcp://127.0.0.1:1"]) == 1
    assert "failed: next is" in (said := capsys.readouterr().err)
    assert "RuntimeError: a bug" in said
