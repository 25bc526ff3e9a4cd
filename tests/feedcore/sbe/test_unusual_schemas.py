"""Schemas as exchanges and tools publish them: what the standard does not permit, but whose meaning is clear, is read.

Each schema is a minimal one of our own with one such feature; the messages are bytes written by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tandemfeed.client_lib.messages.sbe_reading import SbeReader
from tandemfeed.client_lib.messages.sbe_writing import SbeWriter
from tandemfeed.feedcore.documents.message_model import load_message_model
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.feedcore.sbe import load_schema
from tests.feedcore.sbe.sbe_material import HEADER, schema_text

FIELD = '<message name="M" id="1"><field name="f" id="1" type="T"{}/></message>'
HEADER_BYTES = "{:02x}00 0100 0100 0000"


def header_with(member: str, position: int = 4) -> str:
    """The standard's header with another member."""
    lines = HEADER.strip().splitlines()
    return "\n".join([*lines[: position + 1], member, *lines[position + 1 :]])


@pytest.mark.parametrize(
    ("types", "attributes", "body", "value", "warning"),
    [
        (
            '<enum name="T" encodingType="char"><validValue name="No"> </validValue>'
            '<validValue name="Yes">Y</validValue></enum>',
            "",
            "20",
            "No",
            "the value of 'No' is a blank",
        ),
        (
            '<type name="T" primitiveType="char" presence="constant"> </type>',
            "",
            "",
            " ",
            "the value of 'T' is a blank",
        ),
        (
            '<type name="Maybe" primitiveType="uint8" presence="optional"/>'
            '<enum name="T" encodingType="Maybe"><validValue name="Regular">39</validValue></enum>',
            ' presence="constant" valueRef="T.Regular"',
            "",
            "Regular",
            "field 'f' is constant, but its type 'T' is optional",
        ),
        (
            '<type name="T" primitiveType="int16" nullValue="-1"/>',
            ' presence="optional"',
            "ffff",
            None,
            "type 'T' is required: its nullValue applies only to optional fields",
        ),
        (
            '<type name="T" primitiveType="int16" nullValue="-1"/>',
            "",
            "ffff",
            -1,
            "type 'T' is required: its nullValue applies only to optional fields",
        ),
    ],
)
def test_an_unusual_type_is_read_with_a_warning(
    types: str, attributes: str, body: str, value: Any, warning: str
) -> None:
    schema = load_schema(schema_text(types, FIELD.format(attributes)), "venue.xml")
    octets = bytes.fromhex(body)
    message = bytes.fromhex(HEADER_BYTES.format(len(octets))) + octets
    assert SbeReader(schema).read(message).fields == {"f": value}
    (given,) = schema.warnings
    assert given.startswith("venue.xml:")
    assert given.endswith(warning)


@pytest.mark.parametrize(
    ("member", "octets", "value"),
    [
        (
            '<set name="flags" encodingType="uint8"><choice name="resent">0</choice></set>',
            "01",
            frozenset({"resent"}),
        ),
        (
            '<composite name="flags"><type name="a" primitiveType="uint16"/><type name="b" primitiveType="int8"/>'
            "</composite>",
            "0500ff",
            {"a": 5, "b": -1},
        ),
        ('<type name="flags" primitiveType="char" length="2"/>', "4f4b", "OK"),
        ('<type name="flags" primitiveType="double"/>', "000000000000f83f", 1.5),
        ('<type name="flags" primitiveType="uint32"/>', "07000000", 7),
        ('<type name="flags" primitiveType="uint8" presence="constant">9</type>', "", 9),
    ],
)
@pytest.mark.parametrize("position", [0, 2, 4])
def test_a_header_may_have_other_members(member: str, octets: str, value: Any, position: int) -> None:
    message = '<message name="M" id="1"><field name="f" id="1" type="uint8"/></message>'
    schema = load_schema(schema_text("", message, header=header_with(member, position)), "venue.xml")
    parts = ["0100", "0100", "0100", "0000"]
    parts.insert(position, octets)
    read = SbeReader(schema).read(bytes.fromhex("".join(parts) + "2a"))
    assert (read.fields, read.header["flags"], read.header["templateId"]) == ({"f": 42}, value, 1)
    assert "messageHeader also has flags: readers return it" in schema.warnings[-1]
    with pytest.raises(DocumentError, match="the message header of an output is"):
        load_message_model(schema_text("", message, header=header_with(member, position)))


def test_a_constant_of_the_header_is_not_in_the_message() -> None:
    constant = HEADER.replace(
        '<type name="schemaId" primitiveType="uint16"/>',
        '<type name="schemaId" primitiveType="uint16" presence="constant">9</type>',
    )
    message = '<message name="M" id="1"><field name="f" id="1" type="uint8"/></message>'
    schema = load_schema(schema_text("", message, header=constant, number=1))
    read = SbeReader(schema).read(bytes.fromhex("0100 0100 0000 2a"))
    assert (read.fields, read.header["schemaId"], read.size) == ({"f": 42}, 9, 7)
    assert SbeWriter(schema).write("M", {"f": 42}) == bytes.fromhex("0100 0100 0000 2a")
    assert "messageHeader.schemaId is a constant, 9" in schema.warnings[0]


def dimension(block_length: int, count: str = "") -> str:
    return f"""<composite name="Dimension">
      <type name="blockLength" primitiveType="uint16" presence="constant">{block_length}</type>
      <type name="numInGroup" primitiveType="uint8" {count}</composite>"""


GROUP = '<message name="M" id="1"><group name="g" id="1" dimensionType="Dimension">{}</group></message>'
ENTRY = '<field name="n" id="2" type="int16"/>'


def test_a_group_whose_dimensions_have_a_constant_block_length_is_read_and_converted(tmp_path: Path) -> None:
    text = schema_text(dimension(2, "/>"), GROUP.format(ENTRY))
    message = bytes.fromhex(HEADER_BYTES.format(0) + "02 0100 0200")
    assert SbeReader(load_schema(text)).read(message).fields == {"g": [{"n": 1}, {"n": 2}]}
    (tmp_path / "venue.xml").write_bytes(text)
    document = tmp_path / "format.xml"
    document.write_text(
        '<sourceFormat name="venue" sbe="venue.xml"><framing headerSize="10" length="uint16" type="uint16"'
        ' typeOffset="4" blockLength="uint16" blockLengthOffset="2"/></sourceFormat>'
    )
    loaded = load_source_format(document)
    group = loaded.messages["M"].groups["g"]
    assert (group.header_size, group.entry_size, group.size) == (1, None, 2)
    assert any("Dimension.blockLength is a constant, 2" in warning for warning in loaded.warnings)


def test_constant_dimensions_that_no_message_could_follow_are_refused() -> None:
    with pytest.raises(DocumentError, match="have the constant blockLength 3, its entries have 2 bytes"):
        load_schema(schema_text(dimension(3, "/>"), GROUP.format(ENTRY)))
    with pytest.raises(DocumentError, match="numInGroup of 'g' is a constant; messages must contain it"):
        load_schema(schema_text(dimension(2, 'presence="constant">2</type>'), GROUP.format(ENTRY)))


@pytest.mark.parametrize("kind", ["int8", "uint8", "char"])
def test_variable_data_may_be_any_octets(kind: str) -> None:
    types = f"""<composite name="Text"><type name="length" primitiveType="uint8"/>
      <type name="varData" primitiveType="{kind}"/></composite>"""
    schema = load_schema(schema_text(types, '<message name="M" id="1"><data name="d" id="1" type="Text"/></message>'))
    value = SbeReader(schema).read(bytes.fromhex(HEADER_BYTES.format(0) + "02 ff41")).fields["d"]
    assert value == ("\udcffA" if kind == "char" else b"\xffA")
    assert len(schema.warnings) == (kind == "int8")


def test_a_value_of_more_white_space_is_refused() -> None:
    for text in ("", "  ", "\n"):
        types = f'<enum name="T" encodingType="char"><validValue name="No">{text}</validValue></enum>'
        with pytest.raises(DocumentError, match="'No' has no value"):
            load_schema(schema_text(types, FIELD.format("")))


def test_an_ordinary_schema_has_no_warnings() -> None:
    assert load_schema(schema_text('<type name="T" primitiveType="int8"/>', FIELD.format(""))).warnings == ()
