"""Typed records: calls on a writer reach a handler, across changes of the Protocol and despite bad records."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemfeed.journal.typed_records.history import Hop, HopStamper, MessageHistory, split_history
from tandemfeed.journal.typed_records.typed import (
    BadProtocol,
    MethodReader,
    NotAMethodRecord,
    UnknownMethod,
    UnreadableRecord,
    describe,
    method_writer,
)


class Side(enum.Enum):
    BUY = "buy"
    SELL = "sell"


@dataclass
class Level:
    price: float
    quantity: int


class Orders(Protocol):
    def place(self, symbol: str, quantity: int, side: Side = Side.BUY, *, levels: list[Level] = []) -> None: ...  # noqa: B006

    def cancel(self, order_id: int) -> None: ...


class Heartbeat(Protocol):
    def beat(self) -> None: ...


class OrdersAndBeats(Orders, Heartbeat, Protocol): ...


class Records:
    """A journal in memory, both appender and reader, with indices from 100."""

    def __init__(self, *records: bytes) -> None:
        self.records = list(records)
        self.next = 0

    def append(self, record: bytes) -> int:
        self.records.append(record)
        return 99 + len(self.records)

    def read(self) -> tuple[int, bytes] | None:
        if self.next >= len(self.records):
            return None
        self.next += 1
        return 99 + self.next, self.records[self.next - 1]


class SeekableRecords(Records):
    """A reader that can go back, like a tailer."""

    def to_index(self, index: int) -> None:
        self.next = index - 100


class Handler:
    """Records its calls; raises an exception the given number of times."""

    def __init__(self, failures: int = 0) -> None:
        self.heard: list[tuple[object, ...]] = []
        self.failures = failures

    def place(self, symbol: str, quantity: int, side: Side = Side.SELL, *, levels: list[Level] | None = None) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the venue is away")
        self.heard.append(("place", symbol, quantity, side, levels))

    def cancel(self, order_id: int) -> None:
        self.heard.append(("cancel", order_id))

    def beat(self) -> None:
        self.heard.append(("beat",))


def record_of(method: str, **arguments: object) -> bytes:
    return msgspec.msgpack.encode([method, arguments])


def test_a_call_reaches_the_handler_with_the_same_arguments() -> None:
    records, handler = Records(), Handler()
    writer: Any = method_writer(OrdersAndBeats, records)
    assert writer.place("ABC", 5, levels=[Level(1.5, 2)]) == 100
    assert writer.place(quantity=7, symbol="XYZ", side=Side.SELL) == 101
    assert writer.cancel(9) == 102
    assert writer.beat() == 103
    reader = MethodReader(records, OrdersAndBeats, handler)
    assert [reader.read_one() for _ in range(5)] == [True, True, True, True, False]
    assert handler.heard == [
        ("place", "ABC", 5, Side.BUY, [Level(1.5, 2)]),
        ("place", "XYZ", 7, Side.SELL, []),
        ("cancel", 9),
        ("beat",),
    ]
    assert reader.statistics().handled_count == 4


def test_the_bytes_of_the_golden_record_never_change() -> None:
    records = Records()
    method_writer(Orders, records).place("ABC", 5)
    golden = bytes.fromhex(
        "92 a5706c616365 84a673796d626f6c a3414243a87175616e74697479 05a473696465 a3627579a66c6576656c73 90"
    )
    assert records.records == [golden]
    handler = Handler()
    assert MethodReader(Records(golden), Orders, handler).read_one()
    assert handler.heard == [("place", "ABC", 5, Side.BUY, [])]


@given(st.text(), st.integers(-(1 << 63), (1 << 64) - 1), st.sampled_from(Side))
def test_any_arguments_survive_encoding_and_decoding(symbol: str, quantity: int, side: Side) -> None:
    records, handler = Records(), Handler()
    method_writer(Orders, records).place(symbol, quantity, side)
    assert MethodReader(records, Orders, handler).read_one()
    assert handler.heard == [("place", symbol, quantity, side, [])]
    assert describe(records.records[0])["arguments"] == {
        "symbol": symbol,
        "quantity": quantity,
        "side": side.value,
        "levels": [],
    }


@pytest.mark.parametrize(
    ("args", "kwargs", "reason"),
    [
        ((), {}, "Missing required argument 'symbol'"),
        (("ABC", "5"), {}, r"Orders.place: Expected `int`, got `str` - at `\$.quantity`"),
        (("ABC", 5, Side.BUY, []), {}, "takes 3 positional arguments, not 4"),
        (("ABC", 5), {"colour": "red"}, "Unexpected keyword argument 'colour'"),
        (("ABC", 5), {"symbol": "ABC"}, "multiple values"),
        (("ABC", 1 << 70), {}, "Orders.place"),
        (("ABC", object()), {}, "Orders.place"),
        (("\ud800", 5), {}, "Orders.place"),
    ],
)
def test_a_call_with_invalid_arguments_is_refused_and_appends_nothing(
    args: tuple[object, ...], kwargs: dict[str, object], reason: str
) -> None:
    records = Records()
    writer: Any = method_writer(Orders, records)
    with pytest.raises(TypeError, match=reason):
        writer.place(*args, **kwargs)
    assert records.records == []


class OrdersOfOld(Protocol):
    def place(self, symbol: str, quantity: int, trader: str) -> None: ...


def test_an_old_record_is_read_with_defaults_and_without_removed_arguments() -> None:
    records, handler = Records(), Handler()
    method_writer(OrdersOfOld, records).place("ABC", 5, "Ann")
    assert MethodReader(records, Orders, handler).read_one()
    assert handler.heard == [("place", "ABC", 5, Side.BUY, [])]


BAD_RECORDS = {
    "other": (record_of("replace", order_id=1), "replace"),
    "wrong type": (record_of("cancel", order_id="nine"), "Orders.cancel: Expected `int`, got `str` - at `$.order_id`"),
    "missing": (record_of("cancel"), "Orders.cancel: Object missing required field `order_id`"),
    "bad choice": (record_of("place", symbol="A", quantity=1, side="hold"), "Orders.place: Invalid enum value"),
    "no arguments": (msgspec.msgpack.encode(["cancel"]), "array"),
    "a number": (b"\x05", "Expected `array`"),
    "nothing": (b"", "truncated"),
    "text that is not UTF-8": (b"\x92\xa2\xff\xff\x80", "utf-8"),
    "too deep": (b"\x92\xa6cancel" + b"\x91" * 100_000 + b"\x01", "recursion"),
    "trailing": (record_of("cancel", order_id=1) + b"x", "trailing"),
    "half a history": (b"\xc1TH\x01\x02abc", "cut off"),
}


@pytest.mark.parametrize("name", BAD_RECORDS)
def test_a_record_without_a_method_to_handle_it_is_counted_reported_and_skipped(name: str) -> None:
    bad, reason = BAD_RECORDS[name]
    handler, reported = Handler(), list[UnknownMethod | UnreadableRecord]()
    reader = MethodReader(Records(bad, record_of("cancel", order_id=9)), Orders, handler, on_unknown=reported.append)
    assert [reader.read_one() for _ in range(3)] == [True, True, False]
    assert handler.heard == [("cancel", 9)]
    (outcome,) = reported
    assert (outcome.index, outcome.record) == (100, bad)
    if isinstance(outcome, UnknownMethod):
        assert outcome.method == reason
    else:
        assert reason in outcome.reason
    statistics = reader.statistics()
    assert statistics.handled_count == 1
    assert (statistics.unknown_count, statistics.unreadable_count) == ((1, 0) if name == "other" else (0, 1))
    silent = MethodReader(Records(bad), Orders, handler)
    assert silent.read_one()


@given(st.one_of(st.binary(max_size=200), st.binary(max_size=60).map(lambda data: b"\x92\xa6cancel" + data)))
@settings(max_examples=300)
def test_no_malformed_record_stops_the_reader(record: bytes) -> None:
    reader = MethodReader(Records(record), Orders, Handler())
    assert reader.read_one()
    try:
        assert set(describe(record)) >= {"method", "arguments"}
    except NotAMethodRecord:
        assert reader.statistics().handled_count == 0


@pytest.mark.parametrize("kind", [Records, SeekableRecords])
def test_a_record_whose_handler_raised_is_read_again(kind: type[Records]) -> None:
    records, handler = kind(), Handler(failures=2)
    writer = method_writer(Orders, records)
    writer.place("ABC", 5)
    writer.cancel(9)
    reader = MethodReader(records, Orders, handler)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            reader.read_one()
        assert records.next == (0 if kind is SeekableRecords else 1)
        assert reader.statistics().handled_count == 0
    assert [reader.read_one() for _ in range(3)] == [True, True, False]
    assert handler.heard == [("place", "ABC", 5, Side.BUY, []), ("cancel", 9)]


def test_a_reader_interrupted_in_on_unknown_reports_the_record_again() -> None:
    reported: list[object] = []

    def refuse_once(outcome: object) -> None:
        reported.append(outcome)
        if len(reported) == 1:
            raise OSError("the log has no space")

    reader = MethodReader(Records(b""), Orders, Handler(), on_unknown=refuse_once)
    with pytest.raises(OSError, match="no space"):
        reader.read_one()
    assert reader.read_one()
    assert len(reported) == 2
    assert reader.statistics().unreadable_count == 1


def test_a_history_gains_a_hop_at_each_process() -> None:
    first, second = Records(), Records()
    times = iter([10, 20, 30])
    stamper = HopStamper(2, lambda: next(times))
    method_writer(Orders, first, history_source=HopStamper(1, lambda: 5).next_history).cancel(9)

    reader = MethodReader(
        first, Orders, method_writer(Orders, second, history_source=stamper.next_history), on_history=stamper.on_read
    )
    assert reader.read_one()
    history, body = split_history(second.records[0])
    assert history == MessageHistory((Hop(1, 0, 5, 5), Hop(2, 100, 10, 20)))
    assert body == record_of("cancel", order_id=9)
    assert describe(second.records[0]) == {
        "method": "cancel",
        "arguments": {"order_id": 9},
        "history": [
            {"source_id": 1, "source_index": 0, "received_at_ns": 5, "sent_at_ns": 5},
            {"source_id": 2, "source_index": 100, "received_at_ns": 10, "sent_at_ns": 20},
        ],
    }


def test_describe_refuses_records_that_are_not_from_a_method_writer() -> None:
    for record in (b"", b"\x05", msgspec.msgpack.encode(["cancel", [1]]), b"\xc1TH\x01\x02abc"):
        with pytest.raises(NotAMethodRecord, match="not a method record"):
            describe(record)


class Tree(msgspec.Struct):
    children: list[Tree]


class Foreign: ...


class RichTypes(Protocol):
    def note(self, at: datetime, tree: Tree, tags: dict[str, bytes], anything: Any = None) -> None: ...


def test_recursive_types_times_and_bytes_are_supported() -> None:
    records = Records()
    heard: list[object] = []

    class Listener:
        def note(self, at: datetime, tree: Tree, tags: dict[str, bytes], anything: Any = None) -> None:
            heard.extend((at, tree, tags, anything))

    at = datetime.fromisoformat("2026-11-21T07:00:00+00:00")
    method_writer(RichTypes, records).note(at, Tree([Tree([])]), {"a": b"\xff"}, anything=[1, "x"])
    assert MethodReader(records, RichTypes, Listener()).read_one()
    assert heard == [at, Tree([Tree([])]), {"a": b"\xff"}, [1, "x"]]


class Unannotated(Protocol):
    def place(self, symbol) -> None: ...  # type: ignore[no-untyped-def]


class Variadic(Protocol):
    def place(self, *symbols: str) -> None: ...


class Options(Protocol):
    def place(self, **options: str) -> None: ...


class PositionalOnly(Protocol):
    def place(self, symbol: str, /) -> None: ...


class Answering(Protocol):
    def place(self, symbol: str) -> int: ...


class Unsaid(Protocol):
    def place(self, symbol: str): ...  # type: ignore[no-untyped-def]


class Waiting(Protocol):
    async def place(self, symbol: str) -> None: ...


class Stateful(Protocol):
    symbol: str

    def place(self) -> None: ...


class Computed(Protocol):
    @property
    def symbol(self) -> str: ...


class Private(Protocol):
    def _place(self) -> None: ...


class Unresolved(Protocol):
    def place(self, symbol: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


class Unencodable(Protocol):
    def place(self, symbols: dict[str, list[Foreign]]) -> None: ...


class Ambiguous(Protocol):
    def place(self, symbols: list[int] | set[int]) -> None: ...


class WrongDefault(Protocol):
    def place(self, quantity: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013


class MutableDefault(Protocol):
    def place(self, quantities: list[int] = [1]) -> None: ...  # noqa: B006


class Empty(Protocol): ...


class NoProtocol:
    def place(self) -> None: ...


@pytest.mark.parametrize(
    ("protocol", "reason"),
    [
        (Unannotated, r"Unannotated\.place: symbol has no annotation"),
        (Variadic, r"Variadic\.place: \*symbols.* takes any number of arguments"),
        (Options, r"Options\.place: \*\*options.* takes any number"),
        (PositionalOnly, r"PositionalOnly\.place: symbol is positional only"),
        (Answering, r"Answering\.place: annotate it with -> None"),
        (Unsaid, r"Unsaid\.place: annotate it with -> None"),
        (Waiting, r"Waiting\.place: it is not a plain method"),
        (Stateful, r"Stateful\.symbol: it is not a plain method"),
        (Computed, r"Computed\.symbol: it is not a plain method"),
        (Private, r"Private\._place: a method whose name begins with an underscore"),
        (Unresolved, r"Unresolved\.place: its annotations cannot be resolved .*Nowhere"),
        (Unencodable, r"Unencodable\.place: .*Foreign.* is not a type that MessagePack can encode"),
        (Ambiguous, r"Ambiguous\.place: Type unions may not contain"),
        (WrongDefault, r"WrongDefault\.place: the default of quantity does not fit"),
        (MutableDefault, r"MutableDefault\.place: Using a non-empty mutable"),
        (Empty, "Empty has no methods"),
        (NoProtocol, "not a Protocol class"),
        (len, "not a Protocol class"),
    ],
)
def test_an_invalid_protocol_is_refused_with_method_and_reason(protocol: Any, reason: str) -> None:
    with pytest.raises(BadProtocol, match=reason):
        method_writer(protocol, Records())
    with pytest.raises(BadProtocol, match=reason):
        MethodReader(Records(), protocol, Handler())


def test_a_handler_that_lacks_a_method_is_refused_when_the_reader_is_created() -> None:
    handler: Any = object()
    with pytest.raises(TypeError, match=r"Orders\.place: object has no such method"):
        MethodReader(Records(), Orders, handler)
