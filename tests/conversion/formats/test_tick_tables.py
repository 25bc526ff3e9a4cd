"""The shipped tables to the common tick model, for whole real recordings. The output, read by one independent decoder,
equals the input, read by another, field by field."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from io import BytesIO
from typing import Any
from zoneinfo import ZoneInfo

import databento_dbn as db
import pytest
from iex_parser.messages import TOPS_1_6
from iex_parser.parser import DeepPcapReader
from itch.messages import MarketMessage
from itch.parser import MessageParser
from zstandard import ZstdDecompressor

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.formats import FOLDER, document
from tandemfeed.adapter.conversion.formats.captures.capture import CaptureReader
from tandemfeed.adapter.conversion.formats.chunks import FrameChunk
from tandemfeed.adapter.conversion.formats.files.binary_file import read_binary_file
from tandemfeed.adapter.conversion.formats.files.dbn import read_dbn
from tandemfeed.adapter.conversion.formats.files.tick_table import TableOptions, read_tick_file
from tandemfeed.adapter.conversion.formats.packets.iex_tp import decode_iex_segment
from tandemfeed.adapter.convert_command.input.compressed import DecompressedFile
from tandemfeed.feedcore.documents.message_model import load_message_model
from tandemfeed.feedcore.documents.source_format import load_source_format
from tests.conversion.formats.tick_material import (
    as_another_decoder_reads,
    converted,
    interpreted,
    messages,
    shipped_table,
)
from tests.conversion.oracle.interpreted import InterpretedConverter
from tests.real_data import shared_file

Output = tuple[str, dict[str, Any]]
SESSION = 20191230
MIDNIGHT_NS = int(datetime(2019, 12, 30, tzinfo=ZoneInfo("America/New_York")).timestamp()) * 10**9
NANO = 10**9
ITCH_PRICE = 10**5  # from four decimals to nine
NULL_PRICE, NULL_TIME = (1 << 63) - 1, (1 << 64) - 1


def without_nulls(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, "")}


def texts(data: bytes) -> str:
    return data.rstrip(b" \0").decode()


class ItchExpectation:
    """The expected tick-model messages for ITCH messages as the other decoder reads them; keeps the orders, naively."""

    def __init__(self) -> None:
        self.orders: dict[int, tuple[str, int, int]] = {}  # side, price, remaining size

    def of(self, message: MarketMessage) -> Iterator[Output]:
        kind = message.message_type.decode()
        head = {"instrumentId": message.stock_locate, "eventAt": MIDNIGHT_NS + message.timestamp}
        if hasattr(message, "stock"):
            head["symbol"] = texts(message.stock)
        for name, values in getattr(self, f"_{kind}")(message):
            yield name, without_nulls(head | values)

    def _status(self, topic: str, event: bytes, state: str, **more: Any) -> Iterator[Output]:
        yield "Status", {"topic": topic, "event": texts(event), "state": state} | more

    def _S(self, m: Any) -> Iterator[Output]:  # noqa: N802
        state = {b"O": "O", b"S": "O", b"Q": "T", b"M": "C", b"E": "C", b"C": "C"}[m.event_code]
        return self._status("S", m.event_code, state)

    def _H(self, m: Any) -> Iterator[Output]:  # noqa: N802
        return self._status("H", m.trading_state, m.trading_state.decode(), reason=texts(m.reason))

    def _Y(self, m: Any) -> Iterator[Output]:  # noqa: N802
        return self._status("Y", m.reg_sho_action, "U")

    def _L(self, m: Any) -> Iterator[Output]:  # noqa: N802
        event = m.primary_market_maker + m.market_maker_mode + m.market_participant_state
        return self._status("L", event, "U", participant=texts(m.mpid))

    def _R(self, m: Any) -> Iterator[Output]:  # noqa: N802
        exchange, kind = texts(m.market_category), texts(m.issue_classification)
        yield "Instrument", {"exchange": exchange, "kind": kind, "lotSize": m.round_lot_size}

    def _J(self, m: Any) -> Iterator[Output]:  # noqa: N802
        prices = m.auction_collar_reference_price, m.upper_auction_collar_price, m.lower_auction_collar_price
        for number, price in enumerate(prices, 1):
            values = {"topic": "J", "number": number, "quantity": m.auction_collar_extention}
            yield "Statistic", values | {"price": price * ITCH_PRICE}

    def _A(self, m: Any) -> Iterator[Output]:  # noqa: N802
        side = m.buy_sell_indicator.decode()
        self.orders[m.order_reference_number] = side, m.price * ITCH_PRICE, m.shares
        yield self._event(m, "A", side, m.price * ITCH_PRICE, m.shares)

    _F = _A

    def _event(self, m: Any, action: str, side: Any, price: Any, size: int | None, **more: Any) -> Output:
        shares = None if size is None else size * NANO
        values = {"orderId": m.order_reference_number, "action": action, "side": side, "price": price, "size": shares}
        return "OrderEvent", values | more

    def _reduce(self, reference: int, size: int) -> tuple[Any, Any]:
        side, price, left = self.orders.get(reference, (None, None, 0))
        if side is not None:
            self.orders[reference] = side, price, left - size
            if left <= size:
                del self.orders[reference]
        return side, price

    def _execution(self, m: Any, price_said: int | None, is_printed: bool) -> Iterator[Output]:
        side, resting = self._reduce(m.order_reference_number, m.executed_shares)
        price = resting if price_said is None else price_said
        if is_printed and side is not None:
            taker = "B" if side == "S" else "S"
            values = {"price": price, "size": m.executed_shares * NANO, "side": taker, "kind": "R"}
            yield "Trade", values | {"tradeId": m.match_number}
        yield self._event(m, "E", side, price, m.executed_shares, tradeId=m.match_number)

    def _E(self, m: Any) -> Iterator[Output]:  # noqa: N802
        return self._execution(m, None, True)

    def _C(self, m: Any) -> Iterator[Output]:  # noqa: N802
        return self._execution(m, m.execution_price * ITCH_PRICE, m.printable == b"Y")

    def _X(self, m: Any) -> Iterator[Output]:  # noqa: N802
        yield self._event(m, "R", *self._reduce(m.order_reference_number, m.cancelled_shares), m.cancelled_shares)

    def _D(self, m: Any) -> Iterator[Output]:  # noqa: N802
        side, price, _ = self.orders.pop(m.order_reference_number, (None, None, 0))
        yield self._event(m, "D", side, price, None)

    def _U(self, m: Any) -> Iterator[Output]:  # noqa: N802
        side, *_ = self.orders.pop(m.order_reference_number, (None,))
        price, new = m.price * ITCH_PRICE, m.new_order_reference_number
        if side is not None:
            self.orders[new] = side, price, m.shares
        yield self._event(m, "U", side, price, m.shares, newOrderId=new)

    def _P(self, m: Any) -> Iterator[Output]:  # noqa: N802
        values = {"price": m.price * ITCH_PRICE, "size": m.shares * NANO, "tradeId": m.match_number, "kind": "R"}
        yield "Trade", values

    def _Q(self, m: Any) -> Iterator[Output]:  # noqa: N802
        values = {"price": m.cross_price * ITCH_PRICE, "size": m.shares * NANO, "tradeId": m.match_number}
        yield "Trade", values | {"side": "N", "kind": "C"}

    def _I(self, m: Any) -> Iterator[Output]:  # noqa: N802
        values = {"pairedSize": m.paired_shares * NANO, "imbalanceSize": m.imbalance_shares * NANO}
        prices = {"referencePrice": m.current_reference_price, "nearPrice": m.near_price, "farPrice": m.far_price}
        side = {b"B": "B", b"S": "S"}.get(m.imbalance_direction, "N")
        values |= {name: price * ITCH_PRICE or None for name, price in prices.items()}
        yield "Imbalance", values | {"side": side, "auction": texts(m.cross_type)}


@pytest.mark.parametrize(
    ("file", "count"), [("12302019_SNIPPET.NASDAQ_ITCH50", 1_000), ("ex20101224.TEST_ITCH_50.gz", 12_012)]
)
def test_itch_recordings_are_converted_completely(file: str, count: int) -> None:
    data = shared_file(f"itch50/{file}").read_bytes()
    data = gzip.decompress(data) if file.endswith(".gz") else data
    chunks = list(read_binary_file(BytesIO(data), load_source_format(document("itch50.xml"))))
    expectation, parser, expected = ItchExpectation(), MessageParser(), []
    for chunk in chunks:
        offset = 0
        while offset < len(chunk.frames):
            size = 2 + int.from_bytes(chunk.frames[offset : offset + 2], "big")
            message = parser.get_message_type(chunk.frames[offset + 2 : offset + size])
            expected += expectation.of(message)
            offset += size
    assert sum(chunk.message_count for chunk in chunks) == count
    assert len(expected) >= count
    for number, (ours, theirs) in enumerate(zip(interpreted("itch50", chunks), expected, strict=True)):
        assert ours == theirs, f"output {number}"


def iex_expected(m: dict[str, Any], at_ns: int) -> Output:
    """The expected output for an IEX message; its decoder returns times as floats, so the time is an argument."""
    head = {"symbol": texts(m["symbol"]) if "symbol" in m else None, "eventAt": at_ns}
    kind = m["type"]
    if kind == "quote_update":
        prices = {
            name: int(m[key] * NANO) or None for name, key in (("bidPrice", "bid_price"), ("askPrice", "ask_price"))
        }
        return "Quote", without_nulls(
            head | prices | {"bidSize": m["bid_size"] * NANO, "askSize": m["ask_size"] * NANO}
        )
    if kind in ("trade_report", "trade_break"):
        values = {"price": int(m["price"] * NANO), "size": m["size"] * NANO, "tradeId": m["trade_id"]}
        return "Trade", without_nulls(head | values | {"side": "N", "kind": "R" if kind == "trade_report" else "B"})
    if kind == "security_directive":
        values = {
            "exchange": "IEXG",
            "lotSize": m["round_lot_size"],
            "previousClose": m["adjusted_poc_close"] * ITCH_PRICE,
        }
        return "Instrument", without_nulls(head | values)
    if kind == "system_event":
        state = {b"O": "O", b"S": "O", b"R": "T"}.get(m["event"], "C")
        return "Status", without_nulls(head | {"topic": "S", "event": m["event"].decode(), "state": state})
    if kind == "trading_status":
        state = {b"O": "O", b"P": "P", b"T": "T", b"H": "H"}[m["status"]]
        values = {"topic": "H", "event": m["status"].decode(), "reason": texts(m["reason"]), "state": state}
        return "Status", without_nulls(head | values)
    if kind == "short_sale_price_test_status":
        values = {"topic": "P", "number": m["status"], "reason": texts(m["detail"]), "state": "U"}
        return "Status", without_nulls(head | values)
    if kind == "operational_halt":
        state = {b"O": "H", b"N": "T"}[m["halt_status"]]
        return "Status", without_nulls(head | {"topic": "O", "event": m["halt_status"].decode(), "state": state})
    if kind == "official_price":
        return "Statistic", without_nulls(
            head | {"topic": f"X{texts(m['price_type'])}", "price": int(m["price"] * NANO)}
        )
    if kind == "auction_information":
        sizes = {"pairedSize": m["paired_shares"] * NANO, "imbalanceSize": m["imbalance_shares"] * NANO}
        said = {"referencePrice": "reference_price", "nearPrice": "indicative_clearing_price"}
        said |= {"farPrice": "auction_book_clearing_price"}
        prices = {name: int(m[key] * NANO) or None for name, key in said.items()}
        side = {b"B": "B", b"S": "S"}.get(m["imbalance_side"], "N")
        return "Imbalance", without_nulls(head | sizes | prices | {"side": side, "auction": m["auction_type"].decode()})
    raise AssertionError(f"the recording has no {kind}")


def iex_chunks() -> Iterator[tuple[FrameChunk, list[dict[str, Any]]]]:
    """The capture's segments, and their messages as the other decoder reads them."""
    walker = DeepPcapReader(None, TOPS_1_6, 0)
    for datagram in CaptureReader(DecompressedFile(shared_file("iex/TOPS16.pcapng.gz"))):
        chunk = decode_iex_segment(datagram.payload).chunk()
        if chunk is not None:
            yield chunk, [dict(each) for each in walker._read(datagram.payload) or []]


def test_the_iex_recording_is_converted_completely() -> None:
    both = list(iex_chunks())
    ours = interpreted("iex", (chunk for chunk, _ in both))
    theirs = []
    for chunk, read in both:
        offset = 0
        for message in read:
            at_ns = int.from_bytes(chunk.frames[offset + 4 : offset + 12], "little")
            assert message["timestamp"].timestamp() == pytest.approx(at_ns / NANO, abs=1e-5)
            theirs.append(iex_expected(message, at_ns))
            offset += 2 + int.from_bytes(chunk.frames[offset : offset + 2], "little")
    assert len(theirs) == 57_674
    assert ours == theirs
    assert Counter(name for name, _ in ours)["Quote"] > 10_000


def dbn_records(data: bytes) -> list[Any]:
    if data[:4] == b"\x28\xb5\x2f\xfd":
        data = ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    decoder = db.DBNDecoder(upgrade_policy=db.VersionUpgradePolicy.AS_IS)
    decoder.write(data)
    records: list[Any] = decoder.decode()[1:]
    return records


def price_of(value: int) -> int | None:
    return None if value == NULL_PRICE else value


def dbn_expected(r: Any) -> Iterator[Output]:
    """The expected output for a record."""
    head = {"instrumentId": r.instrument_id, "eventAt": None if r.ts_event == NULL_TIME else r.ts_event}
    if not isinstance(r, db.OHLCVMsg):
        head["receivedAt"] = r.ts_recv
    if isinstance(r, db.MBOMsg):
        actions = {"A": "A", "C": "R", "M": "M", "R": "C", "T": "T", "F": "E", "N": "N"}
        values = {"sequence": r.sequence, "orderId": r.order_id, "price": price_of(r.price), "size": r.size * NANO}
        side = {"A": "S", "B": "B", "N": "N"}[str(r.side.value)]
        yield "OrderEvent", head | values | {"action": actions[str(r.action.value)], "side": side}
    elif isinstance(r, db.OHLCVMsg):
        interval = {0x20: 1, 0x21: 60, 0x22: 3_600, 0x23: 86_400}[r.rtype.value] * NANO
        values = {name: price_of(getattr(r, name)) for name in ("open", "high", "low", "close")}
        yield "Bar", head | values | {"interval": interval, "volume": r.volume}
    elif isinstance(r, db.StatusMsg):
        said = {"PRE_OPEN": "O", "QUOTING": "Q", "TRADING": "T", "HALT": "H", "PAUSE": "P", "CLOSE": "C"}
        values = {"topic": "status", "number": int(r.action), "reason": str(int(r.reason))}
        yield "Status", head | values | {"state": said.get(db.StatusAction(int(r.action)).name, "U")}
    elif isinstance(r, db.ImbalanceMsg):
        values = {"referencePrice": r.ref_price, "nearPrice": r.ind_match_price, "farPrice": r.auct_interest_clr_price}
        sizes = {"pairedSize": r.paired_qty * NANO, "imbalanceSize": r.total_imbalance_qty * NANO}
        side = {"A": "S", "B": "B"}.get(str(getattr(r.side, "value", r.side)), "N")
        prices = {name: price_of(value) for name, value in values.items()}
        yield "Imbalance", head | prices | sizes | {"side": side, "auction": str(r.auction_type)}
    elif isinstance(r, db.StatMsg | db.StatMsgV1):
        quantity = None if r.quantity in ((1 << 31) - 1, NULL_PRICE) else r.quantity
        yield (
            "Statistic",
            head | {"topic": "stat", "number": int(r.stat_type), "price": price_of(r.price), "quantity": quantity},
        )
    elif isinstance(r, db.InstrumentDefMsg | db.InstrumentDefMsgV1 | db.InstrumentDefMsgV2):
        values = {"symbol": r.raw_symbol, "exchange": r.exchange, "currency": r.currency}
        values |= {"kind": str(getattr(r.instrument_class, "value", r.instrument_class))}
        values |= {"priceIncrement": price_of(r.min_price_increment), "strikePrice": price_of(r.strike_price)}
        yield "Instrument", head | values | {"expiresAt": None if r.expiration == NULL_TIME else r.expiration}
    else:
        yield from dbn_book_expected(r, head)


def dbn_book_expected(r: Any, head: dict[str, Any]) -> Iterator[Output]:
    sequence = {"sequence": r.sequence} if hasattr(r, "sequence") else {}
    if str(getattr(getattr(r, "action", None), "value", "")) == "T":
        taker = {"A": "S", "B": "B", "N": "N"}[str(r.side.value)]
        values = {"price": price_of(r.price), "size": r.size * NANO, "side": taker, "kind": "R"}
        yield "Trade", head | sequence | values
    if not isinstance(r, db.TradeMsg):
        best = r.levels[0]
        values = {"bidPrice": price_of(best.bid_px), "askPrice": price_of(best.ask_px)}
        yield "Quote", head | sequence | values | {"bidSize": best.bid_sz * NANO, "askSize": best.ask_sz * NANO}


DBN_FILES = [
    "futures/esh4-glbx-mdp3-20231224.mbo.dbn.zst",
    *(f"dbn/test_data.{schema}.v{version}.dbn.zst" for schema in ("mbo", "mbp-1", "mbp-10", "trades", "tbbo",
      "ohlcv-1s", "ohlcv-1m", "ohlcv-1h", "definition", "imbalance", "statistics") for version in (1, 2, 3)),
    *(f"dbn/test_data.{schema}.v{version}.dbn.zst" for schema in ("status", "bbo-1s", "bbo-1m", "cbbo-1s", "cmbp-1")
      for version in (2, 3)),
]  # fmt: skip


@pytest.mark.parametrize("file", DBN_FILES)
def test_dbn_recordings_are_converted_completely(file: str) -> None:
    data = shared_file(file).read_bytes()
    ours = interpreted("dbn", read_dbn(data).chunks())
    records = dbn_records(data)
    theirs = [(name, without_nulls(values)) for record in records for name, values in dbn_expected(record)]
    assert len(theirs) >= len(records) > 0
    assert ours == theirs


def recorded(name: str) -> list[FrameChunk]:
    """A real recording of a shipped format."""
    if name == "itch50":
        data = gzip.decompress(shared_file("itch50/ex20101224.TEST_ITCH_50.gz").read_bytes())
        return list(read_binary_file(BytesIO(data), load_source_format(document("itch50.xml")), 5_000))
    if name == "iex":
        return [chunk for chunk, _ in iex_chunks()]
    return list(read_dbn(shared_file("futures/esh4-glbx-mdp3-20231224.mbo.dbn.zst").read_bytes()).chunks(1_000))


@pytest.mark.parametrize("name", ["itch50", "iex", "dbn"])
def test_kernel_and_interpreter_convert_a_whole_recording_alike(name: str) -> None:
    chunks, table = recorded(name), shipped_table(name)
    kernel, oracle = CompiledConverter(table), InterpretedConverter(table)
    assert b"".join(converted(kernel, chunks)) == b"".join(converted(oracle, chunks))
    assert kernel.counts() == oracle.counts()
    assert kernel.digests().tolist() == oracle.digests().tolist()


def test_kernel_and_interpreter_convert_tables_of_ticks_alike() -> None:
    source_format = load_source_format(document("tick-table.xml"))
    quotes = list(read_tick_file(shared_file("ticks/usdjpy-ticks.csv"), source_format, TableOptions("USD/JPY")))
    trades = list(read_tick_file(shared_file("ticks/btcusdt-trades.parquet"), source_format, TableOptions("BTCUSDT")))
    table = shipped_table("tick-table")
    outputs = [b"".join(converted(make(table), quotes + trades)) for make in (CompiledConverter, InterpretedConverter)]
    assert outputs[0] == outputs[1]
    (quote, quote_rows), (trade, trade_rows) = load_message_model(document("tick.xml")).arrays(outputs[0])
    assert (quote.name, len(quote_rows), trade.name, len(trade_rows)) == ("Quote", 1_000, "Trade", 2_001)
    first = as_another_decoder_reads(next(messages(outputs[0])))
    assert first == (
        "Quote",
        {
            "symbol": "USD/JPY",
            "eventAt": 1_357_077_600_295_000_000,
            "bidPrice": 86_655_000_000,
            "askPrice": 86_728_000_000,
        },
    )


def test_every_shipped_format_has_a_table_that_converts_every_message_a_venue_sends() -> None:
    gateway = {"error1", "error2", "symbolMapping1", "symbolMapping2", "system1", "system2"}  # not from the venue
    formats = {path.stem for path in FOLDER.glob("*.xml")} - {"tick"}
    tables = {name for name in formats if name.endswith("-to-tick")}
    assert {f"{name}-to-tick" for name in formats - tables} == tables
    for name in sorted(formats - tables - {"mdp3"}):  # its messages are in CME's schema; test_format_mdp3 tests it
        table = shipped_table(name)
        named = {conversion.source.name for conversion in table.conversions}
        assert set(table.source_format.messages) - named <= gateway, name
