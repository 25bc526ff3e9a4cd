"""Documents and messages for the tests of users' functions that are called per packet."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from tandemfeed.adapter.conversion import CompiledConverter, ConverterTable
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.feedcore.documents.message_model import frame_dtype, frame_size, load_message_model
from tandemfeed.feedcore.wire.source_packet import SOURCE_FRAME, SOURCE_FRAME_SIZE, encode_source_header
from tests.conversion.oracle.interpreted import InterpretedConverter

FORMAT = """<sourceFormat name="x">
<message name="m" type="1"><field name="a" type="int32" null="-9"/><field name="b" type="uint16"/>
<data name="tag" length="uint8" maxLength="3"/></message>
<message name="legs" type="2"><field name="b" type="uint16"/>
<group name="g" headerSize="3" count="uint16" countOffset="1" entrySize="uint8"><field name="x" type="int32" null="-9"/>
</group></message>
<message name="nested" type="4"><group name="outer" count="uint8"><field name="a" type="int32"/>
<group name="inner" count="uint8"><field name="y" type="int16"/></group></group></message>
<message name="other" type="3"><field name="a" type="int32"/></message></sourceFormat>"""
MODEL = """<messageSchema package="x" id="7" version="0"><types><composite name="messageHeader">
<type name="blockLength" primitiveType="uint16"/><type name="templateId" primitiveType="uint16"/>
<type name="schemaId" primitiveType="uint16"/><type name="version" primitiveType="uint16"/></composite>
<composite name="groupSizeEncoding">
<type name="blockLength" primitiveType="uint16"/><type name="numInGroup" primitiveType="uint16"/></composite>
<type name="Value" primitiveType="int64" presence="optional" nullValue="-1"/></types>
<message name="out" id="1"><field name="first" id="1" type="Value"/><field name="second" id="2" type="Value"/></message>
<message name="book" id="2"><group name="legs" id="3"><field name="first" id="1" type="Value"/></group></message>
</messageSchema>"""
TABLE = """<converterTable name="x" sourceFormat="x">
{}
</converterTable>"""
SMALL = '<convert message="m" to="out"><field name="first" function="halved" of="a"/></convert>'
OUT_MESSAGE = load_message_model(MODEL.encode()).schema.messages["out"]
OUT = frame_dtype(OUT_MESSAGE, frame_size(OUT_MESSAGE))
Frames = list[tuple[int, bytes]]


def load(folder: Path, converts: str) -> ConverterTable:
    for name, text in {"f.xml": FORMAT, "m.xml": MODEL, "t.xml": TABLE.format(converts)}.items():
        (folder / name).write_text(text)
    return load_checked_table(folder / "f.xml", folder / "t.xml", folder / "m.xml")


def packet(frames: Frames) -> bytes:
    header = encode_source_header(
        feed_id=1, source_stream_id=1, message_count=len(frames), session=1, first_source_seq=1, sent_at_ns=0
    )
    return header + b"".join(SOURCE_FRAME.pack(SOURCE_FRAME_SIZE + len(body), kind) + body for kind, body in frames)


def pair(a: int, b: int = 0) -> tuple[int, bytes]:
    """A message m."""
    return 1, struct.pack("<iHB", a, b, 0)


def legs(b: int, *entries: int) -> tuple[int, bytes]:
    """A message legs."""
    return 2, struct.pack(f"<HBH{len(entries)}i", b, 4, len(entries), *entries)


class Both:
    """Kernel and interpreter of one table, which must agree."""

    def __init__(self, table: ConverterTable) -> None:
        self.compiled, self.oracle = CompiledConverter(table), InterpretedConverter(table)

    def convert(self, frames: Frames, room: int = 1_000_000) -> list[tuple[int, ...]]:
        """The output: (index of the message in the packet, its two fields)."""
        data, found, skip = packet(frames), [], 0
        while skip < len(frames):
            ours, theirs = np.zeros(room, np.uint8), np.zeros(room, np.uint8)
            result = self.compiled.convert(data, skip, len(frames) - skip, ours, 0, room)
            assert result == self.oracle.convert(data, skip, len(frames) - skip, theirs, 0, room)
            assert bytes(ours) == bytes(theirs)
            assert result.source_count > 0
            for frame in np.frombuffer(ours[: result.end], OUT):
                found.append((skip + int(frame["source_offset"]), int(frame["first"]), int(frame["second"])))
            skip += result.source_count
        assert self.compiled.counts() == self.oracle.counts()
        assert self.compiled.digests().tolist() == self.oracle.digests().tolist()
        return found

    def counts(self) -> dict[str, int]:
        return {reason: count for reason, count in self.compiled.counts().items() if count}
