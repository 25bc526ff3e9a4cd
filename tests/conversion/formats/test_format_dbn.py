"""DBN versions 1 to 3: our document reads real files as Databento's own decoder reads them."""

from __future__ import annotations

from contextlib import nullcontext
from io import BytesIO
from typing import Any

import databento_dbn as db
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.chunks import FormatError
from tandemfeed.adapter.conversion.formats.files.dbn import SCHEMAS, DbnFile, DbnStream, read_dbn
from tandemfeed.adapter.conversion.formats.frames.frame_reader import FrameReader
from tandemfeed.feedcore.documents.source_format import load_source_format
from tests.real_data import shared_file

FORMAT = load_source_format(document("dbn.xml"))
READER = FrameReader(FORMAT)
FILES = [
    "test_data.bbo-1m.dbn", "test_data.bbo-1m.v2.dbn.zst", "test_data.bbo-1m.v3.dbn.zst", "test_data.bbo-1s.dbn",
    "test_data.bbo-1s.v2.dbn.zst", "test_data.bbo-1s.v3.dbn.zst", "test_data.cbbo-1s.dbn",
    "test_data.cbbo-1s.v2.dbn.zst", "test_data.cbbo-1s.v3.dbn.zst", "test_data.cmbp-1.dbn",
    "test_data.cmbp-1.v2.dbn.zst", "test_data.cmbp-1.v3.dbn.zst", "test_data.definition.dbn",
    "test_data.definition.v1.dbn.zst", "test_data.definition.v2.dbn.zst", "test_data.definition.v3.dbn.zst",
    "test_data.imbalance.dbn", "test_data.imbalance.v1.dbn.zst", "test_data.imbalance.v2.dbn.zst",
    "test_data.imbalance.v3.dbn.zst", "test_data.mbo.dbn", "test_data.mbo.v1.dbn.zst", "test_data.mbo.v2.dbn.zst",
    "test_data.mbo.v3.dbn", "test_data.mbo.v3.dbn.zst", "test_data.mbp-1.dbn", "test_data.mbp-1.v1.dbn.zst",
    "test_data.mbp-1.v2.dbn.zst", "test_data.mbp-1.v3.dbn.zst", "test_data.mbp-10.dbn", "test_data.mbp-10.v1.dbn.zst",
    "test_data.mbp-10.v2.dbn.zst", "test_data.mbp-10.v3.dbn.zst",
    *(f"test_data.ohlcv-1{unit}.{tail}.dbn.zst" for unit in "dhms" for tail in ("v1", "v2", "v3")),
    *(f"test_data.ohlcv-1{unit}.dbn" for unit in "dhms"),
    "test_data.statistics.dbn", "test_data.statistics.v1.dbn.zst", "test_data.statistics.v2.dbn.zst",
    "test_data.statistics.v3.dbn.zst", "test_data.status.dbn", "test_data.status.v2.dbn.zst",
    "test_data.status.v3.dbn.zst", "test_data.tbbo.dbn", "test_data.tbbo.v1.dbn.zst", "test_data.tbbo.v2.dbn.zst",
    "test_data.tbbo.v3.dbn.zst", "test_data.trades.dbn", "test_data.trades.v1.dbn.zst", "test_data.trades.v2.dbn.zst",
    "test_data.trades.v3.dbn.zst",
]  # fmt: skip
FRAGMENTS = [
    ("multi-frame.definition.v1.dbn.frag.zst", 1), ("test_data.definition.dbn.frag.zst", None),
    ("test_data.definition.v1.dbn.frag", 1), ("test_data.definition.v1.dbn.frag.zst", 1),
    ("test_data.definition.v2.dbn.frag", 2), ("test_data.definition.v3.dbn.frag", 3),
    ("test_data.definition.v3.dbn.frag.zst", 3),
]  # fmt: skip


def theirs(data: bytes, version: int | None = None, has_metadata: bool = True) -> list[Any]:
    """Metadata and records, read by Databento's decoder in their own version."""
    if data[:4] == b"\x28\xb5\x2f\xfd":
        data = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    decoder = db.DBNDecoder(has_metadata, False, version, db.VersionUpgradePolicy.AS_IS)
    decoder.write(data)
    found: list[Any] = decoder.decode()
    assert not decoder.buffer()
    return found


def their_value(record: Any, name: str) -> Any:
    """A field of their record, as it is on the wire."""
    if name[-3:-2] == "_" and name[-2:].isdigit():
        return getattr(record.levels[int(name[-2:])], name[:-3])
    value = getattr(record, name)
    if name.startswith("is_"):  # their three-state values
        return {True: b"Y", False: b"N", None: b"~"}[value]
    value = getattr(value, "value", value)  # the value of an enumeration
    return value.encode() if isinstance(value, str) else value


def check_all(file: DbnFile, records: list[Any]) -> int:
    """Compare our reading of every field of every record with theirs."""
    ours = [each for chunk in file.chunks() for each in READER.read(chunk.frames)]
    for (name, values), record in zip(ours, records, strict=True):
        message = FORMAT.messages[name]
        assert message.size == record.record_size()
        for field, value in values.items():
            expected = their_value(record, field)
            null = message.fields[field].null
            if value is None:
                assert expected in (null, None), (name, field)
            elif isinstance(value, bytes) and isinstance(expected, int):
                assert value == bytes([expected]).rstrip(b"\0"), (name, field)
            else:
                text = expected.rstrip(b" \0") if isinstance(expected, bytes) else expected
                assert value == text, (name, field)
        named = {field for field in record._ordered_fields if not field.startswith(("rtype", "length"))}
        assert named <= {*values, "ts_index", "symbol", "pretty_ts_event"}, "they have no field that we have not"
    return len(ours)


@pytest.mark.parametrize("name", FILES)
def test_every_record_reads_as_databentos_decoder_reads_it(name: str) -> None:
    data = shared_file(f"dbn/{name}").read_bytes()
    metadata, *records = theirs(data)
    ours = read_dbn(data)
    assert check_all(ours, records) == len(records)
    assert records or "ohlcv-1d" in name, "those alone have no record"
    said = ours.metadata
    assert said is not None
    assert (said.version, said.dataset, said.schema) == (metadata.version, metadata.dataset, str(metadata.schema))
    assert (said.start_ns, said.end_ns, said.limit) == (metadata.start, metadata.end, metadata.limit)
    assert (list(said.symbols), list(said.partial), list(said.not_found)) == (
        metadata.symbols,
        metadata.partial,
        metadata.not_found,
    )
    intervals = {
        symbol: [
            (int(f"{each['start_date']:%Y%m%d}"), int(f"{each['end_date']:%Y%m%d}"), each["symbol"]) for each in spans
        ]
        for symbol, spans in metadata.mappings.items()
    }
    assert {each.raw_symbol: list(each.intervals) for each in said.mappings} == intervals


@pytest.mark.parametrize(("name", "version"), FRAGMENTS)
def test_fragments_have_only_records(name: str, version: int | None) -> None:
    data = shared_file(f"dbn/{name}").read_bytes()
    ours = read_dbn(data)
    assert ours.metadata is None
    sizes = {1: 360, 2: 400, 3: 520}
    found = version or next(v for v, size in sizes.items() if size == 4 * ours.records[0])
    assert check_all(ours, theirs(data, found, False)) > 0


def test_a_real_session_of_a_future_market_by_order_reads_across_its_zstd_frames() -> None:
    data = shared_file("futures/esh4-glbx-mdp3-20231224.mbo.dbn.zst").read_bytes()
    _, *records = theirs(data)
    ours = read_dbn(data)
    assert ours.metadata is not None
    assert ours.metadata.schema == "mbo"
    assert check_all(ours, records) == 8_725
    assert [chunk.message_count for chunk in ours.chunks(5_000)] == [5_000, 3_725]


def test_the_document_has_every_record_type_and_size_of_databentos_decoder() -> None:
    theirs_by_name = {
        "trade": db.TradeMsg, "mbp1": db.MBP1Msg, "mbp10": db.MBP10Msg, "mbo": db.MBOMsg, "status": db.StatusMsg,
        "imbalance": db.ImbalanceMsg, "definition1": db.InstrumentDefMsgV1, "definition2": db.InstrumentDefMsgV2,
        "definition3": db.InstrumentDefMsg, "statistics1": db.StatMsgV1, "statistics3": db.StatMsg,
        "bbo1s": db.BBOMsg, "bbo1m": db.BBOMsg, "cmbp1": db.CMBP1Msg, "cbbo1s": db.CBBOMsg, "error2": db.ErrorMsg,
        "symbolMapping1": db.SymbolMappingMsgV1, "symbolMapping2": db.SymbolMappingMsg, "system2": db.SystemMsg,
        "error1": db.ErrorMsgV1, "system1": db.SystemMsgV1,
        "ohlcv1s": db.OHLCVMsg, "ohlcv1m": db.OHLCVMsg, "ohlcv1h": db.OHLCVMsg, "ohlcv1d": db.OHLCVMsg,
        "ohlcvEod": db.OHLCVMsg,
    }  # fmt: skip
    for name, theirs_type in theirs_by_name.items():
        assert FORMAT.messages[name].size == theirs_type.size_hint, name
    assert [str(schema) for schema in db.Schema.variants()] == list(SCHEMAS)


def with_send_times(data: bytes) -> bytes:
    """The same file as a server that adds send times would send it."""
    at = 8 + 16 + 2 + 24 + 2
    size = 8 + int.from_bytes(data[4:8], "little")
    head, records, out = bytearray(data[:size]), data[size:], b""
    head[at] = 1
    while records:
        length = 4 * records[0]
        out += bytes([records[0] + 2]) + records[1:length] + (77).to_bytes(8, "little")
        records = records[length:]
    return bytes(head) + out


def test_send_times_after_records_are_removed() -> None:
    data = shared_file("dbn/test_data.mbo.v3.dbn").read_bytes()
    ours = read_dbn(with_send_times(data))
    assert ours.metadata is not None
    assert ours.metadata.has_ts_out
    assert ours.records == read_dbn(data).records
    assert [record.ts_out for record in theirs(with_send_times(data))[1:]] == [77, 77]


def test_a_damaged_file_is_refused_with_the_offset() -> None:
    data = shared_file("dbn/test_data.mbo.v3.dbn").read_bytes()
    packed = zstandard.ZstdCompressor().compress(data)
    assert read_dbn(b"\x50\x2a\x4d\x18\4\0\0\0skip" + packed).records == read_dbn(data).records
    for damaged, reason in (
        (data[:6], "offset 0: 6 bytes are too short for metadata"),
        (b"DBN\4" + data[4:], "offset 3: the DBN version is 4"),
        (data[:300], "offset 4: the metadata has 352 bytes"),
        (data[:4] + (90).to_bytes(4, "little") + data[8:], "version 3 needs"),
        (data[:4] + (140).to_bytes(4, "little") + data[8:], "ends within its symbols"),
        (data[:24] + b"\x63\0" + data[26:], "schema 99 is unknown"),
        (packed[:-5], "zstd frame is truncated"),
        (packed[:6] + b"\xff" * 10 + packed[16:], "zstd frame is damaged"),
    ):
        with pytest.raises(FormatError, match=reason):
            read_dbn(damaged)
    for damaged in (data[:-1], data[:360] + b"\3" + data[361:], data[:360] + b"\xff" + data[361:]):
        with pytest.raises(FormatError, match=r"offset \d+: a record has \d+ bytes"):
            read_dbn(damaged)


@given(st.integers(1, 200), st.booleans(), st.integers(0, 30))
def test_a_stream_in_blocks_of_any_size_has_every_whole_record(block_size: int, has_send_times: bool, cut: int) -> None:
    data = shared_file("dbn/test_data.mbo.v3.dbn").read_bytes()
    records = read_dbn(data).records
    file = BytesIO((with_send_times(data) if has_send_times else data)[: -cut or None])
    found = list[bytes]()
    with pytest.raises(FormatError, match="only") if cut else nullcontext():
        for block in DbnStream(file).blocks(block_size):
            found.append(block)
    assert b"".join(found) == (records[: len(records) // 2] if cut else records)


def test_a_record_without_room_for_its_send_time_is_refused() -> None:
    data = with_send_times(shared_file("dbn/test_data.mbo.v3.dbn").read_bytes())
    size = 8 + int.from_bytes(data[4:8], "little")
    with pytest.raises(FormatError, match="offset 0: a record of 16 bytes has no room for 8 bytes of send time"):
        read_dbn(data[:size] + b"\4" + data[size + 1 :])
