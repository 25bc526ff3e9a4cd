"""Several channels in one capture are kept apart, and both lines of each become one stream."""

from __future__ import annotations

import csv
import struct
from pathlib import Path

import pytest

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.packets.mdp3 import MDP_HEADER
from tandemfeed.adapter.conversion.formats.packets.moldudp64 import encode_mold_packet
from tandemfeed.adapter.convert_command.captures.line_groups import lines_of, look_at
from tandemfeed.adapter.convert_command.captures.protocols import mdp3
from tandemfeed.adapter.convert_command.cli import main
from tandemfeed.adapter.convert_command.input.findings import STREAMS_FILE
from tandemfeed.adapter.convert_command.input.inputs import Findings, Input
from tandemfeed.adapter.convert_command.input.reading import READERS
from tandemfeed.benchmarks.captures.material import write_pcap
from tandemfeed.feedcore.documents.source_format import load_source_format

ITCH = load_source_format(document("itch50.xml"))
SECOND_NS = 1_000_000_000


def line(number: int) -> tuple[bytes, int]:
    return bytes([224, 0, 31, number]), 14_310


def mdp(channel: int, sequence: int, sent_ns: int) -> bytes:
    """A packet of one message, whose content names channel and packet."""
    return MDP_HEADER.pack(sequence, sent_ns) + struct.pack("<HQBB", 12, sent_ns, channel, sequence)


def read(path: Path, reader: str) -> tuple[list[tuple[int, int]], Findings]:
    """(channel, packet) of each message, and the findings."""
    findings = Findings()
    frames = b"".join(each.frames for each in READERS[reader](Input((path,), ITCH), findings))
    return [(frames[at + 10], frames[at + 11]) for at in range(0, len(frames), 12)], findings


def test_channels_without_a_number_in_the_header_are_kept_apart_and_their_lines_merged(tmp_path: Path) -> None:
    sent = []
    for sequence in range(1, 21):
        for channel in (1, 2):
            payload = mdp(channel, sequence + 100 * (channel - 1), 1_000 * sequence + channel)
            lost = sequence % 5 == channel, sequence % 5 == channel + 2  # on line A, on line B
            sent += [(payload, line(10 * channel + number)) for number in (0, 1) if not lost[number]]
    write_pcap(tmp_path / "day.pcap", sent)
    found, findings = read(tmp_path / "day.pcap", "mdp3")
    first = [sequence for channel, sequence in found if channel == 1]
    second = [sequence for channel, sequence in found if channel == 2]
    assert (first, second) == (list(range(1, 21)), list(range(101, 121)))
    assert [(each.stream, each.first, each.last, each.missing) for each in findings.streams] == [
        ("224.0.31.10:14310 and 224.0.31.11:14310", 1, 20, 0),
        ("224.0.31.20:14310 and 224.0.31.21:14310", 101, 120, 0),
    ]


@pytest.mark.parametrize("destinations", [1, 2])
def test_the_lines_of_a_capture_are_those_that_its_contents_show(tmp_path: Path, destinations: int) -> None:
    sent = [(mdp(1, sequence, sequence), line(number)) for sequence in range(1, 4) for number in range(destinations)]
    path, protocol = tmp_path / "day.pcap", mdp3(ITCH)
    write_pcap(path, sent)
    found = lines_of([path], protocol)
    assert found == look_at([path], protocol).lines
    assert found.groups == (0,) * destinations


def test_numbers_that_start_again_are_a_new_beginning_and_late_copies_are_not(tmp_path: Path) -> None:
    days = [mdp(1, sequence, day + sequence) for day in (0, SECOND_NS) for sequence in range(1, 6)]
    late = days[0]  # packet 1 of the first day, once more
    write_pcap(tmp_path / "week.pcap", [(each, line(1)) for each in (*days[:5], late, *days[5:])])
    found, findings = read(tmp_path / "week.pcap", "mdp3")
    assert [sequence for _, sequence in found] == [1, 2, 3, 4, 5] * 2
    assert findings.restarts == ["224.0.31.1:14310"]
    assert (findings.missing, findings.duplicate_count) == ([], 1)


def test_one_session_name_for_two_channels_does_not_mix_them(tmp_path: Path) -> None:
    body = {channel: [b"%d%d" % (channel, number) * 5 for number in range(10)] for channel in (1, 2)}
    sent = [
        (encode_mold_packet(b"SAME", number + 1, [body[channel][number]]), line(2 * channel + copy))
        for number in range(10)
        for channel in (1, 2)
        for copy in (0, 1)
    ]
    write_pcap(tmp_path / "day.pcap", sent)
    found, findings = read(tmp_path / "day.pcap", "moldudp64")
    assert len(found) == 20
    assert [each.messages for each in findings.streams] == [10, 10]
    assert findings.streams[0].stream == "SAME 224.0.31.2:14310 and 224.0.31.3:14310"
    assert findings.duplicate_count == 20


def test_what_is_known_of_each_stream_is_written_to_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add = struct.pack(">cHH6sQcI8sI", b"A", 7, 0, bytes(6), 1, b"B", 100, b"ACME    ", 10_000)
    packets = [encode_mold_packet(b"S", number, [add]) for number in (3, 4, 4, 6)]
    write_pcap(tmp_path / "day.pcap", [(each, line(1)) for each in packets])
    options = ["--shipped", "itch50", "--session", "20191230", "--reader", "moldudp64", "--to", str(tmp_path)]
    assert main(["file", str(tmp_path / "day.pcap"), *options]) == 3
    with (tmp_path / STREAMS_FILE).open() as file:
        assert list(csv.reader(file)) == [
            ["stream", "first", "last", "messages", "duplicates", "missing", "restarts", "late", "conflicting"],
            ["S", "3", "6", "3", "1", "1", "0", "0", "0"],
        ]
    assert "stream S: 1 missing, 5 to 5" in " ".join(capsys.readouterr().err.split())
