"""Bad message schemas are refused with file, line and reason; generated ones round-trip; another decoder agrees."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sbedecoder import MDPMessageFactory, MDPSchema, SBEParser

from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.client_lib.messages.sbe_reading import EMPTY_ENTRIES_MAX, SbeReader, SbeReadError
from tandemfeed.client_lib.messages.sbe_writing import SbeWriteError, SbeWriter
from tandemfeed.feedcore.documents.message_model import PREFIX_SIZE, load_message_model
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.feedcore.sbe import load_schema
from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME
from tests.feedcore.sbe.sbe_generation import Generated, generated
from tests.feedcore.sbe.sbe_material import HEADER, schema_text

FIELD = '<message name="M" id="1"><field name="f" id="1" type="T"/></message>'


def one_type(text: str) -> bytes:
    return schema_text(text, FIELD, version=3)


def one_message(text: str) -> bytes:
    return schema_text("", f'<message name="M" id="1">{text}</message>', version=3)


BAD = [
    (b"<messageSchema>", "not well-formed XML"),
    (b"<schema/>", "must be SBE's <messageSchema>"),
    (b"<messageSchema/>", "unknown type 'messageHeader'"),
    (schema_text("", "", byte_order="middleEndian"), "byteOrder='middleEndian' must be"),
    (schema_text("", "", header='<type name="messageHeader" primitiveType="uint8"/>'), "must be a <composite>"),
    (schema_text("", "", header=HEADER.replace('name="version"', 'name="edition"')), "has no member 'version'"),
    (schema_text("", "", header=HEADER.replace("uint16", "int16", 1)), "blockLength must be an unsigned integer"),
    (schema_text("", "<group/>"), "<group> is not allowed in <messageSchema>"),
    (schema_text("", '<include href="a.xml"/>'), "only a schema in a file can include others"),
    (schema_text("", '<include href="ftp://x/a.xml"/>'), "only files in the schema's folder"),
    (one_type(""), "unknown type 'T'"),
    (one_type('<typ name="T"/>'), "<typ> is not allowed in <types>"),
    (one_type('<type name="T" primitiveType="int31"/>'), "unknown primitiveType 'int31'"),
    (one_type('<type name="T"/>'), "needs the attribute 'primitiveType'"),
    (one_type('<type name="T" primitiveType="int8"/>' * 2), "type 'T' is defined twice"),
    (one_type('<type name="T" primitiveType="int8" presense="optional"/>'), "did you mean 'presence'"),
    (one_type('<type name="T" primitiveType="int8" presence="maybe"/>'), "presence='maybe' is not one of"),
    (
        one_type('<type name="T" primitiveType="uint16" presence="optional" nullValue="65536"/>'),
        "is not a value of uint16",
    ),
    (one_type('<type name="T" primitiveType="uint8" maxValue="x"/>'), "maxValue='x' is not a value of uint8"),
    (one_type('<type name="T" primitiveType="uint8" minValue="5" maxValue="4"/>'), "is above maxValue"),
    (one_type('<type name="T" primitiveType="uint8" presence="constant"/>'), "needs the value as the element's text"),
    (one_type('<type name="T" primitiveType="uint8" presence="constant">256</type>'), "'256' is not a value of uint8"),
    (one_type('<type name="T" primitiveType="char" length="1" presence="constant">AB</type>'), "longer than 1"),
    (one_type('<type name="T" primitiveType="char" length="8" characterEncoding="EBCDID"/>'), "is unknown"),
    (one_type('<type name="T" primitiveType="char" length="0"/>'), "variable length and is for <data> only"),
    (one_type('<type name="T" primitiveType="char" length="-1"/>'), "length=-1 is negative"),
    (one_type('<type name="T" primitiveType="int8" sinceVersion="4"/>'), "above the schema's version 3"),
    (one_type('<type name="T" primitiveType="int8" deprecated="4"/>'), "above the schema's version 3"),
    (one_type('<enum name="T" encodingType="U"/>'), "unknown type 'U'"),
    (one_type('<enum name="T" encodingType="double"><validValue name="a">1</validValue></enum>'), "char or an integer"),
    (one_type('<enum name="T" encodingType="uint8"/>'), "at least one <validValue>"),
    (one_type('<enum name="T" encodingType="uint8"><choice name="a">1</choice></enum>'), "it takes <validValue>"),
    (one_type('<enum name="T" encodingType="uint8"><validValue name="a"/></enum>'), "'a' has no value"),
    (
        one_type('<enum name="T" encodingType="uint8"><validValue name="a">256</validValue></enum>'),
        "not a value of uint8",
    ),
    (
        one_type('<enum name="T" encodingType="char">' + '<validValue name="a">1</validValue>' * 2 + "</enum>"),
        "'a' is defined twice",
    ),
    (
        one_type(
            '<enum name="T" encodingType="char"><validValue name="a">1</validValue>'
            '<validValue name="b">1</validValue></enum>'
        ),
        "value '1' is already 'a'",
    ),
    (one_type('<set name="T" encodingType="int8"><choice name="a">1</choice></set>'), "unsigned integer"),
    (one_type('<set name="T" encodingType="uint8"><choice name="a">8</choice></set>'), "bit 8 does not exist in uint8"),
    (one_type('<composite name="T"/>'), "at least one member"),
    (one_type('<composite name="T"><ref name="t" type="T"/></composite>'), "type 'T' contains itself: T -> T"),
    (one_type('<composite name="T"><group name="t"/></composite>'), "<group> is not allowed in a composite"),
    (
        one_type(
            '<composite name="T"><type name="a" primitiveType="int32"/>'
            '<type name="b" primitiveType="int8" offset="3"/></composite>'
        ),
        "offset=3 overlaps the previous member, which ends at 4",
    ),
    (one_message('<field name="f" id="1" type="int8"/>' * 2), "field 'f' is defined twice"),
    (one_message('<field name="f" type="int8"/>'), "needs the attribute 'id'"),
    (one_message('<field name="f" id="x" type="int8"/>'), "is not an integer"),
    (one_message('<field name="f" id="1" type="int8"/><field name="g" id="2" type="int8" offset="0"/>'), "overlaps"),
    (one_message('<field name="f" id="1" type="int8" sinceVersion="9"/>'), "above the schema's version"),
    (one_message('<field name="f" id="1" type="int8" presence="constant"/>'), "needs the value"),
    (one_message('<field name="f" id="1" type="int8" presence="constant" valueRef="E.a"/>'), "unknown type 'E'"),
    (
        one_message('<field name="f" id="1" type="int8" presence="constant" valueRef="int8.a"/>'),
        "is not a value of an <enum>",
    ),
    (one_message('<group name="g" id="1"/><field name="f" id="2" type="int8"/>'), "must come before the groups"),
    (one_message('<group name="g" id="1" dimensionType="messageHeader"/>'), "has no member 'numInGroup'"),
    (one_message('<data name="d" id="1" type="int8"/>'), "must be a composite of a length and the data"),
    (one_message("<fields/>"), "<fields> is not allowed in <message>"),
    (
        schema_text("", '<message name="M" id="1" blockLength="3"><field name="f" id="1" type="int32"/></message>'),
        "less",
    ),
    (schema_text("", '<message name="M" id="1"/><message name="N" id="1"/>'), "'N' (id 1) is defined twice"),
    (
        schema_text(
            '<type name="T" primitiveType="int8" semanticType="Qty"/>',
            '<message name="M" id="1"><field name="f" id="1" type="T" semanticType="Price"/></message>',
        ),
        "semanticType='Price', but its type 'T' has 'Qty'",
    ),
    (
        schema_text(
            '<type name="T" primitiveType="int8" presence="optional"/>',
            '<message name="M" id="1"><field name="f" id="1" type="T" presence="required"/></message>',
        ),
        "presence='required', but its type 'T' is optional",
    ),
]


@pytest.mark.parametrize(("text", "reason"), BAD, ids=[reason for _, reason in BAD])
def test_a_bad_schema_is_refused_with_file_line_and_reason(text: bytes, reason: str) -> None:
    with pytest.raises(DocumentError, match=rf"^model\.xml:[1-9]\d*: .*{re.escape(reason)}"):
        load_schema(text, "model.xml")


def test_an_error_in_an_included_document_names_that_document(tmp_path: Path) -> None:
    (tmp_path / "types.xml").write_text('<types>\n<type name="T" primitiveType="int31"/></types>')
    path = tmp_path / "schema.xml"
    path.write_text(f'<messageSchema id="1"><include href="types.xml"/><types>{HEADER}</types>{FIELD}</messageSchema>')
    with pytest.raises(DocumentError, match=r"^types\.xml:2: unknown primitiveType"):
        load_schema(path)
    (tmp_path / "types.xml").write_text('<types><include href="types.xml"/></types>')
    with pytest.raises(DocumentError, match=r"does 'types\.xml' include itself"):
        load_schema(path)
    (tmp_path / "types.xml").unlink()
    with pytest.raises(DocumentError, match=r"schema\.xml:1: href='types.xml': No such file"):
        load_schema(path)


@settings(max_examples=150)
@given(generated())
def test_reading_a_written_message_returns_its_values(case: Generated) -> None:
    reader, writer = SbeReader(case.schema), SbeWriter(case.schema)
    written = writer.write("M", case.values)
    message = reader.read(b"###" + written + b"##", 3)
    assert message.fields == case.values
    assert message.size == len(written)
    assert writer.write("M", message.fields) == written


# The test above found that the reader refused all groups whose entries have only constants and so take no bytes.
CONSTANTS_ALONE = schema_text(
    '<type name="fixed" primitiveType="char" presence="constant">XEUR</type>',
    """
<message name="M" id="9"><field name="f0" id="0" type="int8"/>
  <group name="g0" id="0"><field name="f0" id="0" type="int8"/>
    <group name="g0" id="0"><field name="f0" id="0" type="fixed"/></group></group>
</message>""",
)


def test_entries_with_only_constants_are_read_back_although_they_take_no_bytes() -> None:
    schema = load_schema(CONSTANTS_ALONE)
    values = {"f0": 1, "g0": [{"f0": 2, "g0": [{"f0": "XEUR"}] * 2}, {"f0": 3, "g0": []}]}
    written = SbeWriter(schema).write("M", values)
    assert SbeReader(schema).read(written).fields == values


def test_the_number_of_entries_without_bytes_is_limited() -> None:
    schema = load_schema(CONSTANTS_ALONE)
    reader, writer = SbeReader(schema), SbeWriter(schema)
    half = {"f0": 2, "g0": [{"f0": "XEUR"}] * (EMPTY_ENTRIES_MAX // 2)}
    most = {"f0": 1, "g0": [half, half]}
    written = writer.write("M", most)
    assert reader.read(written).fields == most
    with pytest.raises(SbeWriteError, match=r"M\.g0\[2\]\.g0\[0\]: more than 8192 empty entries"):
        writer.write("M", {"f0": 1, "g0": [half, half, {"f0": 2, "g0": [{"f0": "XEUR"}]}]})
    with pytest.raises(SbeReadError, match="more than 8192 empty entries"):
        reader.read(written[:-2] + (EMPTY_ENTRIES_MAX // 2 + 1).to_bytes(2, "little"))


@settings(max_examples=80)
@given(generated(), st.data())
def test_damaged_messages_are_refused_or_read_within_their_bounds(case: Generated, data: st.DataObject) -> None:
    reader, written = SbeReader(case.schema), SbeWriter(case.schema).write("M", case.values)
    size = data.draw(st.integers(0, len(written) - 1))
    if reader.read(written).size == len(written):
        with pytest.raises(SbeReadError):
            reader.read(written[:size])
    damaged = bytearray(written)
    for place, value in data.draw(
        st.lists(st.tuples(st.integers(0, len(written) - 1), st.integers(0, 255)), max_size=4)
    ):
        damaged[place] = value
    with contextlib.suppress(SbeReadError):
        assert reader.read(damaged).size <= len(damaged)


@settings(max_examples=100)
@given(generated(is_fixed=True))
def test_numpy_and_the_reader_see_the_same_values(case: Generated) -> None:
    block = case.schema.messages["M"]
    assume(block.block_length)  # constants take no bytes
    written = SbeWriter(case.schema).write("M", case.values)
    header = case.schema.header.size
    rows = np.frombuffer(written[header:] * 3, block.dtype(case.schema.byte_order))
    assert len(rows) == 3
    for column in block.columns.values():
        value: Any = case.values[column.name.split(".")[0]]
        for part in column.name.split(".")[1:]:
            value = value[part] if value is not None else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            assert rows[2][column.name] == np.dtype(column.numpy_code("<")).type(value)
        elif isinstance(value, list):
            np.testing.assert_array_equal(rows[2][column.name], value)
        elif isinstance(value, str) and block.fields[column.name.split(".")[0]].type.name.startswith("text"):
            assert rows[2][column.name].decode("latin-1") == value
        elif value is None and column.null is not None and column.kind.is_integer:
            assert rows[2][column.name] == column.null


# A schema modelled on CME's: message-size prefix, group dimensions of 3 and of 8 bytes, constants, nulls.
VENUE = schema_text(
    """
<type name="CHAR" primitiveType="char"/>
<type name="Symbol" primitiveType="char" length="20"/>
<type name="Int8NULL" primitiveType="int8" presence="optional" nullValue="127"/>
<type name="uInt8NULL" primitiveType="uint8" presence="optional" nullValue="255"/>
<type name="EntryTrade" primitiveType="char" presence="constant">2</type>
<composite name="PRICE9">
  <type name="mantissa" primitiveType="int64" presence="optional" nullValue="9223372036854775807"/>
  <type name="exponent" primitiveType="int8" presence="constant">-9</type></composite>
<composite name="groupSize"><type name="blockLength" primitiveType="uint16"/>
  <type name="numInGroup" primitiveType="uint8"/></composite>
<composite name="groupSize8Byte"><type name="blockLength" primitiveType="uint16"/>
  <type name="numInGroup" primitiveType="uint8" offset="7"/></composite>
<enum name="Action" encodingType="uint8">
  <validValue name="New">0</validValue><validValue name="Change">1</validValue></enum>
<enum name="Side" encodingType="uInt8NULL">
  <validValue name="Buy">1</validValue><validValue name="Sell">2</validValue></enum>
<set name="Indicator" encodingType="uint8"><choice name="LastTrade">0</choice><choice name="End">7</choice></set>""",
    """
<message name="Trades" id="42" description="Trades" blockLength="11">
  <field name="TransactTime" id="60" type="uint64" offset="0"/>
  <field name="Indicator" id="5799" type="Indicator" offset="8"/>
  <group name="Entries" id="268" blockLength="48" dimensionType="groupSize">
    <field name="Price" id="270" type="PRICE9" offset="0"/>
    <field name="Size" id="271" type="int32" offset="8"/>
    <field name="Symbol" id="55" type="Symbol" offset="12"/>
    <field name="Level" id="1023" type="Int8NULL" offset="32"/>
    <field name="Aggressor" id="5797" type="Side" offset="33"/>
    <field name="UpdateAction" id="279" type="Action" offset="34"/>
    <field name="EntryType" id="269" type="EntryTrade"/>
  </group>
  <group name="Orders" id="37705" blockLength="16" dimensionType="groupSize8Byte">
    <field name="OrderId" id="37" type="uint64" offset="0"/>
    <field name="Quantity" id="37706" type="int32" offset="8"/>
  </group>
</message>""",
    version=9,
)

entries = st.fixed_dictionaries(
    {
        "Price": st.one_of(
            st.none(), st.integers(-(2**63) + 1, 2**63 - 2).map(lambda m: {"mantissa": m, "exponent": -9})
        ),
        "Size": st.integers(-(2**31) + 1, 2**31 - 1),
        "Symbol": st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20),
        "Level": st.one_of(st.none(), st.integers(-128, 126)),
        "Aggressor": st.sampled_from([None, "Buy", "Sell"]),
        "UpdateAction": st.sampled_from(["New", "Change"]),
    }
)
orders = st.fixed_dictionaries({"OrderId": st.integers(0, 2**64 - 2), "Quantity": st.integers(1, 10**6)})


@settings(max_examples=60)
@given(
    st.lists(entries, max_size=4), st.lists(orders, max_size=4), st.sampled_from([set(), {"End"}, {"End", "LastTrade"}])
)
def test_another_decoder_reads_our_messages_of_a_schema_modelled_on_cmes(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], book: list[dict[str, Any]], flags: set[str]
) -> None:
    path = tmp_path_factory.mktemp("venue") / "templates.xml"
    path.write_bytes(VENUE)
    values = {"TransactTime": 1_577_836_800_000_000_001, "Indicator": flags, "Entries": rows, "Orders": book}
    written = SbeWriter(load_schema(path)).write("Trades", values)
    theirs = MDPSchema()
    theirs.parse(str(path))
    message = next(
        SBEParser(MDPMessageFactory(theirs)).parse((len(written) + 2).to_bytes(2, "little") + written, offset=0)
    )
    assert (message.transact_time.value, message.version.value) == (values["TransactTime"], 9)
    assert message.indicator.raw_value == (0x80 if "End" in flags else 0) | ("LastTrade" in flags)
    assert message.entries.num_groups == len(rows)
    for ours, other in zip(rows, message.entries.repeating_groups, strict=True):
        price = ours["Price"]
        assert [part.value for part in other.price.parts] == [price["mantissa"] if price else None, -9]
        assert (other.size.value, other.symbol.value.rstrip("\0")) == (ours["Size"], ours["Symbol"])
        assert other.level.value == ours["Level"]
        assert other.aggressor.raw_value == {None: 255, "Buy": 1, "Sell": 2}[ours["Aggressor"]]
        assert (other.update_action.enumerant, other.entry_type.value) == (ours["UpdateAction"], "2")
    assert [(row.order_id.value, row.quantity.value) for row in message.orders.repeating_groups] == [
        (row["OrderId"], row["Quantity"]) for row in book
    ]


MODEL = schema_text(
    """
<enum name="Side" encodingType="char"><validValue name="Buy">B</validValue></enum>
<composite name="When"><type name="day" primitiveType="uint16"/><type name="ns" primitiveType="uint64"/></composite>
<composite name="Text"><type name="length" primitiveType="uint16"/>
  <type name="data" primitiveType="uint8" length="0" characterEncoding="UTF-8"/></composite>""",
    """
<message name="Deal" id="1">
  <field name="when" id="1" type="When"/><field name="side" id="2" type="Side"/>
  <field name="rate" id="3" type="double"/><field name="later" id="4" type="uint16" presence="optional"/>
</message>
<message name="News" id="2"><field name="side" id="1" type="Side"/><data name="text" id="2" type="Text"/></message>""",
)


def framed(message: bytes) -> bytes:
    return OUTPUT_FRAME.pack(OUTPUT_FRAME.size + len(message), 0) + message


def test_the_message_model_shows_fixed_messages_as_arrays_and_reads_the_others_one_by_one() -> None:
    decoder = Decoder(MODEL)
    model = decoder.model
    writer = SbeWriter(model.schema)
    deal = {"when": {"day": 20_000, "ns": 5}, "side": "Buy", "rate": 1.5, "later": None}
    deals, news = framed(writer.write("Deal", deal)) * 2, framed(writer.write("News", {"side": "Buy", "text": "né"}))
    (message, rows), (_, more) = model.arrays(deals + news + deals)
    assert (message.name, len(rows), len(more)) == ("Deal", 2, 2)
    assert list(message.columns) == ["when.day", "when.ns", "side", "rate", "later"]
    assert message.columns["later"].null == 65_535
    wire = {"when.day": 20_000, "when.ns": 5, "side": b"B", "rate": 1.5, "later": 65_535}
    assert list(decoder.messages(deals + news)) == [("Deal", wire)] * 2 + [("News", {"side": "Buy", "text": "né"})]
    assert decoder.read(deals[: len(deals) // 2]).fields == deal
    assert not model.schema.messages["News"].is_fixed


def test_an_older_model_still_reads_messages_that_a_newer_schema_made_longer() -> None:
    more = b'presence="optional"/><field name="n" id="9" type="int8"/>\n</message>'
    longer = MODEL.replace(b'presence="optional"/>\n</message>', more)
    assert longer != MODEL
    deal = {"when": {"day": 1, "ns": 5}, "side": "Buy", "rate": 1.5, "later": 3}
    frames = framed(SbeWriter(load_schema(longer)).write("Deal", deal | {"n": 4})) * 3
    ((_, rows),) = load_message_model(MODEL).arrays(frames)
    assert rows["later"].tolist() == [3, 3, 3]
    shorter = framed(SbeWriter(load_schema(MODEL)).write("Deal", deal))
    assert len(shorter) >= PREFIX_SIZE
    assert list(load_message_model(longer).arrays(shorter)) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (schema_text("", "", byte_order="bigEndian"), "only littleEndian"),
        (schema_text("", "", header=HEADER.replace("uint16", "uint32", 1)), "the message header of an output is"),
    ],
)
def test_a_model_that_no_output_frame_can_carry_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(DocumentError, match=rf"^message model:1: .*{reason}"):
        load_message_model(text)
