"""The compiled merge delivers what the decoders and the merge in Python deliver, from any capture."""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.dispatcher import Dispatcher

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.captures.capture import CaptureReader
from tandemfeed.adapter.conversion.formats.captures.line_merge import HOLD_NS, Known, LineMerge, Missing
from tandemfeed.adapter.conversion.formats.chunks import FormatError, FrameChunk
from tandemfeed.adapter.conversion.formats.frames.frame_walk import part_of_chunk
from tandemfeed.adapter.conversion.formats.packets.framed_packets import PacketDecoder
from tandemfeed.adapter.conversion.formats.packets.iex_tp import IEX_TP_HEADER, decode_iex_segment
from tandemfeed.adapter.conversion.formats.packets.mdp3 import MDP_HEADER, decode_mdp_packet
from tandemfeed.adapter.conversion.formats.packets.moldudp64 import MOLD_HEADER, decode_mold_packet
from tandemfeed.adapter.convert_command.captures import stream_merge
from tandemfeed.adapter.convert_command.captures.compile_ahead import compile_captures
from tandemfeed.adapter.convert_command.captures.keys import FLAG
from tandemfeed.adapter.convert_command.captures.line_groups import LineGroups
from tandemfeed.adapter.convert_command.captures.protocols import MDP_HOLD_NS
from tandemfeed.adapter.convert_command.input.compressed import DecompressedFile
from tandemfeed.adapter.convert_command.input.inputs import Findings, Input
from tandemfeed.adapter.convert_command.input.reading import READERS
from tandemfeed.benchmarks.captures.material import write_pcap
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.documents.source_layout import SourceFormat
from tests.conversion.formats.test_venues_by_document import book, deribit_packet, table
from tests.real_data import shared_file

ITCH, IEX = (load_source_format(document(f"{name}.xml")) for name in ("itch50", "iex"))
END = 40
GROUP = bytes([239, 1, 1, 1]).ljust(16, b"\0")


class Decoded(NamedTuple):
    """A datagram as Python reads it: session, number of the first message or packet, messages."""

    session: bytes
    sequence: int
    chunk: FrameChunk | None


class Outcome(NamedTuple):
    """What a capture gives. Attributes: numbers: the stream of each message, and its number or that of its packet."""

    frames: bytes
    numbers: list[tuple[str, int]]
    count: int
    missing: list[Missing]
    duplicates: int
    refused: Counter[str]
    conflicts: list[Missing]
    restarts: int


class Delivered:
    """What was delivered under each number, whole: what the compiled memory has as digests."""

    def __init__(self, source_format: SourceFormat, *, is_by_packet: bool) -> None:
        self._part, self._is_by_packet = part_of_chunk(source_format.framing), is_by_packet
        self._contents: dict[tuple[bytes, int], bytes] = {}

    def _by_number(self, chunk: FrameChunk) -> list[tuple[tuple[bytes, int], bytes]]:
        if self._is_by_packet:
            return [((chunk.session, chunk.sequence), chunk.frames)]
        numbers = range(chunk.sequence, chunk.sequence + chunk.message_count)
        return [((chunk.session, number), self._part(chunk, number, number + 1).frames) for number in numbers]

    def note(self, chunk: FrameChunk) -> FrameChunk:
        self._contents.update(self._by_number(chunk))
        return chunk

    def compare(self, chunk: FrameChunk) -> list[int]:
        found = [(self._contents.get(key), content) for key, content in self._by_number(chunk)]
        return [Known.UNKNOWN if old is None else Known.SAME if old == new else Known.OTHER for old, new in found]


def mold(payload: bytes) -> Decoded:
    packet = decode_mold_packet(payload)
    chunk = FrameChunk(packet.frames, packet.message_count, packet.sequence, session=packet.session)
    return Decoded(packet.session, packet.sequence, chunk if packet.message_count else None)


def iex(payload: bytes) -> Decoded:
    segment = decode_iex_segment(payload)
    return Decoded(segment.session, segment.sequence, segment.chunk())


def mdp(payload: bytes) -> Decoded:
    packet = decode_mdp_packet(payload)
    return Decoded(b"", packet.sequence, FrameChunk(packet.frames, packet.message_count, packet.sequence))


def in_python(path: Path, source_format: SourceFormat, decode: Callable[[bytes], Decoded]) -> Outcome:
    """The messages of a capture by way of the decoders and the merge in Python."""
    is_mdp, refused, delivered = decode is mdp, Counter[str](), list[FrameChunk]()
    hold_ns = MDP_HOLD_NS if is_mdp else HOLD_NS
    known, restarts = Delivered(source_format, is_by_packet=is_mdp), list[bytes]()
    merge = LineMerge(
        part_of_chunk(source_format.framing),
        hold_ns=hold_ns,
        is_by_packet=is_mdp,
        compare=known.compare,
        on_restart=restarts.append,
    )
    with DecompressedFile(path) as file:
        for datagram in CaptureReader(file):
            try:
                session, sequence, chunk = decode(datagram.payload)
            except FormatError as reason:
                refused[str(reason)] += 1
                continue
            if chunk is not None:
                line = datagram.destination_port
                delivered += map(known.note, merge.on_chunk(chunk, datagram.captured_at_ns, line))
            if not is_mdp:
                merge.note_end(session, sequence + (chunk.message_count if chunk else 0))
    delivered += map(known.note, merge.finish())
    frames, count = b"".join(each.frames for each in delivered), sum(each.message_count for each in delivered)
    numbers = [
        (each.session.decode(), each.sequence + (0 if is_mdp else place))
        for each in delivered
        for place in range(each.message_count)
    ]
    duplicates, conflicts = merge.duplicate_count, sorted(merge.conflicts)
    return Outcome(frames, numbers, count, sorted(merge.missing), duplicates, refused, conflicts, len(restarts))


def two_lines() -> LineGroups:
    """The ports 5000 and 5001 are lines of one channel."""
    keys = (GROUP + (5_000 + line).to_bytes(2, "big") for line in range(2))
    return LineGroups(tuple(key.ljust(FLAG, b"\0") + bytes([len(GROUP.rstrip(b"\0"))]) for key in keys), (0, 0))


def compiled(path: Path, source_format: SourceFormat, reader: str, lines: LineGroups | None = None) -> Outcome:
    """The same by way of the compiled walks."""
    findings, chunks, numbers = Findings(), list[FrameChunk](), list[tuple[str, int]]()
    for chunk in READERS[reader](Input((path,), source_format, line_groups=lines), findings):
        chunks.append(chunk)
        assert findings.numbers is not None
        found = findings.numbers()
        names = ["" if reader == "mdp3" else found.name(stream) for stream in found.streams.tolist()]
        numbers += zip(names, found.numbers.tolist(), strict=True)
    frames, count = b"".join(each.frames for each in chunks), sum(each.message_count for each in chunks)
    missing, conflicts = (
        sorted(each if reader != "mdp3" else each._replace(stream="") for each in found)
        for found in (findings.missing, findings.conflicts)
    )
    duplicates, restarts = findings.duplicate_count, len(findings.restarts)
    return Outcome(frames, numbers, count, missing, duplicates, findings.refused, conflicts, restarts)


def body(number: int, run: int) -> bytes:
    """Message `number`: its size differs from its neighbours', and now and then it is empty or has no type."""
    return bytes([65 + 30 * run + number % 20]) * (number % 9)


def mold_packet(stream: int, first: int, end: int, run: int = 0) -> bytes:
    frames = b"".join(struct.pack(">H", len(body(n, run))) + body(n, run) for n in range(first, end))
    return MOLD_HEADER.pack(b"SESSION%03d" % stream, first, end - first) + frames


def iex_packet(stream: int, first: int, end: int, run: int = 0) -> bytes:
    frames = b"".join(struct.pack("<H", len(body(n, run))) + body(n, run) for n in range(first, end))
    return IEX_TP_HEADER.pack(1, 0x8003, stream, 7, len(frames), end - first, 0, first, first) + frames


def mdp_packet(stream: int, first: int, end: int, run: int = 0) -> bytes:
    """A packet of up to three messages; its content follows from its number, because both lines send the same."""
    size = 10 + first % 5
    return MDP_HEADER.pack(first, first) + (struct.pack("<H", size) + bytes([first + 100 * run]) * (size - 2)) * (
        first % 4
    )


KINDS = {
    "moldudp64": (mold_packet, ITCH, mold, 2),
    "iex-tp": (iex_packet, IEX, iex, 2),
    "mdp3": (mdp_packet, ITCH, mdp, 1),
}


@st.composite
def captures(draw: st.DrawFn, reader: str) -> list[tuple[bytes, int]]:
    """Datagrams of two lines of some streams, with the line of each: cut differently, lost, late, heartbeats, damaged
    and foreign ones; and streams whose numbers start again."""
    make, _, _, streams = KINDS[reader]
    packets: list[tuple[int, bytes, int]] = []
    for stream in range(streams):
        for line, run in itertools.product(range(2), range(draw(st.integers(1, 3)))):
            cuts = range(2, END) if reader == "mdp3" else draw(st.sets(st.integers(2, END - 1), max_size=12))
            bounds = [1, *sorted(cuts), END]
            for first, end in itertools.pairwise(bounds):
                at = 10 * END * run + 10 * first + line + draw(st.sampled_from((0, 0, 0, 0, 15, 60)))
                payload = make(stream, first, end, run)
                what = draw(st.integers(0, 19))
                if what == 0:
                    continue
                if what == 1:
                    payload = payload[: draw(st.integers(0, len(payload)))]
                if what == 2 and reader != "mdp3":
                    packets.append((at, make(stream, end, end), line))
                packets.append((at, payload, line))
    packets.sort(key=lambda each: each[0])
    return [(payload, line) for _, payload, line in packets]


@pytest.mark.parametrize("reader", KINDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_lines_with_losses_become_the_same_streams_as_in_python(
    reader: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    _, source_format, decode, _ = KINDS[reader]
    path = tmp_path_factory.getbasetemp() / f"{reader}.pcap"
    interval_ns = data.draw(st.sampled_from((1_000, MDP_HOLD_NS // 3, HOLD_NS // 3)))
    payloads = data.draw(captures(reader))
    write_pcap(path, [(each, (bytes([239, 1, 1, 1]), 5_000 + line)) for each, line in payloads], interval_ns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_merge, "MESSAGES_MAX", data.draw(st.sampled_from((1, 5, 1_000))))
        assert compiled(path, source_format, reader, two_lines()) == in_python(path, source_format, decode)


def test_a_recording_gives_the_same_messages_as_in_python() -> None:
    path = shared_file("iex/TOPS16.pcapng.gz")
    outcome = compiled(path, IEX, "iex-tp")
    assert outcome == in_python(path, IEX, iex)
    assert outcome.count == 57_674


def test_a_chunk_is_written_before_its_space_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_merge, "MESSAGES_MAX", 3)
    write_pcap(tmp_path / "day.pcap", [(mold_packet(1, n, n + 1), (bytes(4), 1)) for n in range(1, 9)], 1)
    chunks = list(READERS["moldudp64"](Input((tmp_path / "day.pcap",), ITCH), Findings()))
    assert [each.message_count for each in chunks][:2] == [3, 3] or sum(each.message_count for each in chunks) == 8
    assert b"".join(each.frames for each in chunks) == b"".join(mold_packet(1, n, n + 1)[20:] for n in range(1, 9))
    assert BytesIO(chunks[0].frames).read(2) == b"\0\1"


def test_a_message_is_named_by_the_packet_that_has_its_number(tmp_path: Path) -> None:
    packets = [MDP_HEADER.pack(number, number) + struct.pack("<H", 12) + bytes(10) for number in (5, 6, 7)]
    write_pcap(tmp_path / "day.pcap", [(each, (bytes([239, 1, 1, 1]), 5_000)) for each in packets], 1)
    findings = Findings()
    for chunk in READERS["mdp3"](Input((tmp_path / "day.pcap",), ITCH), findings):
        assert chunk.message_count == 3
        names = [findings.origin(number) for number in (1, 2, 3)]
    assert names == [f"of packet {number} 239.1.1.1:5000" for number in (5, 6, 7)]


def test_everything_is_compiled_in_advance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_captures()
    compiled_now: list[str] = []
    monkeypatch.setattr(Dispatcher, "compile", lambda self, signature: compiled_now.append(str(self)))
    write_pcap(tmp_path / "day.pcap", [(mold_packet(1, n, n + 1), (bytes(4), 1)) for n in (1, 2, 4, 3)], 1)
    list(READERS["moldudp64"](Input((tmp_path / "day.pcap",), ITCH), Findings()))
    assert compiled_now == []


def test_messages_that_do_not_contain_their_length_are_read_by_channel(tmp_path: Path) -> None:
    source_format = table("deribit").source_format
    decoder = PacketDecoder(source_format)
    sent = [
        deribit_packet(number, book(number, 2, 3), channel=channel) for number in (1, 2, 2, 4) for channel in (3, 4)
    ]
    write_pcap(tmp_path / "day.pcap", [(each, (bytes(4), 1)) for each in (*sent, sent[0][:-1])])
    findings = Findings()
    chunks = list(READERS["packets"](Input((tmp_path / "day.pcap",), source_format, keeps_streams=True), findings))
    expected = [decoder.packet(sent[at]).frames for at in (0, 1, 2, 3, 6, 7)]
    assert b"".join(each.frames for each in chunks) == b"".join(expected)
    assert len({each.session for each in chunks}) == 2
    assert [(each.stream, each.missing, each.duplicates) for each in findings.streams] == [("3", 1, 1), ("4", 1, 1)]
    assert findings.refused.total() == 1
