"""`tandemfeed convert sniff` names the format of a file, and the options that convert it."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest
import zstandard
from scapy.all import IP, UDP, Ether, Raw, wrpcap

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.chunks import FormatError
from tandemfeed.adapter.conversion.formats.packets.iex_tp import IEX_TP_HEADER
from tandemfeed.adapter.conversion.formats.packets.moldudp64 import encode_mold_packet
from tandemfeed.adapter.convert_command.cli import main
from tandemfeed.adapter.convert_command.sniffing import sniff
from tandemfeed.feedcore.documents.source_format import load_source_format
from tests.real_data import shared_file

XDP = Path(__file__).resolve().parents[2] / "deploy" / "examples" / "nyse-xdp" / "source-format.xml"
UNKNOWN = "messages of no known format; give the venue's with --source-format"
ADD_ORDER = struct.pack(">cHH6sQcI8sI", b"A", 7, 0, bytes(6), 1, b"B", 100, b"ACME    ", 1)


def capture(path: Path, *datagrams: tuple[str, bytes]) -> Path:
    wrpcap(str(path), [Ether() / IP(dst=to) / UDP(dport=26_400) / Raw(payload) for to, payload in datagrams])
    return path


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("iex/TOPS16.pcapng.gz", "--shipped iex --reader iex-tp"),
        ("itch50/12302019_SNIPPET.NASDAQ_ITCH50", "--shipped itch50"),
        ("itch50/ex20101224.TEST_ITCH_50.gz", "--shipped itch50"),
        ("dbn/test_data.mbo.v3.dbn.zst", "--shipped dbn"),
        ("dbn/test_data.trades.dbn", "--shipped dbn"),
        ("lobster/AAPL_2012-06-21_34200000_57600000_message_10.csv", "--shipped lobster"),
        ("ticks/btcusdt-trades.parquet", "--shipped tick-table"),
        ("ticks/usdjpy-ticks.csv", "--shipped tick-table"),
    ],
)
def test_real_recordings_are_recognised(name: str, options: str) -> None:
    assert sniff(shared_file(name)).options == options


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstandard.compress])
def test_each_destination_of_a_capture_is_named(
    tmp_path: Path, compress: object, capsys: pytest.CaptureFixture[str]
) -> None:
    mold = encode_mold_packet(b"S", 1, [ADD_ORDER])
    path = capture(tmp_path / "day.pcap", ("233.54.12.111", mold), ("224.0.0.251", b"query"), ("233.54.12.111", mold))
    path.write_bytes(compress(path.read_bytes()))  # type: ignore[operator]
    assert main(["sniff", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "233.54.12.111:26400: 2 datagrams of moldudp64, messages of itch50" in shown
    assert "224.0.0.251:26400: 1 datagrams of no known protocol" in shown
    assert f"tandemfeed convert file {path} --shipped itch50 --reader moldudp64 --to FOLDER" in shown


def test_a_known_protocol_with_unknown_messages_is_named_without_options(tmp_path: Path) -> None:
    frames = struct.pack("<H", 3) + b"\xff\0\0"
    segment = IEX_TP_HEADER.pack(1, 0x8004, 1, 1, len(frames), 1, 0, 1, 0) + frames
    verdict = sniff(capture(tmp_path / "day.pcap", ("233.215.21.4", segment)))
    assert (verdict.options, verdict.lines[-1]) == (
        "",
        f"  233.215.21.4:26400: 1 datagrams of iex-tp, {UNKNOWN}",
    )


def test_a_packet_whose_frames_no_format_has_does_not_end_the_verdict(tmp_path: Path) -> None:
    packets = [("233.54.12.111", encode_mold_packet(b"S", 1, [b""]))]
    packets += [("233.54.12.112", encode_mold_packet(b"S", 1, [ADD_ORDER]))]
    verdict = sniff(capture(tmp_path / "day.pcap", *packets))
    assert f"  233.54.12.111:26400: 1 datagrams of moldudp64, {UNKNOWN}" in verdict.lines
    assert verdict.options == "--shipped itch50 --reader moldudp64"


def test_a_format_of_ones_own_is_tried_if_it_describes_the_packets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = struct.pack("<HHIIII2s", 22, 0x22, 1, 2, 3, 4, b"4~")
    packet = struct.pack("<HBBIII", 16 + 22, 11, 1, 41, 1_504_787_400, 5) + status
    path = capture(tmp_path / "day.pcap", ("224.0.59.76", packet), ("224.0.59.76", packet))
    assert main(["sniff", str(path), "--source-format", str(XDP)]) == 0
    shown = capsys.readouterr().out
    assert "224.0.59.76:26400: 2 datagrams of XDP, messages of nyse-xdp" in shown
    assert f"--source-format {XDP} --table TABLE --message-model MODEL --to FOLDER" in shown
    with pytest.raises(FormatError, match="needs a <packet> with a <sequence>"):
        sniff(path, [load_source_format(document("lobster.xml"))])


def test_cme_packets_are_recognised_without_the_schema(tmp_path: Path) -> None:
    packet = struct.pack("<IQ", 1, 2) + struct.pack("<HHHHH", 10, 0, 12, 1, 9)
    verdict = sniff(capture(tmp_path / "day.pcap", ("224.0.31.1", packet)))
    assert f"  224.0.31.1:26400: 1 datagrams of mdp3, {UNKNOWN}" in verdict.lines


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "empty"),
        (b"\x1f\x8b\x08garbage", "cannot be decompressed"),
        (b"hello, world\n1,2\n", "CSV with the columns hello, world, none of which names a tick's field"),
        (bytes(range(256)) * 40, "none of the readers recognises it"),
        (b"\xd4\xc3\xb2\xa1cut", "offset 4: the file's header"),
    ],
)
def test_other_files_are_described_and_the_exit_status_says_so(
    tmp_path: Path, content: bytes, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert main(["sniff", str(path)]) == 1
    shown = capsys.readouterr().out
    assert line in shown
    assert "convert it with" not in shown
