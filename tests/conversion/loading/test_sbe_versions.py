"""What a later version of an SBE schema added is null or empty in earlier messages, although their bytes go on.

Exchanges add fields in what was padding, so the length of the block does not show which fields a message has.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.formats.frames.frame_reader import FrameReader
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.adapter.conversion.table.table import ConverterTable
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.client_lib.messages.sbe_reading import SbeReader
from tandemfeed.client_lib.messages.sbe_writing import SbeWriter
from tandemfeed.feedcore.replica.output.converter import Converter
from tandemfeed.feedcore.sbe import load_schema
from tandemfeed.feedcore.wire.source_packet import encode_source_header
from tests.conversion.oracle.interpreted import InterpretedConverter
from tests.feedcore.sbe.sbe_material import schema_text

VERSIONS = (1, 2, 3)
TYPES = """
<type name="Maybe" primitiveType="uint32" presence="optional"/>
<type name="MaybeLong" primitiveType="int64" presence="optional"/>
<type name="Ratio" primitiveType="double" presence="optional"/>
<type name="Code" primitiveType="char" length="4"/>
<type name="Title" primitiveType="char" length="12"/>
<composite name="Text"><type name="length" primitiveType="uint8"/><type name="data" primitiveType="uint8" length="0"
  characterEncoding="UTF-8"/></composite>"""
VENUE = """
<message name="Deal" id="7" blockLength="64" sinceVersion="1">
  <field name="price" offset="0" id="1" type="int64" sinceVersion="1"/>
  <field name="count" offset="8" id="2" type="uint16" sinceVersion="2"/>
  <field name="trade" offset="10" id="3" type="Maybe" sinceVersion="2"/>
  <field name="ratio" offset="14" id="4" type="double" sinceVersion="3"/>
  <field name="code" offset="22" id="5" type="Code" sinceVersion="2"/>
  <field name="title" offset="26" id="6" type="Title" sinceVersion="3"/>
  <group name="legs" id="10" blockLength="16">
    <field name="side" offset="0" id="11" type="uint8"/>
    <field name="quantity" offset="1" id="12" type="Maybe" sinceVersion="3"/>
    <field name="label" offset="5" id="13" type="Code" sinceVersion="2"/>
    <group name="fills" id="14" sinceVersion="3"><field name="fill" id="15" type="int32"/></group>
  </group>
  <group name="more" id="16" sinceVersion="2"><field name="n" id="17" type="int32"/></group>
  <data name="note" id="18" type="Text" sinceVersion="2"/>
</message>"""
MODEL = """
<message name="Deal" id="1">
  <field name="price" id="1" type="int64"/><field name="count" id="2" type="Maybe"/>
  <field name="trade" id="3" type="Maybe"/><field name="ratio" id="4" type="Ratio"/>
  <field name="code" id="5" type="Code"/><field name="title" id="6" type="Title"/>
  <group name="legs" id="10"><field name="side" id="11" type="uint8"/><field name="quantity" id="12" type="Maybe"/>
    <field name="label" id="13" type="Code"/>
    <group name="fills" id="14"><field name="fill" id="15" type="int32"/></group></group>
  <group name="more" id="16"><field name="n" id="17" type="int32"/></group>
  <data name="note" id="18" type="Text"/><data name="words" id="19" type="Text"/>
</message>
<message name="Leg" id="2"><field name="quantity" id="1" type="MaybeLong"/><field name="label" id="2" type="Title"/>
  <field name="sum" id="3" type="MaybeLong"/></message>"""
FRAMING = """<framing headerSize="10" length="uint16" type="uint16" typeOffset="4" blockLength="uint16"
  blockLengthOffset="2" version="uint16" versionOffset="8"/>"""
FORMAT = f'<sourceFormat name="venue" sbe="venue.xml">{FRAMING}</sourceFormat>'
TABLE = """<converterTable name="deals" sourceFormat="venue">
<convert message="Deal" to="Deal">
  <field name="price" function="copy" of="price"/><field name="count" function="copy" of="count"/>
  <field name="trade" function="copy" of="trade"/><field name="ratio" function="copy" of="ratio"/>
  <field name="code" function="copy" of="code"/><field name="title" function="copy" of="title"/>
  <group name="legs" of="legs"><field name="side" function="copy" of="side"/>
    <field name="quantity" function="copy" of="quantity"/><field name="label" function="copy" of="label"/>
    <group name="fills" of="fills"><field name="fill" function="copy" of="fill"/></group></group>
  <group name="more" of="more"><field name="n" function="copy" of="n"/></group>
  <data name="note" function="copy" of="note"/>
  <data name="words" function="concatenate" of="code title" separator="/"/>
</convert>
<convert message="Deal" to="Leg" each="legs">
  <when of="label" isNot="skip"/>
  <field name="quantity" function="copy" of="quantity"/><field name="label" function="copy" of="title"/>
  <field name="sum" function="sum" of="quantity" by="title"/>
</convert></converterTable>"""
DEAL: dict[str, Any] = {
    "price": -5,
    "count": 3,
    "trade": 77,
    "ratio": 0.5,
    "code": "AB",
    "title": "Long title",
    "legs": [
        {"side": 1, "quantity": 9, "label": "one", "fills": [{"fill": 4}, {"fill": -4}]},
        {"side": 2, "quantity": 8, "label": "skip", "fills": []},
    ],
    "more": [{"n": 1}, {"n": 2}],
    "note": "a note",
}


def of_version(version: int) -> bytes:
    """The venue's schema as it was in a version: without what later ones added, and with the same blocks."""
    text = VENUE
    for later in range(version + 1, max(VERSIONS) + 1):
        for tag in ("group", "data", "field"):
            whole = rf'<{tag} [^>]*sinceVersion="{later}"(/>|>.*?</{tag}>)'
            text = re.sub(whole, "", text, flags=re.DOTALL)
    return schema_text(TYPES, text, version)


def written(version: int) -> bytes:
    """The deal as a venue of that version sends it."""
    writer = SbeWriter(load_schema(of_version(version)))
    block = writer.schema.messages["Deal"]
    legs = [{name: leg[name] for name in leg if name in {**g.fields, **g.groups}} for g in [block.groups["legs"]]
            for leg in DEAL["legs"]]  # fmt: skip
    known = {*block.fields, *block.groups, *block.data}
    return writer.write("Deal", {name: value for name, value in (DEAL | {"legs": legs}).items() if name in known})


def expected(version: int) -> dict[str, Any]:
    """The deal as a reader of the newest schema must see it."""
    since2, since3 = version >= 2, version >= 3
    legs = [
        {
            "side": leg["side"],
            "quantity": leg["quantity"] if since3 else None,
            "label": leg["label"] if since2 else "",
            "fills": leg["fills"] if since3 else [],
        }
        for leg in DEAL["legs"]
    ]
    newer = {name: DEAL[name] if since2 else None for name in ("count", "trade")}
    texts = {"code": "AB" if since2 else "", "title": "Long title" if since3 else ""}
    rest = {"more": DEAL["more"] if since2 else [], "note": DEAL["note"] if since2 else ""}
    return {"price": -5, **newer, "ratio": 0.5 if since3 else None, **texts, "legs": legs, **rest}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> ConverterTable:
    folder = tmp_path_factory.mktemp("versions")
    texts = {"venue.xml": of_version(3), "model.xml": schema_text(TYPES, MODEL, number=9)}
    texts |= {"format.xml": FORMAT.encode(), "table.xml": TABLE.encode()}
    for name, text in texts.items():
        (folder / name).write_bytes(text)
    return load_checked_table(folder / "format.xml", folder / "table.xml", folder / "model.xml")


def framed(message: bytes) -> bytes:
    return (len(message) + 2).to_bytes(2, "little") + message


def converted(converter: Converter) -> bytes:
    messages = [framed(written(version)) for version in VERSIONS]
    header = encode_source_header(
        feed_id=1, source_stream_id=1, message_count=len(messages), session=20261121, first_source_seq=1, sent_at_ns=0
    )
    out = np.zeros(3_000, np.uint8)
    result = converter.convert(header + b"".join(messages), 0, len(messages), out, 0, 3_000)
    assert result.source_count == len(messages)
    return bytes(out[: result.end])


@pytest.mark.parametrize("converter", [InterpretedConverter, CompiledConverter])
def test_what_a_later_version_added_is_null_or_empty_in_messages_of_earlier_ones(
    table: ConverterTable, converter: Any
) -> None:
    decoder = Decoder(schema_text(TYPES, MODEL, number=9))
    frames = converted(converter(table))
    found: list[tuple[str, Any]] = list(decoder.messages(frames))
    deals = [fields for name, fields in found if name == "Deal"]
    words = ["/", "AB/", "AB/Long title"]
    assert deals == [expected(version) | {"words": text} for version, text in zip(VERSIONS, words, strict=True)]
    legs = [(fields["quantity"], fields["label"]) for name, fields in found if name == "Leg"]
    assert legs[:3] == [(decoder_null(), b""), (decoder_null(), b""), (decoder_null(), b"")], "versions 1 and 2"
    assert legs[3] == (9, b"Long title")


def decoder_null() -> int:
    """An int64 null, as arrays show it."""
    return -(2**63)


def test_kernel_and_interpreter_agree_to_the_byte(table: ConverterTable) -> None:
    compiled, interpreted = CompiledConverter(table), InterpretedConverter(table)
    assert converted(compiled) == converted(interpreted)
    assert compiled.counts() == interpreted.counts()
    assert compiled.snapshot() == interpreted.snapshot()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_formats_reader_reads_what_the_sbe_reader_reads(table: ConverterTable, version: int) -> None:
    message = written(version)
    fields = SbeReader(load_schema(of_version(3))).read(message).fields
    ((name, values),) = FrameReader(table.source_format).read(framed(message))
    assert name == "Deal"
    assert (values["count"], values["trade"], values["ratio"]) == (fields["count"], fields["trade"], fields["ratio"])
    assert (values["title"] or b"").decode() == (fields["title"] or "")
    assert [leg["quantity"] for leg in values["legs"]] == [leg["quantity"] for leg in fields["legs"]]
    assert [len(leg["fills"]) for leg in values["legs"]] == [len(leg["fills"]) for leg in fields["legs"]]
    assert (len(values["more"]), values["note"].decode()) == (len(fields["more"]), fields["note"] or "")


def test_a_message_that_claims_a_version_but_is_shorter_is_not_read_beyond_its_block(table: ConverterTable) -> None:
    message = bytearray(written(3))
    short = bytes(message[:8]) + bytes(message[8:16])  # only the price
    short = (8).to_bytes(2, "little") + short[2:] + bytes(message[8 + 64 :])
    (_, values), = FrameReader(table.source_format).read(framed(short))  # fmt: skip
    assert (values["price"], values["count"], values["title"]) == (-5, None, None)
    header = encode_source_header(
        feed_id=1, source_stream_id=1, message_count=1, session=20261121, first_source_seq=1, sent_at_ns=0
    )
    outs = []
    for converter in (CompiledConverter(table), InterpretedConverter(table)):
        out = np.zeros(3_000, np.uint8)
        result = converter.convert(header + framed(short), 0, 1, out, 0, 3_000)
        outs.append(bytes(out[: result.end]))
    assert outs[0] == outs[1]
    assert outs[0]
