"""`convert file` ends with 0 only if every message of its input is in the output; else with 3, counts and places."""

from __future__ import annotations

import csv
import gzip
import struct
from pathlib import Path

import pyarrow.parquet
import pytest
from scapy.all import rdpcap

from tandemfeed.adapter.conversion.formats.captures.capture import LINK_ETHERNET
from tandemfeed.adapter.conversion.formats.packets.iex_tp import IEX_TP_HEADER, PROTOCOL_DEEP, PROTOCOL_TOPS
from tandemfeed.adapter.convert_command.captures import content_kernels
from tandemfeed.adapter.convert_command.cli import main
from tests.conversion.test_convert_captures import ITCH, add_order, capture, convert_capture, mold, rows, shown

PCAP_HEADER = struct.Struct("<IHHiIII")
HEARTBEAT_FORMAT = """<sourceFormat name="venue">
  <packet name="Venue" headerSize="4"><sequence type="uint32" counts="packets"{unnumbered}/></packet>
  <framing headerSize="4" length="uint16" type="uint16" typeOffset="2"/>
  <message name="data" type="1"><field name="value" type="uint64"/></message>
  <message name="sequence" type="2"><field name="next" type="uint64"/></message>
</sourceFormat>"""


def iex(protocol: int, first: int, *bodies: bytes) -> bytes:
    """An IEX-TP segment."""
    frames = b"".join(len(body).to_bytes(2, "little") + body for body in bodies)
    return IEX_TP_HEADER.pack(1, protocol, 1, 77, len(frames), len(bodies), 0, first, 5) + frames


def system_event(number: int) -> bytes:
    return struct.pack("<ccq", b"S", b"O", number)


def convert(path: Path, *options: str) -> int:
    return main(["file", str(path), "--every-field", "--to", str(path.parent / "out"), *options])


def count_of(path: Path, message: str) -> int:
    return int(pyarrow.parquet.read_table(path.parent / "out" / f"{message}.parquet").num_rows)


def streams(path: Path) -> list[dict[str, str]]:
    with (path.parent / "out" / "streams.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("size", [1, 3])
def test_numbers_that_begin_again_with_other_content_are_a_restart(tmp_path: Path, size: int) -> None:
    runs = [[add_order(100 * run + number) for number in range(1, 13)] for run in range(3)]
    sent = [mold(at + 1, *run[at : at + size]) for run in runs for at in range(0, 12, size)]
    path = capture(tmp_path / "day.pcap", *(each for packet in sent for each in (packet, packet)))  # two lines
    assert convert_capture(path) == 0
    assert [row["orderId"] for row in rows(path)] == [100 * run + number for run in range(3) for number in range(1, 13)]
    assert [(each["restarts"], each["duplicates"], each["missing"]) for each in streams(path)] == [("2", "36", "0")]


def test_a_restart_whose_first_packets_are_not_in_the_capture_is_found_by_two_that_follow_each_other(
    tmp_path: Path,
) -> None:
    before = [mold(number, add_order(number)) for number in range(1, 9)]
    after = [mold(number, add_order(100 + number)) for number in range(4, 7)]
    path = capture(tmp_path / "day.pcap", *before, *after)
    assert convert_capture(path) == 0
    assert [row["orderId"] for row in rows(path)] == [*range(1, 9), 104, 105, 106]
    assert [each["restarts"] for each in streams(path)] == ["1"]


def test_one_number_that_comes_again_with_other_content_is_reported_and_not_dropped_as_a_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packets = [mold(number, add_order(number)) for number in range(1, 9)]
    path = capture(tmp_path / "day.pcap", *packets[:5], mold(3, add_order(777)), *packets[5:])
    assert convert_capture(path) == 3
    assert [row["orderId"] for row in rows(path)] == list(range(1, 9))
    assert "stream S: 3 came again with other content, which is not converted" in shown(capsys)
    assert [(each["duplicates"], each["conflicting"]) for each in streams(path)] == [("0", "1")]
    assert convert_capture(path, "--strict") == 2


def test_copies_of_the_former_run_that_come_after_a_restart_are_dropped(tmp_path: Path) -> None:
    former = [mold(number, add_order(number)) for number in range(1, 9)]
    new = [mold(number, add_order(100 + number)) for number in range(1, 9)]
    path = capture(tmp_path / "day.pcap", *former, *new[:2], *former[5:], *new[2:])
    assert convert_capture(path) == 0
    assert [row["orderId"] for row in rows(path)] == [*range(1, 9), *range(101, 109)]


def test_duplicates_that_cannot_be_compared_any_more_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, count = content_kernels.FIRST_NUMBERS, content_kernels.PLACES + 100
    size = 800
    packets = [
        mold(first + at, *[struct.pack(">cHH6sc", b"S", 0, 0, bytes(6), b"O")] * size) for at in range(0, count, size)
    ]
    path = tmp_path / "day.pcap"
    write(path, [*packets, packets[0]])
    assert convert_capture(path) == 3
    assert "could not be compared with it" in shown(capsys)


def write(path: Path, payloads: list[bytes]) -> None:
    """A capture, without scapy, which is slow."""
    with path.open("wb") as file:
        file.write(PCAP_HEADER.pack(0xA1B2C3D4, 2, 4, 0, 0, 65_535, LINK_ETHERNET))
        for number, payload in enumerate(payloads):
            udp = struct.pack(">HHHH", 1, 26_400, 8 + len(payload), 0) + payload
            ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 1, 17, 0, bytes(4), bytes([233, 1, 1, 1]))
            frame = bytes(12) + b"\x08\x00" + ip + udp
            file.write(struct.pack("<IIII", 1_577_700_000, number % 1_000_000, len(frame), len(frame)) + frame)


def test_protocols_with_the_same_session_and_channel_are_streams_of_their_own(tmp_path: Path) -> None:
    both = PROTOCOL_TOPS, PROTOCOL_DEEP
    sent = [iex(protocol, n, system_event(100 * n + protocol)) for n in (1, 2, 3) for protocol in both]
    path = capture(tmp_path / "day.pcap", *sent)
    assert convert(path, "--shipped", "iex") == 0
    assert count_of(path, "systemEvent") == 6
    assert [each["stream"] for each in streams(path)] == [
        f"{each:#06x}/1/77" for each in (PROTOCOL_TOPS, PROTOCOL_DEEP)
    ]


def test_heartbeats_with_a_number_of_their_own_are_outside_of_the_sequence_if_the_document_says_so(
    tmp_path: Path,
) -> None:
    frame = struct.Struct("<HHQ")
    data = [struct.pack("<I", n) + frame.pack(12, 1, n) + frame.pack(12, 1, n) for n in range(1_000, 1_010)]
    beats = [struct.pack("<I", 0) + frame.pack(12, 2, n) for n in range(1_000, 1_010)]
    path = capture(tmp_path / "day.pcap", *(each for pair in zip(beats, data, strict=True) for each in pair))
    document = tmp_path / "venue.xml"
    for attribute, status, heartbeats in ((' unnumbered="0"', 0, 10), ("", 3, 1)):
        document.write_text(HEARTBEAT_FORMAT.format(unnumbered=attribute))
        assert convert(path, "--source-format", str(document)) == status
        assert (count_of(path, "data"), count_of(path, "sequence")) == (20, heartbeats)


@pytest.mark.parametrize("body", [b"Z" * 10, system_event(3) + b"12"], ids=["unknown type", "wrong length"])
def test_a_refused_message_is_in_the_exit_status(tmp_path: Path, body: bytes) -> None:
    path = capture(tmp_path / "day.pcap", iex(PROTOCOL_DEEP, 1, system_event(1), body, system_event(3)))
    assert convert(path, "--shipped", "iex") == 3
    assert count_of(path, "systemEvent") == 2
    assert convert(path, "--shipped", "iex", "--strict") == 2


@pytest.mark.parametrize("size", [20, 36, 60, 100], ids=["IP header", "ports", "message", "second message"])
@pytest.mark.parametrize("kind", ["pcap", "pcapng"])
def test_datagrams_that_the_snap_length_cut_off_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], size: int, kind: str
) -> None:
    whole = capture(tmp_path / "whole.pcap", mold(1, add_order(1), add_order(2), add_order(3)))
    frame = bytes(rdpcap(str(whole))[0])
    path = tmp_path / f"day.{kind}"
    if kind == "pcap":
        header = PCAP_HEADER.pack(0xA1B2C3D4, 2, 4, 0, 0, size, LINK_ETHERNET)
        path.write_bytes(header + struct.pack("<IIII", 1, 1, size, len(frame)) + frame[:size])
    else:
        section = struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
        interface = struct.pack("<IIHHII", 1, 20, LINK_ETHERNET, 0, size, 20)
        packet = struct.pack("<IIIIIII", 6, 32 + size, 0, 0, 1, size, len(frame)) + frame[:size]
        path.write_bytes(section + interface + packet + struct.pack("<I", 32 + size))
    assert convert_capture(path) == 3
    assert "1 UDP datagrams are not whole in the capture, and not converted" in shown(capsys)
    assert convert_capture(path, "--line", "10.1.1.1") == (3 if size < 38 else 0)  # the destination is cut off, too


def itch_file(*numbers: int) -> bytes:
    return b"".join(len(add_order(each)).to_bytes(2, "big") + add_order(each) for each in numbers)


def test_what_follows_the_end_of_a_session_in_a_file_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, day = tmp_path / "days.itch", itch_file(1, 2) + bytes(2)
    path.write_bytes(day + day)
    assert main(["file", str(path), *ITCH, "--to", str(tmp_path / "out")]) == 3
    text = f"offset {len(day) - 2}: a length of 0 ends the session here, but {len(day)} bytes follow"
    assert text in shown(capsys)


def test_the_first_reason_why_a_file_cannot_be_decompressed_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = bytearray(gzip.compress(itch_file(1, 2)))
    packed[-5] ^= 1  # of the size
    packed[-8] ^= 1  # of the checksum
    path = tmp_path / "day.itch.gz"
    path.write_bytes(packed)
    assert main(["file", str(path), *ITCH, "--to", str(tmp_path / "out")]) == 3
    assert "CRC check failed" in shown(capsys)


@pytest.mark.parametrize("content", [b"", gzip.compress(b"")], ids=["plain", "compressed"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("day.pcap", ["--shipped", "iex"]),
        ("day.itch", ["--shipped", "itch50", "--session", "20191230"]),
        ("day.dbn", ["--shipped", "dbn"]),
        ("day_message_10.csv", ["--shipped", "lobster", "--session", "20191230"]),
        ("day.csv", ["--shipped", "tick-table"]),
    ],
    ids=["capture", "binary file", "DBN", "LOBSTER", "table"],
)
def test_an_empty_file_is_refused_in_every_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, options: list[str], content: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert convert(path, *options) == 2
    assert f"{name}: the file is empty" in shown(capsys)
