"""SBE as in the FIX standard: its worked examples, and messages of other implementations, match byte for byte."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from tandemfeed.client_lib.messages.sbe_reading import SbeReader, SbeReadError, Unlisted, as_decimal
from tandemfeed.client_lib.messages.sbe_writing import SbeWriteError, SbeWriter
from tandemfeed.feedcore.sbe import load_schema
from tests.feedcore.sbe.sbe_framing import add_framing, remove_framing
from tests.feedcore.sbe.sbe_material import COMMON_TYPES, COUNTING_HEADER, ORDERS, schema_text
from tests.real_data import shared_file

ORDER_BYTES = bytes.fromhex(
    "00000044eb50" + "360063005b000000" + "4f52443030303031" + "4143435430310000" + "47454d3400000000" + "31"
    "8016b33b13652915" + "07000000" + "32" + "1a85010000000000" + "0000000000000080"
)  # fmt: skip
REPORT_BYTES = bytes.fromhex(
    "00000054eb50" + "2a0062005b000000" + "4f30303030303031" + "4558454330303030" + "4631" + "47454d3400000000"
    "de0706ffff" + "31" + "01000000" + "06000000" + "753e" + "0c000200"
    "1a85010000000000" + "02000000" + "2485010000000000" + "04000000"
)  # fmt: skip
REJECT_BYTES = bytes.fromhex("00000040eb50" + "090061005b000000" + "4f52443030303031" + "06" + "2700") + (
    b"Not authorized to trade that instrument"
)


def price(mantissa: int) -> dict[str, int]:
    return {"mantissa": mantissa, "exponent": -3}


EXAMPLES = [
    (
        ORDER_BYTES,
        "NewOrderSingle",
        {
            "ClOrdId": "ORD00001",
            "Account": "ACCT01",
            "Symbol": "GEM4",
            "Side": "Buy",
            "TransactTime": 0x152965133BB31680,
            "OrderQty": {"mantissa": 7, "exponent": 0},
            "OrdType": "Limit",
            "Price": price(99_610),
            "StopPx": None,
        },
    ),
    (
        REPORT_BYTES,
        "ExecutionReport",
        {
            "OrderID": "O0000001",
            "ExecID": "EXEC0000",
            "ExecType": "Trade",
            "OrdStatus": "PartialFilled",
            "Symbol": "GEM4",
            "MaturityMonthYear": {"year": 2014, "month": 6, "day": None, "week": None},
            "Side": "Buy",
            "LeavesQty": {"mantissa": 1, "exponent": 0},
            "CumQty": {"mantissa": 6, "exponent": 0},
            "TradeDate": 15_989,
            "Fills": [
                {"FillPx": price(99_610), "FillQty": {"mantissa": 2, "exponent": 0}},
                {"FillPx": price(99_620), "FillQty": {"mantissa": 4, "exponent": 0}},
            ],
        },
    ),
    (
        REJECT_BYTES,
        "BusinessMessageReject",
        {"RefId": "ORD00001", "Reason": "NotAuthorized", "Text": "Not authorized to trade that instrument"},
    ),
]


@pytest.mark.parametrize(("data", "name", "values"), EXAMPLES, ids=[name for _, name, _ in EXAMPLES])
def test_the_examples_of_the_standard_match_byte_for_byte(data: bytes, name: str, values: dict[str, object]) -> None:
    schema = load_schema(ORDERS)
    message = SbeReader(schema).read(remove_framing(data, schema))
    assert (message.name, message.fields, message.size) == (name, values, len(data) - 6)
    assert add_framing(SbeWriter(schema).write(name, values), schema) == data


ONE_FIELD = [  # type, value, bytes: the examples of the standard's chapter on field encoding
    ('<type name="T" primitiveType="uint32"/>', 10_000, "10270000"),
    ('<type name="T" primitiveType="uint8" maxValue="6" presence="optional" nullValue="255"/>', 3, "03"),
    ('<type name="T" primitiveType="uint64"/>', 100_000_000_000, "00e8764817000000"),
    ('<type name="T" primitiveType="uint16"/>', 10_000, "1027"),
    ('<type name="T" primitiveType="uint32" presence="optional"/>', None, "ffffffff"),
    (
        '<composite name="T"><type name="mantissa" primitiveType="int64"/><type name="exponent" primitiveType="int8"/>'
        "</composite>",
        {"mantissa": 12_345, "exponent": -2},
        "3930000000000000fe",
    ),
    ('<type name="T" primitiveType="double"/>', 255.678, "04560e2db2f56f40"),
    ('<type name="T" primitiveType="char"/>', "A", "41"),
    ('<type name="T" primitiveType="char" length="6"/>', "MSFT", "4d5346540000"),
    (
        '<composite name="T" semanticType="MonthYear">'
        '<type name="year" primitiveType="uint16" presence="optional" nullValue="65535"/>'
        '<type name="month" primitiveType="uint8" minValue="1" maxValue="12"/>'
        '<type name="day" primitiveType="uint8" presence="optional" nullValue="255"/>'
        '<type name="week" primitiveType="uint8" presence="optional" nullValue="255"/></composite>',
        {"year": 2014, "month": 6, "day": None, "week": 3},
        "de0706ff03",
    ),
    (
        '<enum name="Unit" encodingType="uint8"><validValue name="nanosecond">9</validValue></enum>'
        '<composite name="T"><type name="time" primitiveType="uint64"/>'
        '<type name="unit" primitiveType="uint8" presence="constant" valueRef="Unit.nanosecond"/></composite>',
        {"time": 1728051442944000000, "unit": 9},
        "004047baa145fb17",
    ),
    ('<type name="T" primitiveType="uint16" semanticType="UTCDateOnly"/>', 20_000, "204e"),
    (
        '<composite name="T"><type name="time" primitiveType="uint64"/><type name="unit" primitiveType="uint8"/>'
        '<type name="timezoneHour" primitiveType="int8" minValue="-12" maxValue="14"/>'
        '<type name="timezoneMinute" primitiveType="uint8" maxValue="59"/></composite>',
        {"time": 1379406600000000000, "unit": 9, "timezoneHour": -6, "timezoneMinute": 0},
        "0050d489fea2241309fa00",
    ),
    (
        '<enum name="T" encodingType="uint8"><validValue name="false">0</validValue>'
        '<validValue name="true">1</validValue><validValue name="nullValue">255</validValue></enum>',
        "nullValue",
        "ff",
    ),
    (
        '<set name="T" encodingType="uint8"><choice name="Bankrupt">0</choice>'
        '<choice name="Pending delisting">1</choice><choice name="Restricted">2</choice></set>',
        frozenset({"Bankrupt", "Pending delisting"}),
        "03",
    ),
    ('<type name="T" primitiveType="uint8" length="4"/>', b"MSFT", "4d534654"),
]


@pytest.mark.parametrize(("kind", "value", "wire"), ONE_FIELD, ids=[wire for _, _, wire in ONE_FIELD])
def test_the_field_encodings_of_the_standard_match_byte_for_byte(kind: str, value: object, wire: str) -> None:
    schema = load_schema(schema_text(kind, '<message name="M" id="1"><field name="f" id="1" type="T"/></message>'))
    written = SbeWriter(schema).write("M", {"f": value})
    assert written[8:].hex() == wire
    assert SbeReader(schema).read(written).fields == {"f": value}


def test_a_big_endian_field_has_the_same_bytes_reversed() -> None:
    both = [
        load_schema(
            schema_text("", '<message name="M" id="258"><field name="f" id="1" type="uint32"/></message>', 0, o)
        )
        for o in ("littleEndian", "bigEndian")
    ]
    little, big = (SbeWriter(schema).write("M", {"f": 0x01020304}) for schema in both)
    assert big[8:] == little[8:][::-1]
    assert big[:8].hex() == "0004010200010000"
    assert SbeReader(both[1]).read(big).fields == {"f": 0x01020304}
    assert both[1].messages["M"].dtype(">")["f"] == np.dtype(">u4")


def test_variable_length_text_follows_its_length() -> None:
    types = (
        '<composite name="V"><type name="length" primitiveType="uint16"/>'
        '<type name="data" primitiveType="uint8" length="0"/></composite>'
    )
    schema = load_schema(schema_text(types, '<message name="M" id="1"><data name="d" id="1" type="V"/></message>'))
    assert SbeWriter(schema).write("M", {"d": b"MSFT"})[8:].hex() == "04004d534654"


def test_group_dimensions_give_the_counts_of_nested_groups_and_data() -> None:
    types = (
        '<composite name="V"><type name="length" primitiveType="uint8"/>'
        '<type name="varData" primitiveType="uint8" length="0"/></composite>'
    )
    message = (
        '<message name="M" id="1"><group name="g" id="1" blockLength="55"><field name="a" id="2" type="int8"/>'
        '<group name="h" id="3"><field name="b" id="4" type="int8"/></group>'
        '<data name="d" id="5" type="V"/><data name="e" id="6" type="V"/></group></message>'
    )
    schema = load_schema(schema_text(types, message, header=COUNTING_HEADER))
    entry = {"a": 1, "h": [], "d": b"", "e": b"x"}
    written = SbeWriter(schema).write("M", {"g": [entry] * 3})
    assert written[:12].hex() == "000001000100000001000000"
    assert written[12:20].hex() == "3700030001000200", "as in the standard's example"
    assert SbeReader(schema).read(written).fields == {"g": [entry] * 3}


def test_a_decimal_is_written_from_a_number_and_read_as_one() -> None:
    schema = load_schema(ORDERS)
    values = EXAMPLES[0][2] | {"Price": Decimal("99.61"), "OrderQty": 7}
    assert add_framing(SbeWriter(schema).write("NewOrderSingle", values), schema) == ORDER_BYTES
    assert as_decimal(price(99_610)) == Decimal("99.610")
    with pytest.raises(SbeWriteError, match=r"NewOrderSingle\.Price: 99\.6105 has more places"):
        SbeWriter(schema).write("NewOrderSingle", values | {"Price": Decimal("99.6105")})


def test_the_reference_tools_car_message_is_read_correctly_and_written_back_byte_for_byte(tmp_path: Path) -> None:
    data = shared_file("sbe/rust__car_example_baseline_data.sbe").read_bytes()
    (tmp_path / "schema.xml").write_bytes(shared_file("sbe/resources__example-schema.xml").read_bytes())
    (tmp_path / "common-types.xml").write_bytes(COMMON_TYPES)
    schema = load_schema(tmp_path / "schema.xml")
    message = SbeReader(schema).read(data)
    assert message.size == len(data) == 207
    car = message.fields
    assert (car["serialNumber"], car["modelYear"], car["available"], car["code"]) == (1234, 2013, "T", "A")
    assert (car["someNumbers"], car["vehicleCode"]) == ([1, 2, 3, 4], "abcdef")
    assert (car["extras"], car["discountedModel"]) == (frozenset({"sportsPack", "cruiseControl"}), "C")
    assert car["engine"] == {
        "capacity": 2000,
        "numCylinders": 4,
        "maxRpm": 9000,
        "manufacturerCode": "123",
        "fuel": "Petrol",
        "efficiency": 35,
        "boosterEnabled": "T",
        "booster": {"BoostType": "NITROUS", "horsePower": 200},
    }
    figures = [(row["speed"], row["usageDescription"]) for row in car["fuelFigures"]]
    assert figures == [(30, "Urban Cycle"), (55, "Combined Cycle"), (75, "Highway Cycle")]
    assert math.isclose(car["fuelFigures"][0]["mpg"], 35.9, rel_tol=1e-6)
    assert [row["octaneRating"] for row in car["performanceFigures"]] == [95, 99]
    assert [row["mph"] for row in car["performanceFigures"][1]["acceleration"]] == [30, 60, 100]
    assert (car["manufacturer"], car["model"], car["activationCode"]) == ("Honda", "Civic VTi", "abcdef")
    assert SbeWriter(schema).write("Car", car) == data


@pytest.mark.parametrize(
    ("file", "message_count"),
    [
        ("templates_FixBinary.xml", 29),
        ("spot_1_0.xml", 67),
        ("spot_3_2.xml", 86),
        ("stream_1_0.xml", 4),
        ("spot-fixsbe-1_1.xml", 29),
    ],
)
def test_exchanges_schemas_load_unchanged(file: str, message_count: int) -> None:
    schema = load_schema(shared_file(file))
    assert len(schema.messages) == message_count
    SbeReader(schema)
    SbeWriter(schema)


@pytest.mark.parametrize(
    "name", ["execution_report_event", "outbound_account_position_event", "web_socket_response"], ids=str
)
def test_an_exchanges_payloads_decode_to_their_published_values(name: str) -> None:
    schema = load_schema(shared_file("spot_3_2.xml"))
    for number in (1, 2):
        expected = json.loads(shared_file(f"sbe-binance/{name}_{number}.metadata.json").read_text())["fixture"]
        data = shared_file(f"sbe-binance/{name}_{number}.sbe").read_bytes()
        message = SbeReader(schema).read(data)
        header = message.header
        assert expected["sbe_header"] == {
            "block_length": header["blockLength"],
            "template_id": header["templateId"],
            "schema_id": header["schemaId"],
            "version": header["version"],
        }
        # Identifiers in these recordings were replaced by others of a different length, which once left a stray byte.
        assert message.size in (len(data), expected["bytes"]), "every byte belongs to a field"
        assert SbeWriter(schema).write(message.name, message.fields) == data[: message.size]


def test_a_field_newer_than_the_message_reads_as_none() -> None:
    old = load_schema(schema_text("", '<message name="M" id="1"><field name="a" id="1" type="int8"/></message>'))
    new_message = (
        '<message name="M" id="1"><field name="a" id="1" type="int8"/>'
        '<field name="b" id="2" type="int32" sinceVersion="1"/>'
        '<group name="g" id="3" sinceVersion="1"><field name="c" id="4" type="int8"/></group></message>'
    )
    new = load_schema(schema_text("", new_message, version=1))
    written = SbeWriter(old).write("M", {"a": 5})
    assert SbeReader(new).read(written).fields == {"a": 5, "b": None, "g": []}
    newer = SbeWriter(new).write("M", {"a": 5, "b": 6, "g": []})
    assert SbeReader(old).read(newer).fields == {"a": 5}


def test_groups_of_a_newer_schema_are_skipped_by_their_counts() -> None:
    types = (
        '<composite name="V"><type name="length" primitiveType="uint8"/>'
        '<type name="varData" primitiveType="uint8" length="0"/></composite>'
    )
    old_group = '<group name="g" id="1"><field name="a" id="2" type="int8"/>{inner}</group>'
    inner = (
        '<group name="n" id="7" sinceVersion="1"><field name="x" id="8" type="int16"/>'
        '<data name="y" id="9" type="V"/></group>'
    )
    message = '<message name="M" id="1">{group}{more}<data name="d" id="5" type="V"/></message>'
    old = load_schema(
        schema_text(types, message.format(group=old_group.format(inner=""), more=""), 0, header=COUNTING_HEADER)
    )
    more = '<group name="k" id="10" sinceVersion="1"><field name="z" id="11" type="int64"/></group>'
    new = load_schema(
        schema_text(types, message.format(group=old_group.format(inner=inner), more=more), 1, header=COUNTING_HEADER)
    )
    nested = [{"x": 1, "y": b"abc"}, {"x": 2, "y": b""}]
    values = {"g": [{"a": 1, "n": nested}, {"a": 2, "n": []}], "k": [{"z": 3}, {"z": 4}], "d": b"end"}
    with pytest.raises(SbeReadError, match="this schema has no data length"):
        SbeReader(old).read(SbeWriter(new).write("M", values))
    values["g"][0]["n"] = []  # type: ignore[index]
    assert SbeReader(old).read(SbeWriter(new).write("M", values)).fields == {"g": [{"a": 1}, {"a": 2}], "d": b"end"}


def test_a_value_that_the_schema_does_not_list_is_returned_unchanged() -> None:
    schema = load_schema(ORDERS)
    data = bytearray(remove_framing(ORDER_BYTES, schema))
    data[8 + 24] = ord("9")
    fields = SbeReader(schema).read(data).fields
    assert fields["Side"] == Unlisted(ord("9"))
    assert SbeWriter(schema).write("NewOrderSingle", fields) == bytes(data)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"Side": "Hold"}, r"NewOrderSingle\.Side: 'Hold' is none of Buy, Sell"),
        ({"Side": None}, "Side: None is none of"),
        ({"ClOrdId": "ORD000001"}, "takes 9 octets, it has 8"),
        ({"ClOrdId": "é"}, "cannot be written in ascii"),
        ({"OrderQty": {"mantissa": 2**31}}, r"OrderQty\.mantissa: 2147483648 is not in"),
        ({"OrderQty": None}, "OrderQty is required"),
        ({"TransactTime": None}, "TransactTime is required"),
        ({"TransactTime": 2**64 - 1}, "is its null"),
        ({"TransactTime": "noon"}, "'noon' is not a number"),
        ({"Price": {"mantisa": 5}}, "has no member 'mantisa'"),
        ({"Prise": 5}, "has no field 'Prise'"),
    ],
)
def test_a_value_that_the_schema_forbids_is_not_written(change: dict[str, object], reason: str) -> None:
    with pytest.raises(SbeWriteError, match=reason):
        SbeWriter(load_schema(ORDERS)).write("NewOrderSingle", EXAMPLES[0][2] | change)


def test_messages_that_are_too_short_or_of_another_schema_are_refused() -> None:
    schema = load_schema(ORDERS)
    reader = SbeReader(schema)
    for data, _, _ in EXAMPLES:
        message = bytes(remove_framing(data, schema))
        for size in range(len(message)):
            with pytest.raises(SbeReadError, match=r"needs \d+ bytes, \d+ are left"):
                reader.read(message[:size])
    for place, reason in ((2, "no message with id"), (4, "has schema id")):
        wrong = bytearray(message)
        wrong[place] ^= 1
        with pytest.raises(SbeReadError, match=reason):
            reader.read(wrong)
    short = bytearray(message)
    short[0] = 8
    with pytest.raises(SbeReadError, match="Reason ends at 9, the block has 8 bytes"):
        reader.read(short)
    for wrong_frame in (b"\0" * 5, ORDER_BYTES[:4] + b"\x5b\xe0" + ORDER_BYTES[6:], ORDER_BYTES[:-1]):
        with pytest.raises(SbeReadError, match="framing header"):
            remove_framing(wrong_frame, schema)


def test_a_schema_includes_documents_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "common.xml").write_bytes(COMMON_TYPES)
    path = tmp_path / "schema.xml"
    path.write_text(
        '<messageSchema xmlns:xi="http://www.w3.org/2001/XInclude" id="1" version="0"><xi:include href="common.xml"/>'
        '<message name="M" id="1"><data name="d" id="1" type="varAsciiEncoding"/></message></messageSchema>'
    )
    schema = load_schema(path)
    assert SbeWriter(schema).write("M", {"d": "x"})[8:] == b"\1\0\0\0x"
