"""A venue's own SBE schema as a source format: every value of every message becomes a field at its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemfeed.feedcore.documents.primitive_types import Place
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.documents.source_layout import SourceData, SourceFormat, SourceGroup
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tests.feedcore.sbe.sbe_material import schema_text

TYPES = """
<type name="Small" primitiveType="int8" presence="optional" nullValue="127"/>
<type name="Code" primitiveType="char" length="3"/>
<type name="Octets" primitiveType="uint8" length="4"/>
<type name="Pair" primitiveType="uint16" length="2"/>
<type name="Fixed" primitiveType="char" presence="constant">8</type>
<composite name="Price"><type name="mantissa" primitiveType="int64" presence="optional"/>
  <type name="exponent" primitiveType="int8" presence="constant">-7</type></composite>
<composite name="When"><type name="year" primitiveType="uint16"/><type name="month" primitiveType="uint8"/></composite>
<enum name="Side" encodingType="uint8"><validValue name="Buy">1</validValue></enum>
<composite name="Text"><type name="length" primitiveType="uint8"/><type name="data" primitiveType="uint8" length="0"/>
</composite>"""
MESSAGE = """
<message name="Deal" id="7" blockLength="40">
  <field name="price" id="1" type="Price"/><field name="when" id="2" type="When"/>
  <field name="code" id="3" type="Code"/><field name="raw" id="4" type="Octets"/>
  <field name="pair" id="5" type="Pair"/><field name="level" id="6" type="Small"/>
  <field name="source" id="7" type="Fixed"/><field name="rate" id="8" type="double"/>
  <field name="taker" id="9" type="Side" presence="constant" valueRef="Side.Buy"/>
  <group name="legs" id="10" blockLength="16"><field name="price" id="1" type="Price"/>
    <field name="side" id="11" type="Side"/></group>
  <group name="more" id="12" sinceVersion="2"><field name="n" id="13" type="int8"/></group>
  <data name="note" id="14" type="Text" sinceVersion="2"/>
</message>
<message name="Nested" id="8"><field name="a" id="9" type="int8"/><group name="g" id="1">
  <field name="b" id="2" type="int8"/><group name="h" id="3"><field name="a" id="4" type="int8"/>
  <field name="b" id="5" type="int8"/><data name="note" id="6" type="Text"/></group></group></message>
<message name="Grown" id="9"><group name="g" id="1"><field name="a" id="2" type="int8"/>
  <group name="h" id="3" sinceVersion="2"><field name="b" id="4" type="int8"/></group></group></message>"""
FRAMING = (
    '<framing headerSize="10" length="uint16" type="uint16" typeOffset="4" blockLength="uint16" blockLengthOffset="2"'
    ' version="uint16" versionOffset="8"/>'
)


def loaded(
    tmp_path: Path, framing: str = FRAMING, messages: str = MESSAGE, order: str = "littleEndian"
) -> SourceFormat:
    (tmp_path / "venue.xml").write_bytes(schema_text(TYPES, messages, 2, order))
    path = tmp_path / "format.xml"
    path.write_text(f'<sourceFormat name="venue" sbe="venue.xml">\n{framing}</sourceFormat>')
    return load_source_format(path)


def test_every_value_of_a_block_becomes_a_field_at_its_place(tmp_path: Path) -> None:
    deal = loaded(tmp_path).messages["Deal"]
    placed = {
        name: (field.kind.name, field.offset, field.length, field.exponent, field.null)
        for name, field in deal.fields.items()
        if field.constant is None
    }
    assert placed == {
        "price": ("int64", 0, 1, -7, -(2**63)),
        "when_year": ("uint16", 8, 1, 0, None),
        "when_month": ("uint8", 10, 1, 0, None),
        "code": ("char", 11, 3, 0, None),
        "raw": ("char", 14, 4, 0, None),
        "pair_0": ("uint16", 18, 1, 0, None),
        "pair_1": ("uint16", 20, 1, 0, None),
        "level": ("int8", 22, 1, 0, 127),
        "rate": ("double", 23, 1, 0, None),
    }
    constants = {name: field.constant for name, field in deal.fields.items() if field.constant is not None}
    assert constants == {"source": ord("8"), "taker": 1}
    assert (deal.type_id, deal.size, deal.longer) == (7, 40, True)


def test_groups_and_data_follow_and_those_of_later_versions_may_be_missing(tmp_path: Path) -> None:
    legs, more, note = loaded(tmp_path).messages["Deal"].parts
    assert isinstance(legs, SourceGroup)
    assert (legs.size, legs.header_size) == (16, 4)
    assert isinstance(legs.count, Place)
    assert isinstance(legs.entry_size, Place)
    assert (legs.count.offset, legs.entry_size.offset) == (2, 0)
    assert list(legs.fields) == ["legs_price", "side"], "the message has a field of the same name"
    assert isinstance(note, SourceData)
    assert [part.since_version for part in (legs, more, note)] == [0, 2, 2]


def test_nested_groups_and_texts_in_groups_belong_to_their_entries(tmp_path: Path) -> None:
    (outer,) = loaded(tmp_path).messages["Nested"].parts
    assert isinstance(outer, SourceGroup)
    inner = outer.groups["h"]
    assert list(inner.fields) == ["h_a", "h_b"], "the enclosing entry and message have fields of the same names"
    assert list(inner.data) == ["note"]


def test_a_later_version_may_add_groups_to_entries(tmp_path: Path) -> None:
    (outer,) = loaded(tmp_path).messages["Grown"].parts
    assert isinstance(outer, SourceGroup)
    assert (outer.since_version, outer.groups["h"].since_version) == (0, 2)


def test_the_format_has_the_schemas_byte_order(tmp_path: Path) -> None:
    venue = loaded(tmp_path, order="bigEndian")
    assert venue.framing.is_big_endian
    assert venue.messages["Deal"].fields["price"].is_big_endian


@pytest.mark.parametrize(
    ("framing", "messages", "reason"),
    [
        ("", MESSAGE, r"format\.xml:1: .*need a <framing> with blockLength"),
        (
            FRAMING.replace(' version="uint16" versionOffset="8"', ""),
            MESSAGE,
            "later versions extended 'Deal': give <framing> version and versionOffset",
        ),
        (FRAMING.replace('type="uint16"', 'type="uint8"'), MESSAGE.replace('"7" block', '"700" block'), "does not fit"),
        (FRAMING, MESSAGE.replace('"code" id="3"', '"when_year" id="3"'), "two values would have the name 'when_year'"),
        (FRAMING, "", "at least one <message>"),
        (FRAMING, MESSAGE + "<x/>", r"venue\.xml:\d+: <x> is not allowed in <messageSchema>"),
    ],
)
def test_an_unusable_schema_is_refused_with_file_line_and_reason(
    tmp_path: Path, framing: str, messages: str, reason: str
) -> None:
    with pytest.raises(DocumentError, match=reason):
        loaded(tmp_path, framing, messages)


def test_a_missing_schema_is_named_in_the_error(tmp_path: Path) -> None:
    path = tmp_path / "format.xml"
    path.write_text(f'<sourceFormat name="venue" sbe="venue.xml">{FRAMING}</sourceFormat>')
    with pytest.raises(DocumentError, match=r"format\.xml:1: sbe='venue\.xml': .*No such file"):
        load_source_format(path)
