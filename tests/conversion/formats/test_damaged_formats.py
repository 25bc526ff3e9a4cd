"""For any bytes in a venue's file or packet, a reader returns messages or raises `FormatError`, and nothing else."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from io import BytesIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.chunks import FormatError
from tandemfeed.adapter.conversion.formats.files.binary_file import read_binary_file
from tandemfeed.adapter.conversion.formats.files.dbn import read_dbn
from tandemfeed.adapter.conversion.formats.frames.frame_reader import FrameReader
from tandemfeed.adapter.conversion.formats.packets.iex_tp import IEX_TP_HEADER, decode_iex_segment
from tandemfeed.adapter.conversion.formats.packets.mdp3 import MDP_HEADER, decode_mdp_packet
from tandemfeed.adapter.conversion.formats.packets.moldudp64 import decode_mold_packet, encode_mold_packet
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.documents.source_layout import SourceFormat

FORMATS = {
    name: load_source_format(document(f"{name}.xml")) for name in ("itch50", "iex", "dbn", "lobster", "tick-table")
}


def frames_of(source_format: SourceFormat, seed: int) -> bytes:
    """One well-framed message of each type, with random values."""
    chance, framing, out = random.Random(seed), source_format.framing, b""
    order = "big" if framing.is_big_endian else "little"
    for message in source_format.messages.values():
        size = message.frame_size
        frame = bytearray(chance.randbytes(size))
        length = (size - framing.length_adds) // framing.length_unit
        for value, kind, offset in (
            (length, framing.length, framing.length.offset),
            (message.type_id, framing.type, framing.type.offset),
        ):
            frame[offset : offset + kind.size] = value.to_bytes(kind.size, "big" if order == "big" else "little")
        out += frame
    return out


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_message_of_every_type_with_any_values_is_read(name: str) -> None:
    for seed in range(20):
        read = list(FrameReader(FORMATS[name]).read(frames_of(FORMATS[name], seed)))
        assert [message for message, _ in read] == list(FORMATS[name].messages)


def mutated(data: bytes, changes: list[tuple[int, int]], cut: int) -> bytes:
    out = bytearray(data)
    for place, value in changes:
        out[place % len(out)] = value
    return bytes(out[: len(out) - cut % len(out)])


DBN_HEAD = b"DBN\x03" + (136).to_bytes(4, "little") + b"GLBX.MDP3".ljust(16, b"\0") + bytes(2 + 24 + 3)
DBN_HEAD += (71).to_bytes(2, "little") + bytes(53 + 4 + 16)
DBN_HEAD = DBN_HEAD[:4] + (len(DBN_HEAD) - 8).to_bytes(4, "little") + DBN_HEAD[8:]
ITCH = frames_of(FORMATS["itch50"], 1)
IEX = frames_of(FORMATS["iex"], 1)
READERS: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "itch50 file": (ITCH, lambda data: list(read_binary_file(BytesIO(data), FORMATS["itch50"]))),
    "itch50 file without lengths": (
        b"\0\0" + ITCH[2:14],
        lambda data: list(read_binary_file(BytesIO(data), FORMATS["itch50"])),
    ),
    "MoldUDP64": (encode_mold_packet(b"S", 1, [b"abc", b"de"]), decode_mold_packet),
    "IEX-TP": (IEX_TP_HEADER.pack(1, 0x8003, 1, 1, len(IEX), 14, 0, 1, 0) + IEX, decode_iex_segment),
    "dbn": (DBN_HEAD + frames_of(FORMATS["dbn"], 1), lambda data: list(read_dbn(data).chunks())),
    "MDP": (MDP_HEADER.pack(1, 0) + (10).to_bytes(2, "little") + bytes(8), decode_mdp_packet),
    **{
        f"{name} messages": (frames_of(form, 1), lambda data, form=form: list(FrameReader(form).read(data)))  # type: ignore[misc]
        for name, form in FORMATS.items()
    },
}


@pytest.mark.parametrize("name", sorted(READERS))
def test_the_undamaged_bytes_are_read(name: str) -> None:
    data, read = READERS[name]
    assert read(data)


@settings(max_examples=1_500)
@given(
    st.sampled_from(sorted(READERS)),
    st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 255)), max_size=6),
    st.one_of(st.just(0), st.integers(0, 5_000)),
)
def test_damaged_bytes_are_read_or_refused(name: str, changes: list[tuple[int, int]], cut: int) -> None:
    data, read = READERS[name]
    with contextlib.suppress(FormatError):
        read(mutated(data, changes, cut))


@settings(max_examples=300)
@given(st.sampled_from(sorted(READERS)), st.binary(max_size=300))
def test_noise_is_read_or_refused(name: str, noise: bytes) -> None:
    with contextlib.suppress(FormatError):
        READERS[name][1](noise)
