"""`tandemfeed convert dead-letters`: its output as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandemfeed.adapter.convert_command.cli import main
from tandemfeed.adapter.records.dead_letter_record import DeadLetterRecord, encode_dead_letter
from tandemfeed.journal import Journal
from tests.admin_server.cluster_files import EXAMPLES

SOURCE_FORMAT = ["--source-format", str(EXAMPLES / "source-format.xml")]
QUOTE = bytes.fromhex("2c000200") + b"ACME\x1b[2J" + (5).to_bytes(8, "little") + bytes(24)


def letter(seq: int, reason: str, message: str, type_id: int, frame: bytes, stream: int = 1) -> DeadLetterRecord:
    return DeadLetterRecord(
        9, 2, 20261121, stream, seq, 1_700_000_000_000_000_001, 1_700_000_000_000_000_002, type_id, reason, message,
        frame,
    )  # fmt: skip


LETTERS = [
    letter(3, "out_of_range", "quote", 2, QUOTE),
    letter(4, "unknown_type", "", 88, bytes.fromhex("06005800 0102")),
    letter(9, "unknown_type", "", 88, bytes.fromhex("04005800"), stream=2),
    letter(10, "too_blue", "trade", 1, b""),  # a reason unknown to this release
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Journal.open(tmp_path / "dead") as journal:
        journal.append_batch([encode_dead_letter(each) for each in LETTERS])
    return tmp_path / "dead"


def test_each_dead_letter_is_printed_with_reason_stream_number_times_name_and_bytes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dead-letters", str(folder)]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[:7] == [
        "2023-11-14T22:13:20.000000002Z out_of_range: stream 1, source_seq 3: quote (type 2), 44 bytes",
        "  sent 2023-11-14T22:13:20.000000001Z; feed 9, channel 2, session 20261121",
        "  00000000  2c 00 02 00 41 43 4d 45 1b 5b 32 4a 05 00 00 00  ,...ACME.[2J....",
        "  00000010  00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00  ................",
        "  00000020  00 00 00 00 00 00 00 00 00 00 00 00              ............",
        "2023-11-14T22:13:20.000000002Z unknown_type: stream 1, source_seq 4: unknown message (type 88 'X'), 6 bytes",
        "  sent 2023-11-14T22:13:20.000000001Z; feed 9, channel 2, session 20261121",
    ]
    assert told.err.splitlines() == [
        "4 dead letters",
        "  unknown_type 2: The source format has no message of this type.",
        "  out_of_range 1: A value does not fit the table's cast, scale or shortening.",
        "  too_blue 1: a reason of another release",
    ]


def test_with_a_source_format_fields_are_printed_and_control_characters_are_escaped(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dead-letters", str(folder), *SOURCE_FORMAT]) == 0
    told = capsys.readouterr().out
    assert "symbol=ACME\\x1b[2J, event_at_ns=5, bid_price=0" in told
    assert "unreadable: offset 0: no message has type 88 and 6 bytes" in told
    assert "unreadable: the frame is empty" in told
    assert "\x1b" not in told


@pytest.mark.parametrize(
    ("options", "seqs"),
    [
        ([], [3, 4, 9, 10]),
        (["--reason", "unknown_type"], [4, 9]),
        (["--reason", "unknown_type", "--reason", "out_of_range"], [3, 4, 9]),
        (["--stream", "2"], [9]),
        (["--last", "2"], [9, 10]),
        (["--reason", "unknown_type", "--last", "1"], [9]),
        (["--reason", "unmapped"], []),
    ],
)
def test_json_prints_one_object_per_line_for_the_selected_messages(
    folder: Path, options: list[str], seqs: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dead-letters", str(folder), "--json", *options]) == 0
    told = capsys.readouterr()
    found = [json.loads(line) for line in told.out.splitlines()]
    assert [each["source_seq"] for each in found] == seqs
    by_seq = {each.source_seq: each for each in LETTERS}
    for each in found:
        assert each == {**by_seq[each["source_seq"]]._asdict(), "frame": by_seq[each["source_seq"]].frame.hex()}
    assert told.err == ""


def test_json_output_includes_the_fields(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dead-letters", str(folder), "--json", *SOURCE_FORMAT]) == 0
    first, second, *_ = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["fields"]["symbol"] == "ACME\x1b[2J"
    assert first["fields"]["event_at_ns"] == 5
    assert second["fields"] is None
    assert "no message has type 88" in second["why"]


def test_a_different_journal_is_refused_with_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Journal.open(tmp_path / "other") as journal:
        journal.append(b"TFO1 and so on")
    for folder, text in (
        (tmp_path / "other", "not a dead letter: it begins with b'TFO1'"),
        (tmp_path, "is not a journal"),
        (tmp_path / "nowhere", "no such folder"),
    ):
        assert main(["dead-letters", str(folder)]) == 2
        told = capsys.readouterr()
        assert text in told.err
        assert told.out == ""


@pytest.mark.parametrize("text", ["0", "-3", "many"])
def test_a_count_that_is_not_positive_is_refused(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["dead-letters", str(folder), "--last", text])
    assert ended.value.code == 2
    assert "--last" in capsys.readouterr().err
