"""`tandemfeed journal` verify, info, dump, history, unlock and prune on real journals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tandemfeed.journal import Journal, NamedPosition, Tailer
from tandemfeed.journal.commands.cli import main
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN, DATA_OFFSET
from tandemfeed.journal.format.roll_cycle import format_index
from tandemfeed.journal.persistent_queue import PersistentQueue
from tandemfeed.journal.typed_records.history import Hop, MessageHistory
from tests.journal.journals_made import BEGIN_NS, BLOCK, KEY, ROOT, STEP_NS, Appender, damage, files_of, made, numbered

HOLD = """
import sys
from pathlib import Path
from tandemfeed.journal import Journal
from tandemfeed.journal.format.layout import END, LOCK, NEXT_SEQUENCE
journal = Journal.open(Path(sys.argv[1]), block_size=int(sys.argv[2]))
control = journal._control
journal.append(b"before")
words = control.word(END), control.word(NEXT_SEQUENCE)
journal.append(b"published, but the words not updated")
control.set_word(LOCK, control.slot)
control.set_word(END, words[0])
control.set_word(NEXT_SEQUENCE, words[1])
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holding_the_lock(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of an append."""
    arguments = [sys.executable, "-c", HOLD, str(folder), str(BLOCK)]
    process = subprocess.Popen(arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline().strip() == "held"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def output(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    assert main([str(each) for each in arguments]) == status
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    try:
        status: object = main([str(each) for each in arguments])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


# --- verify -----------------------------------------------------------------------------------------------------------


def test_verify_reports_no_findings_with_totals_and_progress_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, numbered(25))
    assert main(["verify", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out == "3 files, 25 segments, 25 records; no findings\n"
    shown = [line for line in err.splitlines() if not line.startswith("compil")]  # said on the first start
    assert shown[-1] == f"files checked: 3 of 3, {files_of(tmp_path)[-1].name}"


def test_verify_reports_file_offset_and_index_of_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    indices = made(tmp_path, numbered(25))
    first, second, _ = files_of(tmp_path)
    damage(first, DATA_OFFSET + 36)
    damage(second, DATA_OFFSET + 36)
    found = output(capsys, "verify", tmp_path, status=1).splitlines()
    assert found[0].startswith(f"{first.name} offset {DATA_OFFSET} index {format_index(indices[0])}: damaged")
    assert found[1].startswith(f"{second.name} offset {DATA_OFFSET} index {format_index(indices[10])}: damaged")
    assert found[2].endswith("2 findings")
    first_json, _, sums = map(json.loads, output(capsys, "verify", tmp_path, "--json", status=1).splitlines())
    assert (first_json["finding"], first_json["offset"], first_json["lost_count"]) == ("BytesDamaged", DATA_OFFSET, 1)
    assert (first_json["index"], first_json["path"]) == (format_index(indices[0]), str(first))
    assert (sums["findings"], sums["records"]) == (2, 23)


def test_verify_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, numbered(25))
    damage(files_of(tmp_path)[1], DATA_OFFSET + 40)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}
    output(capsys, "verify", tmp_path, status=1)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()} == before


def test_verify_checks_source_sequence_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = [("XN", 1), ("XL", 5), ("XN", 2), ("XN", 5), ("XL", 6)]
    indices = made(tmp_path, [f"{stream} seq={number}".encode() for stream, number in numbers] + [b"other"])
    rule = r"(?P<stream>\w+) seq=(?P<seq>\d+)"
    gap, sums = output(capsys, "verify", tmp_path, "--sequence", rule, status=1).splitlines()
    assert f"index {format_index(indices[3])}: source stream 'XN' continues with 5; missing: 3 to 4 (2)" in gap
    assert "5 with a sequence number, of 2 source streams" in sums
    assert "OFFSET:TYPE" in refusal(capsys, "verify", tmp_path, "--sequence", "seq")


def test_verify_against_another_journal_reports_missing_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    indices = made(other, numbered(30))
    made(here, [b"before", *numbered(12), *numbered(17, 13), b"after"], key=KEY, step_ns=STEP_NS // 3)
    (tmp_path / "key").write_text(KEY.hex())
    arguments = ("verify", here, "--key-file", tmp_path / "key", "--against", other)
    missing, sums = output(capsys, *arguments, status=1).splitlines()
    assert missing == f"record {format_index(indices[12])} of the other journal is missing from this one"
    assert sums.endswith(f"no findings; 1 record of {other} missing")
    assert output(capsys, "verify", other, "--against", other).endswith(f"all of {other} found\n")


def test_verify_without_the_key_of_an_encrypted_journal_checks_all_but_the_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, numbered(5), key=KEY)
    assert main(["verify", str(tmp_path)]) == 0
    assert "its records are not decrypted" in capsys.readouterr().err
    assert "encrypted: give its key" in refusal(capsys, "verify", tmp_path, "--sequence", "0:u8").replace("\n", "")


# --- info, dump, history ----------------------------------------------------------------------------------------------


def test_info_shows_settings_files_appenders_tailers_and_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    indices = made(tmp_path, numbered(25), is_compressed=True)
    NamedPosition(tmp_path / "tailers" / "audit.position").store(indices[18])
    with Journal.open(tmp_path, roll_cycle="SECONDLY", block_size=BLOCK) as journal:
        journal.show_until(indices[22])
        found = json.loads(output(capsys, "info", tmp_path, "--json"))
        text = output(capsys, "info", tmp_path)
    assert (found["roll_cycle"], found["records"], found["is_encrypted"]) == ("SECONDLY", 25, False)
    assert (found["first_index"], found["last_index"]) == (format_index(indices[0]), format_index(indices[-1]))
    assert [each["pid"] for each in found["appenders"]] == [os.getpid()]
    assert found["tailers"] == [{"name": "audit", "position": format_index(indices[18]), "behind": 7}]
    assert (found["replicated_until"], found["not_replicated"]) == (format_index(indices[22]), 3)
    assert [each["is_compressed"] for each in found["files"]] == [True, True, False]
    assert found["files"][0]["cycle"] == "20261118-110640"
    assert found["disk_free"] > 0
    for expected in ("rolls SECONDLY in UTC", f"process {os.getpid()}", "audit", "appended to", "replicated  up to"):
        assert expected in text


def test_info_continues_after_an_unreadable_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, numbered(25))
    damage(files_of(tmp_path)[1], 30)
    text = output(capsys, "info", tmp_path, status=1)
    assert "unreadable" in text
    assert "15 in 2 files" in text


def test_info_needs_no_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, numbered(5), key=KEY)
    assert ", encrypted" in output(capsys, "info", tmp_path)


def test_dump_shows_headers_segments_records_and_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    indices = made(tmp_path, [*numbered(12), b"\xff\x00binary"])
    whole = output(capsys, "dump", tmp_path)
    assert whole.count("  salt ") == 2
    assert f"{format_index(indices[-1])} 8 bytes: \\xff\\x00binary" in whole
    assert "00000000  ff 00 62 69 6e 61 72 79                          ..binary" in whole
    assert "end mark at offset" in whole
    damage(files_of(tmp_path)[0], DATA_OFFSET + 36)
    damaged = output(capsys, "dump", tmp_path, "--hex-bytes", "0", status=1)
    assert f"DAMAGED from offset {DATA_OFFSET} to offset {DATA_OFFSET + 40}" in damaged
    only = output(capsys, "dump", tmp_path, "--file", files_of(tmp_path)[1].name)
    assert only.count("  salt ") == 1


def test_dump_of_an_encrypted_journal_shows_records_only_with_the_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path / "j", numbered(2), key=KEY)
    (tmp_path / "key").write_bytes(KEY)
    assert "not decrypted: give --key-file" in output(capsys, "dump", tmp_path / "j")
    assert "8 bytes: record 1" in output(capsys, "dump", tmp_path / "j", "--key-file", tmp_path / "key")


def test_history_shows_latencies_of_each_hop_and_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = []
    for number in range(10):
        first = Hop(1, 0, 1_000, 1_100 + number)
        records.append(MessageHistory((first, Hop(2, number, 2_000, 2_500))).encode() + b"payload")
    made(tmp_path, [*records, b"without"])
    found = json.loads(output(capsys, "history", tmp_path, "--json"))
    assert (found["records"], found["histories"]) == (11, 10)
    assert {each["name"]: each["count"] for each in found["stages"]} == {"1": 10, "1 to 2": 10, "2": 10}
    assert (found["stages"][0]["min_ns"], found["stages"][0]["max_ns"]) == (100, 109)
    assert found["end_to_end"]["p50_ns"] == pytest.approx(1_500, rel=0.01)
    text = output(capsys, "history", tmp_path, "--max", "3", "--from-time", str(BEGIN_NS))
    assert text.startswith("3 records, 3 with a history")
    assert "end to end" in text


# --- unlock -----------------------------------------------------------------------------------------------------------


def test_unlock_reports_that_the_lock_is_free(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, numbered(3))
    assert output(capsys, "unlock", tmp_path).splitlines()[-1] == "the lock is free"


def test_unlock_frees_a_dead_holders_lock_and_keeps_its_published_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with holding_the_lock(tmp_path) as holder:
        pass
    assert "dead" in output(capsys, "info", tmp_path)
    assert f"held by process {holder.pid}, which is dead; it is free now" in output(capsys, "unlock", tmp_path)
    assert output(capsys, "unlock", tmp_path).splitlines()[-1] == "the lock is free"
    with Journal.open(tmp_path, block_size=BLOCK) as journal:
        journal.append(b"after")
        assert [record for _, record in journal.records()] == [
            b"before", b"published, but the words not updated", b"after"
        ]  # fmt: skip


def test_unlock_frees_a_dead_holders_lock_beside_a_living_appender(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Appender(tmp_path) as appender:
        appender.append("first")
        with holding_the_lock(tmp_path) as holder:
            pass
        out = output(capsys, "unlock", tmp_path)
        assert f"process {appender.process.pid} has the journal open" in out
        assert f"process {holder.pid}, which is dead" in out
        appender.append("last")
    with Tailer(tmp_path) as tailer:
        assert [record for _, record in tailer] == [
            b"first", b"before", b"published, but the words not updated", b"last"
        ]  # fmt: skip


def test_unlock_refuses_while_the_holder_is_alive_and_explains_how_to_end_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with holding_the_lock(tmp_path) as holder:
        assert main(["unlock", str(tmp_path)]) == 1
        out, err = capsys.readouterr()
        assert f"held by process {holder.pid}, which is alive; nothing was changed" in out
        assert f"kill {holder.pid}" in err
        assert main(["unlock", str(tmp_path), "--force"]) == 0
        out, err = capsys.readouterr()
        assert err.startswith("warning:")
        assert "which is alive; it is free now" in out
        assert output(capsys, "unlock", tmp_path).splitlines()[-1] == "the lock is free"


# --- prune ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "kept"),
    [
        (("--files", "2"), 2),
        (("--files", "99"), 5),
        (("--size", "600K"), 2),
        (("--size", "1"), 1),
        (("--age", "7d"), 5),
        (("--age", "150m"), 3),
        (("--age", "0"), 1),
    ],
)
def test_prune_releases_files_beyond_the_limits_but_never_the_newest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bounds: tuple[str, str], kept: int
) -> None:
    made(tmp_path, numbered(50))
    files = files_of(tmp_path)
    for hours, path in enumerate(reversed(files)):  # the newest was appended to just now, the next an hour ago, …
        before = time.time() - hours * 3_600 - 1
        os.utime(path, (before, before))
    dry = output(capsys, "prune", tmp_path, *bounds, "--dry-run")
    assert files_of(tmp_path) == files
    assert f"{5 - kept} files would be released" in dry
    assert f"{5 - kept} files released" in output(capsys, "prune", tmp_path, *bounds)
    assert files_of(tmp_path) == files[5 - kept :]
    assert main(["verify", str(tmp_path)]) == 0


def test_prune_keeps_files_that_a_named_tailer_has_not_read_unless_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    indices = made(tmp_path, numbered(50))
    files = files_of(tmp_path)
    position = NamedPosition(tmp_path / "tailers" / "audit.position")
    position.store(indices[19] + 1)  # at the end of the second file
    assert main(["prune", str(tmp_path), "--files", "1"]) == 0
    out, err = capsys.readouterr()
    assert "2 files released" in out
    assert f"kept for named tailer audit, which is at {format_index(indices[19] + 1)}" in err
    assert files_of(tmp_path) == files[2:]
    output(capsys, "prune", tmp_path, "--files", "1", "--even-unread")
    assert files_of(tmp_path) == files[4:]


def test_prune_keeps_files_that_followers_have_not_acknowledged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    indices = made(tmp_path, numbered(50))
    with Journal.open(tmp_path, roll_cycle="SECONDLY", block_size=BLOCK) as journal:
        journal.show_until(indices[25])
        assert main(["prune", str(tmp_path), "--files", "1"]) == 0
        out, err = capsys.readouterr()
    assert "2 files released" in out
    assert f"kept for replication, which is at {format_index(indices[25])}" in err


def test_prune_leaves_a_file_that_is_being_compressed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, numbered(50))
    second = files_of(tmp_path)[1]
    draft = second.with_name(f".{second.name}.zst.4711")  # as journal.compression names it while it writes
    draft.touch()
    assert main(["prune", str(tmp_path), "--files", "1"]) == 0
    out, err = capsys.readouterr()
    assert "1 file released" in out
    assert "is being compressed" in err
    draft.unlink()
    assert "3 files released" in output(capsys, "prune", tmp_path, "--files", "1")


def test_prune_works_beside_an_appender(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, numbered(50))
    with Appender(tmp_path) as appender:
        appender.append("during")
        count = len(files_of(tmp_path))
        assert f"{count - 1} files released" in output(capsys, "prune", tmp_path, "--files", "1")
        appender.append("after")
        assert output(capsys, "tail", tmp_path).splitlines()[-2:] == ["during", "after"]


def test_prune_without_limits_or_with_invalid_ones_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, numbered(3))
    assert "give --age, --size, --files" in refusal(capsys, "prune", tmp_path)
    assert "not a size" in refusal(capsys, "prune", tmp_path, "--size", "many")
    assert "not an age" in refusal(capsys, "prune", tmp_path, "--age", "7y")
    assert "positive integer" in refusal(capsys, "prune", tmp_path, "--files", "0")


@pytest.mark.parametrize("name", ["dump", "tail", "info", "verify", "history", "unlock", "prune", "replay"])
def test_every_subcommand_has_help_with_examples_and_refuses_a_folder_that_is_not_a_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"tandemfeed journal {name} DIR" in capsys.readouterr().out
    more = ["--to", "-"] if name == "replay" else ["--files", "1"] if name == "prune" else []
    assert "is not a journal" in refusal(capsys, name, tmp_path, *more)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_queue_can_be_verified_but_not_unlocked_or_pruned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "queue"
    with PersistentQueue.open(folder, block_size=BLOCK_SIZE_MIN, checkpoint_interval_items=50) as queue:
        first = queue.put(b"stays pending, in the first block")
        for _ in range(40):
            queue.put_many([bytes(5_000)] * 20)
            while (entry := queue.get()) is not None:
                if entry[0] != first:
                    queue.done(entry[0])
        queue.release(first)
    assert main(["verify", str(folder)]) == 0
    capsys.readouterr()
    for command in (["prune", "--files", "1"], ["unlock"], ["lead", "--bind", "tcp://127.0.0.1:*"]):
        assert main([command[0], str(folder), *command[1:]]) == 2
        assert "is a queue" in capsys.readouterr().err
    with PersistentQueue.open(folder, block_size=BLOCK_SIZE_MIN) as queue:
        assert queue.get() == (first, b"stays pending, in the first block")
