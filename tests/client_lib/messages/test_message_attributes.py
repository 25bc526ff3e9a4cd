"""Messages as objects: golden ones whose bytes are known, and generated ones that equal what `SbeReader` reads."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from tandemfeed.client_lib import SbeReadError, SbeWriteError, Unlisted, load_messages
from tandemfeed.client_lib.items import Batch
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.client_lib.messages.message import Message, MessageClasses
from tandemfeed.client_lib.messages.sbe_reading import SbeReader, as_decimal
from tandemfeed.client_lib.messages.sbe_writing import SbeWriter
from tandemfeed.client_lib.messages.values import attribute_names
from tandemfeed.deploy.command import main as tandemfeed
from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME, OUTPUT_FRAME_SIZE, OutputPacket, encode_runs
from tandemfeed.feedcore.wire.position import Run
from tandemfeed.feedcore.wire.refusal import PacketRefused
from tests.feedcore.sbe.sbe_generation import Generated, generated
from tests.feedcore.sbe.sbe_material import schema_text

TYPES = """
<type name="Symbol" primitiveType="char" length="8"/>
<type name="Time" primitiveType="uint64" semanticType="UTCTimestamp"/>
<type name="Day" primitiveType="uint16" semanticType="LocalMktDate" presence="optional"/>
<type name="Count" primitiveType="uint32" presence="optional"/>
<composite name="Price"><type name="mantissa" primitiveType="int64" presence="optional"/>
  <type name="exponent" primitiveType="int8" presence="constant">-9</type></composite>
<composite name="Span"><type name="low" primitiveType="int16"/><type name="high" primitiveType="int16"/></composite>
<enum name="Side" encodingType="char"><validValue name="Buy">B</validValue><validValue name="Sell short">S</validValue>
</enum>
<set name="Flags" encodingType="uint8"><choice name="last">0</choice><choice name="cross">1</choice></set>
<composite name="Text"><type name="length" primitiveType="uint16"/>
  <type name="varData" primitiveType="uint8" length="0" characterEncoding="UTF-8"/></composite>"""
TRADE = """<message name="Trade" id="1">
  <field name="symbol" id="1" type="Symbol"/><field name="eventAt" id="2" type="Time"/>
  <field name="price" id="3" type="Price"/><field name="size" id="4" type="Count"/>
  <field name="side" id="5" type="Side"/><field name="flags" id="6" type="Flags"/>
  <field name="span" id="7" type="Span"/><field name="raw" id="8" type="uint8"/>
  {}</message>"""
NEWER = '<field name="day" id="9" type="Day" sinceVersion="1"/>'
BOOK = """<message name="Book" id="2"><field name="symbol" id="1" type="Symbol"/>
  <group name="levels" id="2"><field name="price" id="1" type="Price"/><field name="side" id="2" type="Side"/></group>
  <data name="note" id="3" type="Text"/></message>"""
XML = schema_text(TYPES, TRADE.format(NEWER) + BOOK, 1)
OLD_XML = schema_text(TYPES, TRADE.format("") + BOOK, 0)
AT_NS = 1_795_357_800_000_000_001
AT = np.datetime64(AT_NS, "ns")
GOLDEN = bytes.fromhex(
    "2500 0100 0100 0100"  # block length 37, template 1, schema 1, version 1
    "58454c0000000000 0110ba296864ea18 80ca2ef608000000 64000000"  # symbol, eventAt, price, size
    "42 01 ffff0200 07 ffff"  # side, flags, span, raw, day
)


def messages_of(xml: bytes = XML) -> MessageClasses:
    return load_messages(xml)


def trade(**changes: Any) -> Message:
    values = {"symbol": "XEL", "eventAt": AT, "price": Decimal("38.49"), "size": 100, "side": "Buy", "flags": {"last"}}
    made: Message = messages_of().Trade(**{**values, "span": {"low": -1, "high": 2}, "raw": 7, **changes})
    return made


def batch_of(bodies: list[bytes], xml: bytes = XML) -> Batch:
    """A received batch, one message of each source message."""
    count = len(bodies)
    run = Run(3, 11, 21, 5, 31, count, count)
    frames = b"".join(OUTPUT_FRAME.pack(len(body) + OUTPUT_FRAME_SIZE, at) + body for at, body in enumerate(bodies))
    packet = OutputPacket(0, 1, 2, 4, 20261122, 3, 11, 21, count, (run,), 50, 60, encode_runs((run,)) + frames)
    return Batch(packet, 70, 80, Decoder(xml))


def test_a_message_has_the_bytes_of_its_values() -> None:
    assert bytes(trade()) == GOLDEN


def test_the_attributes_of_a_message_are_its_values() -> None:
    message = messages_of().Trade.from_bytes(GOLDEN)
    side = messages_of().Side
    assert (message.symbol, message.price, message.size, message.raw_) == ("XEL", Decimal("38.49"), 100, 7)
    assert message.event_at == AT
    assert message.side is side.Buy
    assert isinstance(message.side, StrEnum)
    assert message.side == "Buy"
    assert (message.flags, message.span.high, message.day) == ({"last"}, 2, None)
    assert (message.raw.price, message.raw.event_at, message.raw.side, message.raw.span_low) == (
        38_490_000_000, AT_NS, b"B", -1,
    )  # fmt: skip
    assert message.raw.day == 65_535, "a null keeps its value on the wire"
    assert repr(message) == (
        "Trade(symbol='XEL', event_at=2026-11-22T14:30:00.000000001, price=38.49, size=100, side=Buy, flags={last}, "
        "span=Span(low=-1, high=2), raw_=7, day=None)"
    )
    assert message.to_dict() == {
        "symbol": "XEL", "eventAt": AT, "price": Decimal("38.49"), "size": 100, "side": "Buy", "flags": {"last"},
        "span": {"low": -1, "high": 2}, "raw": 7, "day": None,
    }  # fmt: skip


def test_nulls_are_none_and_labels_of_several_words_are_names() -> None:
    message = trade(price=None, size=None, side="Sell short", day=np.datetime64("2026-11-22"))
    assert (message.price, message.size, message.day) == (None, None, np.datetime64("2026-11-22"))
    assert message.side is messages_of().enums["Side"].Sell_short
    assert trade(side=Unlisted(ord("X"))).side == Unlisted(ord("X"))


def test_groups_and_text_of_variable_length_are_attributes_too() -> None:
    levels = [{"price": Decimal("1.5"), "side": "Buy"}, {"price": None, "side": "Sell short"}]
    (book,) = batch_of([bytes(messages_of().Book(symbol="XEL", levels=levels, note="ä"))]).messages()
    assert (book.note, book.levels[0].price, book.levels[1]) == ("ä", Decimal("1.5"), (None, "Sell short"))
    assert repr(book).startswith("Book(symbol='XEL', levels=(Book_levels(price=1.5, side=Buy), ")
    assert messages_of().Book(**book.to_dict()) == book
    assert messages_of().Book(symbol="XEL", levels=book.levels, note="ä") == book


def test_a_message_is_read_only_equal_by_its_bytes_and_can_be_pickled() -> None:
    message = trade()
    with pytest.raises(AttributeError):
        message.price = 1  # type: ignore[attr-defined]
    assert message == trade() != trade(size=1)
    assert len({message, trade(), trade(size=1)}) == 2
    copy = pickle.loads(pickle.dumps(message))
    assert type(copy) is type(message)
    assert copy == message


def test_a_received_message_knows_its_origin() -> None:
    first, second = batch_of([GOLDEN, bytes(trade(size=1))]).messages()
    assert (first, second.size) == (trade(), 1)
    origin = second.origin
    assert (origin.message_seq, origin.source_stream_id, origin.source_seq, origin.epoch) == (22, 5, 32, 3)
    assert (origin.source_sent_at_ns, origin.received_at_ns) == (50, 70)
    with pytest.raises(ValueError, match="built here, not received"):
        _ = trade().origin


def test_an_older_message_has_none_where_it_lacks_a_field_and_a_truncated_one_is_refused() -> None:
    old = messages_of(OLD_XML).Trade(**{name: each for name, each in trade().to_dict().items() if name != "day"})
    (read,) = batch_of([bytes(old)]).messages()
    assert (read.day, read.symbol, read.raw_) == (None, "XEL", 7)
    short = bytes(old)[:-2]
    short = (len(short) - 8).to_bytes(2, "little") + short[2:]
    with pytest.raises(SbeReadError, match="its fields need 35"):
        list(batch_of([short]).messages())
    with pytest.raises(SbeReadError):
        messages_of().Trade.from_bytes(short)


def test_a_packet_with_another_number_of_frames_is_refused() -> None:
    batch = batch_of([GOLDEN])
    batch.packet = batch.packet._replace(message_count=2)
    with pytest.raises(PacketRefused, match="2 messages"):
        list(batch.messages())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"size": 1 << 32}, r"Trade.size: 4294967296 is not in"),
        ({"symbol": None}, r"Trade.symbol is required"),
        ({"price": 38.49}, r"Trade.price: 38.49 is not a Decimal or an int"),
        ({"price": Decimal("1e-10")}, r"more places than the exponent -9"),
        ({"eventAt": datetime(2026, 11, 22)}, r"Trade.eventAt: .* has no time zone"),
        ({"day": np.datetime64("2026-11-22T01")}, r"Trade.day: .* more precise"),
        ({"side": "Hold"}, r"Trade.side: 'Hold' is none of Buy, Sell short"),
        ({"prise": 1}, r"Trade has no field 'prise'"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_name_of_the_field(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(SbeWriteError, match=says):
        trade(**changes)


def test_times_may_be_given_as_datetimes_and_integers() -> None:
    at = datetime(2026, 11, 22, 14, 30, tzinfo=UTC)
    assert trade(eventAt=at) == trade(event_at=AT_NS - 1)


@settings(max_examples=150, deadline=None)
@given(generated(is_output=True))
def test_generated_messages_read_and_write_as_the_plain_decoders_do(case: Generated) -> None:
    classes = load_messages(case.xml)
    reader, writer = SbeReader(case.schema), SbeWriter(case.schema)
    body = writer.write("M", case.values)
    (message,) = batch_of([body], case.xml).messages()
    plain = reader.read(body).fields
    for name, value in plain.items():
        assert as_plain(getattr(message, message._class_of.attributes[name])) == value_of(value), name
    assert bytes(classes.M(**message.to_dict())) == bytes(message) == body
    assert classes.M.from_bytes(body) == message
    assert pickle.loads(pickle.dumps(message)) == message
    assert repr(message).startswith("M(")
    rows = Decoder(case.xml).arrays(batch_of([body]).payload)
    for _, row in rows:
        for column, raw in zip(message._class_of.type.columns, row[0].tolist()[6:], strict=True):
            read = getattr(message.raw, column.replace(".", "_"))
            read = read.rstrip(b"\0") if isinstance(read, bytes) else read
            assert np.array_equal(read, raw, equal_nan=not isinstance(raw, bytes)), column


def as_plain(value: Any) -> Any:
    """An attribute's value with composites as dicts and groups as lists."""
    if hasattr(value, "_asdict"):
        return {name: as_plain(part) for name, part in value._asdict().items()}
    return [as_plain(each) for each in value] if isinstance(value, tuple) else value


def value_of(plain: Any) -> Any:
    """What `SbeReader` reads, with decimals as such."""
    if isinstance(plain, dict):
        if plain.keys() == {"mantissa", "exponent"}:
            return as_decimal(plain)
        return {name: value_of(part) for name, part in plain.items()}
    return [value_of(each) for each in plain] if isinstance(plain, list) else plain


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("eventAt", "event_at"),
        ("MDEntryPx", "md_entry_px"),
        ("price2Level", "price2_level"),
        ("size", "size"),
        ("event_at", "event_at"),
        ("Class", "class_"),
        ("raw", "raw_"),
        ("_hidden", "x_hidden"),
    ],
)
def test_an_attribute_is_named_as_in_python(name: str, attribute: str) -> None:
    assert attribute_names([name]) == {name: attribute}


def test_fields_whose_names_differ_only_in_style_keep_attributes_of_their_own() -> None:
    assert attribute_names(["eventAt", "event_at"]) == {"eventAt": "event_at", "event_at": "event_at_"}


def test_the_stubs_of_a_model_are_a_module_with_the_classes_that_received_messages_have(tmp_path: Path) -> None:
    (tmp_path / "model.xml").write_bytes(XML)
    assert tandemfeed(["stubs", str(tmp_path / "model.xml"), "-o", str(tmp_path / "market.py")]) == 0
    space: dict[str, Any] = {"__name__": "market"}
    exec((tmp_path / "market.py").read_text(), space)
    (message,) = batch_of([GOLDEN]).messages()
    assert type(message) is space["Trade"]
    assert message.side is space["Side"].Buy


USER = """
from decimal import Decimal
from market import Side, Trade, Book
def use(trade: Trade, book: Book) -> None:
    price: Decimal | None = trade.price
    text: str = trade.symbol
    levels = [level.price for level in book.levels]
    reveal_type(trade.side)
    reveal_type(levels)
    trade.prise
Trade(symbol="XEL")
"""


def test_a_type_checker_knows_the_fields_by_the_stubs(tmp_path: Path) -> None:
    from mypy import api

    (tmp_path / "market.py").write_text(messages_of().stubs())
    (tmp_path / "user.py").write_text(USER)
    output, _, _ = api.run(["--strict", "--no-incremental", "--follow-imports=silent", str(tmp_path / "user.py")])
    said = [line.split(": ", 1)[1] for line in output.splitlines() if "user.py:" in line]
    assert said[:2] == [
        'note: Revealed type is "market.Side | tandemfeed.client_lib.messages.sbe_reading.Unlisted"',
        'note: Revealed type is "list[decimal.Decimal | None]"',
    ], output
    assert said[2].startswith('error: "Trade" has no attribute "prise"')
    assert [line.split('"')[1] for line in said[3:] if "Missing" in line] == ["event_at", "side", "span", "raw_"]
