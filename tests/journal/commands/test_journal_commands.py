"""`tandemfeed journal tail` on real journals, in this process and in a separate one."""

from __future__ import annotations

import base64
import json
import os
import pty
import signal
import subprocess
from pathlib import Path
from typing import Protocol

import pytest

from tandemfeed.journal import Journal, NamedPosition
from tandemfeed.journal.commands.cli import main
from tandemfeed.journal.commands.options import age_s, size, time_ns
from tandemfeed.journal.format.layout import DATA_OFFSET
from tandemfeed.journal.format.roll_cycle import format_index
from tandemfeed.journal.typed_records.history import HopStamper
from tandemfeed.journal.typed_records.typed import method_writer
from tests.journal.journals_made import (
    BEGIN_NS,
    KEY,
    ROOT,
    STEP_NS,
    Appender,
    Process,
    command,
    damage,
    files_of,
    made,
    numbered,
)


class Orders(Protocol):
    def place(self, symbol: str, quantity: int) -> None: ...


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The line with which the command refuses its arguments."""
    try:
        status: object = main([str(each) for each in arguments])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_tail_shows_every_record_over_all_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, numbered(35))
    assert main(["tail", str(tmp_path)]) == 0
    assert lines(capsys) == [record.decode() for record in numbered(35)]


def test_tail_reads_compressed_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, numbered(35), is_compressed=True)
    assert main(["tail", str(tmp_path)]) == 0
    assert lines(capsys) == [record.decode() for record in numbered(35)]


@pytest.mark.parametrize("form", [KEY, KEY.hex().encode(), KEY.hex().encode() + b"\n"])
def test_tail_reads_an_encrypted_journal_with_its_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: bytes
) -> None:
    made(tmp_path / "j", numbered(3), key=KEY)
    (tmp_path / "key").write_bytes(form)
    assert main(["tail", str(tmp_path / "j"), "--key-file", str(tmp_path / "key")]) == 0
    assert lines(capsys) == ["record 0", "record 1", "record 2"]


def test_a_wrong_missing_or_malformed_key_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path / "j", numbered(3), key=KEY)
    key = tmp_path / "key"
    assert "encrypted: give its key" in refusal(capsys, "tail", tmp_path / "j")
    assert "No such file" in refusal(capsys, "tail", tmp_path / "j", "--key-file", key)
    key.write_bytes(bytes(32))
    assert "this is not its key" in refusal(capsys, "tail", tmp_path / "j", "--key-file", key)
    key.write_bytes(b"secret")
    assert "64 hexadecimal digits or 32 bytes" in refusal(capsys, "tail", tmp_path / "j", "--key-file", key)


def test_a_record_is_shown_if_it_matches_all_includes_and_no_exclude(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, numbered(30))
    main(["tail", str(tmp_path), "--include", "1", "--include", r"\d\d$", "--exclude", "7", "--exclude", "[01]$"])
    assert lines(capsys) == [f"record {number}" for number in (12, 13, 14, 15, 16, 18, 19)]


def test_a_range_is_given_by_index_or_time_and_excludes_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    indices = made(tmp_path, numbered(30))
    expected = [f"record {number}" for number in range(8, 23)]
    begin, end = (format_index(indices[place]) for place in (8, 23))
    main(["tail", str(tmp_path), "--from-index", begin, "--until-index", end.removeprefix("0x")])
    assert lines(capsys) == expected
    main(["tail", str(tmp_path), "--from-time", str(BEGIN_NS + 8 * STEP_NS), "--until-time", "2026-11-18T11:06:42.3Z"])
    assert lines(capsys) == expected
    main(["tail", str(tmp_path), "--from-index", begin, "--until-index", end, "--reverse"])
    assert lines(capsys) == expected[::-1]
    main(["tail", str(tmp_path), "--from-time", "2026-11-18T11:06:40.8", "--until-time", "2026-11-18T12:06:42.3+01:00",
          "--reverse"])  # fmt: skip
    assert lines(capsys) == expected[::-1]


def test_last_begins_before_the_end_and_max_ends_early(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, numbered(30))
    main(["tail", str(tmp_path), "--last", "15", "--max", "3"])
    assert lines(capsys) == ["record 15", "record 16", "record 17"]
    main(["tail", str(tmp_path), "--last", "500", "--max", "1"])
    assert lines(capsys) == ["record 0"]
    main(["tail", str(tmp_path), "--reverse", "--last", "12", "--max", "11"])
    assert lines(capsys) == [f"record {number}" for number in range(29, 18, -1)]


def test_one_line_escapes_line_breaks_and_control_characters_are_always_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    indices = made(tmp_path, [b"two\nlines\x1b[2J", b"\xff\x00"])
    main(["tail", str(tmp_path)])
    assert capsys.readouterr().out == "two\nlines\\x1b[2J\n\\xff\\x00\n"
    main(["tail", str(tmp_path), "--one-line", "--show-index"])
    first, second = lines(capsys)
    assert first == f"{format_index(indices[0])} 2026-11-18T11:06:40.000000000Z two\\nlines\\x1b[2J"
    assert second.endswith("2026-11-18T11:06:40.100000000Z \\xff\\x00")


def test_json_has_text_or_base64_or_the_method_call_with_its_history_and_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now_ns = BEGIN_NS
    with Journal.open(tmp_path, clock_ns=lambda: now_ns) as journal:
        index = journal.append(b"seq=7 text")
        journal.append(b"\xff\x00")
        stamper = HopStamper(5, lambda: 1_000)
        method_writer(Orders, journal, history_source=stamper.next_history).place("ABC", 100)
    main(["tail", str(tmp_path), "--json", "--sequence", r"seq=(\d+)"])
    text, binary, typed = (json.loads(line) for line in lines(capsys))
    assert text == {
        "index": format_index(index),
        "appended_at": "2026-11-18T11:06:40.000000000Z",
        "appended_at_ns": BEGIN_NS,
        "size": 10,
        "source_stream": "",
        "source_seq": 7,
        "text": "seq=7 text",
    }
    assert base64.b64decode(binary["base64"]) == b"\xff\x00"
    assert (typed["method"], typed["arguments"]) == ("place", {"symbol": "ABC", "quantity": 100})
    assert typed["history"] == [{"source_id": 5, "source_index": 0, "received_at_ns": 1_000, "sent_at_ns": 1_000}]
    main(["tail", str(tmp_path), "--include", "symbol='ABC'"])
    assert lines(capsys) == ["place(symbol='ABC', quantity=100)"]


def test_a_terminal_that_lacks_a_character_gets_it_escaped(tmp_path: Path) -> None:
    made(tmp_path, ["µs".encode()])
    shown = subprocess.run(
        command("tail", tmp_path), cwd=ROOT, env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True,
        check=True,
    )  # fmt: skip
    assert shown.stdout == b"\\xb5s\n"


def test_a_named_tailer_continues_after_the_last_record_that_was_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    indices = made(tmp_path, numbered(25))
    shown = []
    for _ in range(4):
        main(["tail", str(tmp_path), "--name", "audit", "--max", "7"])
        shown.append(lines(capsys))
    assert [len(each) for each in shown] == [7, 7, 7, 4]
    assert [line for each in shown for line in each] == [record.decode() for record in numbered(25)]
    assert NamedPosition(tmp_path / "tailers" / "audit.position").load() == indices[-1] + 1


def test_invalid_options_are_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path / "j", numbered(3))
    folder = tmp_path / "j"
    assert "no such folder" in refusal(capsys, "tail", tmp_path / "none")
    assert "is not a journal" in refusal(capsys, "tail", tmp_path)
    assert "not a regular expression" in refusal(capsys, "tail", folder, "--include", "(")
    assert "not an index" in refusal(capsys, "tail", folder, "--from-index", "xyz")
    assert "shows which indices exist" in refusal(capsys, "tail", folder, "--from-index", "1")
    assert "not a time" in refusal(capsys, "tail", folder, "--from-time", "noon")
    assert "--reverse" in refusal(capsys, "tail", folder, "--reverse", "--follow")
    assert "--name" in refusal(capsys, "tail", folder, "--name", "../other")
    assert "--last" in refusal(capsys, "tail", folder, "--last", "3", "--from-time", "0")
    assert "positive integer" in refusal(capsys, "tail", folder, "--last", "0")
    assert "SUBCOMMAND" in refusal(capsys)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_follow_shows_what_another_process_appends_until_a_signal(tmp_path: Path, number: int) -> None:
    with Appender(tmp_path) as appender:
        appender.append("before")
        with Process("tail", tmp_path, "--follow", "--show-index") as tail:
            assert tail.line().endswith(" before")
            for place in range(20):
                index = appender.append(f"live {place}")
                shown = tail.line()
                assert shown.startswith(format_index(index))
                assert shown.endswith(f" live {place}")
            assert tail.end(number) == (0, "")


def test_follow_ends_when_its_reader_exits_even_without_new_records(tmp_path: Path) -> None:
    made(tmp_path, numbered(1))
    with Process("tail", tmp_path, "--follow") as tail:
        assert tail.line() == "record 0"
        tail.out.close()
        tail.process.stdout = None
        assert tail.end() == (0, "")


def test_follow_waits_for_a_journal_that_does_not_exist_yet(tmp_path: Path) -> None:
    with Process("tail", tmp_path / "later", "--follow") as tail:
        assert "waiting for it to be created" in tail.line(tail.err)
        with Appender(tmp_path / "later") as appender:
            appender.append("here")
            assert tail.line() == "here"
        assert tail.end(signal.SIGTERM) == (0, "")


def test_follow_ends_at_its_end_time_even_without_new_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, numbered(25))
    until = str(BEGIN_NS + 5 * STEP_NS)
    assert main(["tail", str(tmp_path), "--follow", "--until-time", until]) == 0
    assert lines(capsys) == [record.decode() for record in numbered(5)]
    assert main(["tail", str(tmp_path), "--follow", "--until-time", str(BEGIN_NS + 99 * STEP_NS)]) == 0
    assert len(lines(capsys)) == 25


def test_tail_skips_damage_and_reports_how_many_records_were_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, numbered(25))
    damage(files_of(tmp_path)[1], DATA_OFFSET + 36)
    assert main(["tail", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [record.decode() for record in numbered(25) if record != b"record 10"]
    assert "1 record lost" in err
    assert main(["tail", str(tmp_path), "--reverse"]) == 1
    assert lines(capsys) == [record.decode() for record in reversed(numbered(25)) if record != b"record 10"]


def test_on_a_terminal_progress_is_a_bar_instead_of_lines(tmp_path: Path) -> None:
    made(tmp_path, numbered(25))
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command("verify", tmp_path),
        cwd=ROOT,
        env=os.environ | {"TERM": "xterm"},
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as verify:
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 65_536):
                shown += chunk
        except OSError:  # the other end was closed
            pass
        assert verify.stdout is not None
        assert verify.stdout.read().endswith(b"; no findings\n")
    os.close(ours)
    assert b"3/3" in shown
    assert b"files checked: 1 of" not in shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:01Z", 1_000_000_000),
        ("1970-01-01T00:00:01.000000007", 1_000_000_007),
        ("1970-01-01T01:00:00.5+01:00", 500_000_000),
        ("1970-01-02", 86_400_000_000_000),
        ("12345", 12_345),
    ],
)
def test_a_time_is_iso_8601_to_the_nanosecond_in_utc_or_a_number_of_nanoseconds(text: str, expected: int) -> None:
    assert time_ns(text) == expected


@pytest.mark.parametrize("text", ["noon", "1969-12-31", "99999999999999999999", "2026-13-01", ""])
def test_an_invalid_time_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    made(tmp_path, numbered(1))
    assert "is not a time" in refusal(capsys, "tail", tmp_path, "--from-time", text)


def test_sizes_and_ages_have_suffixes() -> None:
    assert [size(text) for text in ("500", "10K", "1.5M", "10G", "2TiB", "3kb")] == [
        500, 10 << 10, 3 << 19, 10 << 30, 2 << 40, 3 << 10
    ]  # fmt: skip
    assert [age_s(text) for text in ("90", "90s", "15m", "12h", "7d", "1.5w")] == [
        90, 90, 900, 43_200, 604_800, 907_200
    ]  # fmt: skip
