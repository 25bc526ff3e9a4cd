"""Captures that were cut, spliced, reordered or duplicated: no good packet is lost, and none is converted twice."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.captures.line_merge import HOLD_NS
from tandemfeed.adapter.conversion.formats.packets.iex_tp import IEX_TP_HEADER
from tandemfeed.adapter.conversion.formats.packets.mdp3 import MDP_HEADER
from tandemfeed.adapter.conversion.formats.packets.moldudp64 import MOLD_HEADER
from tandemfeed.adapter.convert_command.input.inputs import Findings, Input
from tandemfeed.adapter.convert_command.input.reading import READERS
from tandemfeed.benchmarks.captures.material import PCAP_HEADER, write_pcap
from tandemfeed.feedcore.documents.source_format import load_source_format

ITCH, IEX = (load_source_format(document(f"{name}.xml")) for name in ("itch50", "iex"))
LINES = [(bytes([239, 1, 1, line]), 5_000) for line in (1, 2)]
PACKETS, RECORD = 14, 16  # packets of a capture; bytes of a record's header
BODY = struct.Struct(">4sI")


def mold_packet(first: int, end: int) -> bytes:
    frames = b"".join(struct.pack(">H", BODY.size) + BODY.pack(b"BODY", number) for number in range(first, end))
    return MOLD_HEADER.pack(b"SESSION001", first, end - first) + frames


def iex_packet(first: int, end: int) -> bytes:
    frames = b"".join(struct.pack("<H", BODY.size) + BODY.pack(b"BODY", number) for number in range(first, end))
    return IEX_TP_HEADER.pack(1, 0x8003, 1, 7, len(frames), end - first, 0, first, first) + frames


def mdp_packet(first: int, end: int) -> bytes:
    size = struct.pack("<H", 2 + BODY.size)
    return MDP_HEADER.pack(first, first) + b"".join(size + BODY.pack(b"BODY", number) for number in range(first, end))


KINDS = {"moldudp64": (mold_packet, 3, ITCH), "iex-tp": (iex_packet, 3, IEX), "mdp3": (mdp_packet, 1, ITCH)}


@st.composite
def rearranged(draw: st.DrawFn, reader: str) -> tuple[list[tuple[bytes, tuple[bytes, int]]], set[int]]:
    """Datagrams of two lines, each with its destination; and the numbers that a good packet brings."""
    make, count_max, _ = KINDS[reader]
    first, sent = draw(st.sampled_from((1, 1_000))), list[tuple[bytes, tuple[bytes, int]]]()
    good: set[int] = set()
    for _ in range(PACKETS):
        end = first + draw(st.integers(1, count_max))
        payload = make(first, end)
        for line in LINES if reader != "mdp3" else LINES[:1] * 2:  # its lines are recognised by common packets
            what = draw(st.sampled_from(("good", "good", "good", "twice", "lost", "cut")))
            if what == "cut":
                cut = draw(st.integers(0, len(payload) - 1))
                sent.append((payload[: cut - (cut == MDP_HEADER.size)], line))  # only a header is a packet of CME's
            elif what != "lost":
                sent += [(payload, line)] * (2 if what == "twice" else 1)
                good.update(range(first, end))
        first = end
    for _ in range(draw(st.integers(0, 8))):  # move a part elsewhere
        at, size, to = (draw(st.integers(0, len(sent))) for _ in range(3))
        part = sent[at : at + size % 5]
        del sent[at : at + size % 5]
        sent[to:to] = part
    return sent, good


def files(folder: Path, capture: bytes, cuts: Sequence[int], order: Sequence[int]) -> tuple[Path, ...]:
    """The records of a capture in several files, in any order."""
    bounds, at = [len(PCAP_HEADER)], len(PCAP_HEADER)
    while at < len(capture):
        at += RECORD + int.from_bytes(capture[at + 8 : at + 12], "little")
        bounds.append(at)
    marks = sorted(bounds[cut % len(bounds)] for cut in cuts)
    parts = [capture[one:other] for one, other in zip((bounds[0], *marks), (*marks, len(capture)), strict=True)]
    paths = []
    for number in sorted(range(len(parts)), key=lambda part: order[part]):
        paths.append(folder / f"part-{number}.pcap")
        paths[-1].write_bytes(PCAP_HEADER + parts[number])
    return tuple(paths)


@pytest.mark.parametrize("reader", KINDS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_good_packet_is_converted_once(
    reader: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    sent, good = data.draw(rearranged(reader))
    folder = tmp_path_factory.mktemp("rearranged")
    write_pcap(folder / "all.pcap", sent, data.draw(st.sampled_from((1_000, HOLD_NS // 3, 2 * HOLD_NS))))
    cuts, order = data.draw(st.lists(st.integers(0, 100), max_size=3)), data.draw(st.permutations(range(4)))
    paths, findings = files(folder, (folder / "all.pcap").read_bytes(), cuts, order), Findings()
    frames = b"".join(chunk.frames for chunk in READERS[reader](Input(paths, KINDS[reader][2]), findings))
    bodies = np.frombuffer(frames, np.dtype([("length", "<u2"), ("name", "S4"), ("number", ">u4")]))
    assert sorted(bodies["number"].tolist()) == sorted(good)
    missing = [number for _, first, end in findings.missing for number in range(first, end)]
    whole = range(min(good), max(good) + 1) if good else ()
    assert set(whole) - good <= set(missing)
    assert not good & set(missing)
