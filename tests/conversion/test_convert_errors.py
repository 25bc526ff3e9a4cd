"""`tandemfeed convert file` with input that it cannot use: one sentence on standard error, and status 2."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.convert_command.cli import main
from tandemfeed.adapter.convert_command.input.reading import READERS
from tests.conversion.test_convert_captures import add_order

HEAD = b"symbol,time,price,size\n"
TICKS = ["--shipped", "tick-table"]
BAD_TABLES = {
    "ragged.csv": (HEAD + b"A,1,2,3\nB,2\n", "cannot be read: .*Expected 4 columns, got 2"),
    "semicolon.csv": (HEAD.replace(b",", b";") + b"A;1;2;3\n", "separated by ';'; they must be separated by commas"),
    "tabs.csv": (HEAD.replace(b",", b"\t") + b"A\t1\t2\t3\n", r"separated by '\\t'; they must be separated by commas"),
    "latin-1.csv": (HEAD + "Müller,1,2,3\n".encode("latin-1"), "its text is not UTF-8; convert it first"),
    "latin-1-head.csv": ("Börse,time,price\nA,1,2\n".encode("latin-1"), "not UTF-8; convert it first"),
    "empty.csv": (b"", "the file is empty"),
    "one.csv": (b"x", "cannot be read: .*Empty CSV file or block"),
    "twice.csv": (b"time,price,price\n1,2,3\n", "several columns 'price'; rename or remove all but one"),
    "quote.csv": (HEAD + b'"A,1,2,3\n', "cannot be read: "),
    "nothing.csv": (b"a,b\n1,2\n", "no column for 'event_at_ns'"),
    "day.csv": (HEAD + b"A,2020-13-01,2,3\n", "column 'time': row 1"),
    "bytes.csv": (bytes(range(256)) * 4, "cannot be read|not UTF-8"),
    "text.parquet": (b"not Parquet", "cannot be read: .*Parquet magic bytes not found"),
    "damaged.csv.gz": (b"\x1f\x8bdamaged", "zlib|gzip"),
}


def refusal(capsys: pytest.CaptureFixture[str], path: Path, *options: str) -> str:
    """The one sentence with which the command refuses a file."""
    assert main(["file", str(path), *options, "--to", str(path.parent / "out")]) == 2
    *_, line = capsys.readouterr().err.strip().splitlines()
    return line


@pytest.mark.parametrize("name", BAD_TABLES)
def test_a_table_that_cannot_be_read_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    data, reason = BAD_TABLES[name]
    (tmp_path / name).write_bytes(data)
    line = refusal(capsys, tmp_path / name, *TICKS)
    assert line.startswith(f"convert: {tmp_path / name}: ")
    assert line.isprintable()
    assert re.search(reason, line), line


@pytest.mark.parametrize("reader", sorted(READERS))
def test_a_file_of_another_kind_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reader: str
) -> None:
    path = tmp_path / "random.bin"
    path.write_bytes(b"\x07" + bytes(range(255, 0, -1)) * 3)
    line = refusal(capsys, path, *TICKS, "--reader", reader)
    needs_packet = reader == "packets" and "needs a <packet> with a <sequence>" in line  # the document is refused
    assert needs_packet or line.startswith(f"convert: {path}: ")
    assert line.isprintable()


@pytest.mark.parametrize("day", ["-5", "0", "20191399", "99999999", "123456789012", "x"])
def test_a_session_that_is_not_a_day_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], day: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["file", str(tmp_path / "x"), "--shipped", "itch50", "--session", day, "--to", str(tmp_path)])
    assert f"argument --session: {day!r} is not a day YYYYMMDD, such as 20260131" in capsys.readouterr().err


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "irectory" in refusal(capsys, tmp_path, *TICKS)
    assert "No such file" in refusal(capsys, tmp_path / "missing.csv", *TICKS)


def test_a_file_all_of_whose_messages_are_refused_ends_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ITCH messages, read as a format that has one other message."""
    texts = {
        "format.xml": '<sourceFormat name="other" byteOrder="bigEndian"><framing headerSize="2" length="uint16" '
        'lengthAdds="2" type="char" typeOffset="2"/><message name="one" type="?"><field name="n" type="uint8"/>'
        "</message></sourceFormat>",
        "table.xml": '<converterTable name="other" sourceFormat="other"><convert message="one" to="Statistic">'
        '<field name="number" function="copy" of="n"/></convert></converterTable>',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    path = tmp_path / "day.itch"
    path.write_bytes(b"".join(struct.pack(">H", len(each)) + each for each in map(add_order, range(3))))
    documents = ["--source-format", str(tmp_path / "format.xml"), "--table", str(tmp_path / "table.xml")]
    documents += ["--message-model", str(document("tick.xml")), "--reader", "binary-file"]
    line = refusal(capsys, path, *documents)
    assert "none of the 3 messages follows the source format 'other'" in line
