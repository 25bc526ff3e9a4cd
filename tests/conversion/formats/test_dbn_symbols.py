"""The symbols in a DBN file's metadata, and in its symbol mapping records, are in what the file is converted to."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.chunks import FormatError, FrameChunk
from tandemfeed.adapter.conversion.formats.files.dbn import DbnMapping, DbnMetadata
from tandemfeed.adapter.conversion.formats.files.dbn_symbols import parts_by_day
from tandemfeed.adapter.conversion.formats.frames.frame_reader import FrameReader
from tandemfeed.adapter.convert_command.input.compressed import DecompressedFile
from tandemfeed.adapter.convert_command.input.reading import dbn_chunks
from tandemfeed.feedcore.documents.source_format import load_source_format
from tests.conversion.formats import test_format_dbn
from tests.conversion.formats.tick_material import interpreted
from tests.real_data import shared_file

FORMAT = load_source_format(document("dbn.xml"))
RAW_SYMBOL, INSTRUMENT_ID = 1, 0
HOUR_NS = 3_600 * 10**9


def trade(instrument: int, day: int, hour: int = 12) -> bytes:
    at = int(datetime(2026, 11, day, tzinfo=UTC).timestamp()) * 10**9 + hour * HOUR_NS
    return struct.pack("<BBHIQqIccBBQiI", 12, 0, 1, instrument, at - HOUR_NS, 5, 1, b"T", b"A", 0, 0, at, 0, 7)


def metadata(*mappings: DbnMapping, kinds: tuple[int, int] = (RAW_SYMBOL, INSTRUMENT_ID)) -> DbnMetadata:
    return DbnMetadata(3, "TEST", "trades", 0, None, None, *kinds, False, (), (), (), mappings)


def blocks_of(records: bytes) -> list[bytes]:
    """The same in blocks of two records."""
    return [records[at : at + 96] for at in range(0, len(records), 96)]


def chunks(records: bytes, given: DbnMetadata) -> list[FrameChunk]:
    return [
        part if isinstance(part, FrameChunk) else FrameChunk(part, len(part) // 48, 1)
        for part in parts_by_day(blocks_of(records), given, FORMAT)
        if part
    ]


def symbols(found: list[tuple[str, dict[str, Any]]]) -> list[str | None]:
    return [values.get("symbol") for _, values in found]


FILES = ["mbo.v3", "mbp-1.v2", "mbp-10.v1", "tbbo.v3", "bbo-1s.v3", "ohlcv-1m.v3", "status.v3", "statistics.v2"]


@pytest.mark.parametrize("name", FILES)
def test_messages_have_the_symbols_that_the_metadata_gives(name: str) -> None:
    path = shared_file(f"dbn/test_data.{name}.dbn.zst")
    said, *records = test_format_dbn.theirs(path.read_bytes())
    names = {int(each["symbol"]): symbol for symbol, spans in said.mappings.items() for each in spans}
    with DecompressedFile(path) as file:
        found = interpreted("dbn", dbn_chunks(file, FORMAT))
    assert len(found) >= len(records) > 0
    assert {(values["instrumentId"], values.get("symbol")) for _, values in found} == {
        (record.instrument_id, names.get(record.instrument_id)) for record in records
    }


def test_an_instruments_number_may_have_another_symbol_on_another_day() -> None:
    given = metadata(
        DbnMapping("OLD", ((20261121, 20261122, "5"),)),
        DbnMapping("NEW", ((20261122, 20261124, "5"),)),
        DbnMapping("OTHER", ((20261121, 20261124, "6"),)),
    )
    records = trade(5, 21) + trade(6, 21) + trade(5, 22, hour=0) + trade(6, 23) + trade(5, 23) + trade(7, 23)
    found = interpreted("dbn", chunks(records, given))
    assert symbols(found) == ["OLD", "OTHER", "NEW", "OTHER", "NEW", None]


def test_the_metadata_may_map_numbers_to_symbols() -> None:
    given = metadata(DbnMapping("5", ((20261121, 20261124, "ESH7"),)), kinds=(INSTRUMENT_ID, RAW_SYMBOL))
    assert symbols(interpreted("dbn", chunks(trade(5, 21), given))) == ["ESH7"]


def test_every_interval_of_a_mapping_becomes_a_message() -> None:
    given = metadata(DbnMapping("A", ((20261121, 20261122, "5"), (20261125, 20261126, "8"), (20261126, 20261127, ""))))
    frames = b"".join(chunk.frames for chunk in chunks(trade(5, 21), given))
    read = [values for name, values in FrameReader(FORMAT).read(frames) if name == "metadataMapping"]
    assert [(each["instrument_id"], each["start_date"], each["end_date"], each["symbol"]) for each in read] == [
        (5, 20261121, 20261122, b"A"),
        (8, 20261125, 20261126, b"A"),
    ]


def test_a_symbol_that_does_not_fit_is_refused() -> None:
    given = metadata(DbnMapping("X" * 72, ((20261121, 20261122, "5"),)))
    with pytest.raises(FormatError, match="has 72 bytes; at most 71 are read"):
        list(parts_by_day([], given, FORMAT))


def test_symbol_mapping_records_name_instruments_too() -> None:
    mapping = struct.pack("<BBHIQB71sB71sQQ", 44, 22, 0, 5, 0, 1, b"ES.c.0", 1, b"ESZ6", 0, 0)
    older = struct.pack("<BBHIQ22s22s4xQQ", 20, 22, 0, 6, 0, b"NQ.c.0", b"NQZ6", 0, 0)
    found = interpreted("dbn", [FrameChunk(mapping + older + trade(5, 21) + trade(6, 21), 4, 1)])
    assert symbols(found) == ["ESZ6", "NQZ6"]


def test_a_source_format_of_ones_own_may_lack_mappings_and_times(tmp_path: Path) -> None:
    path = tmp_path / "own.xml"
    path.write_text(
        '<sourceFormat name="own" byteOrder="littleEndian">'
        '<framing headerSize="0" length="uint8" lengthUnit="4" type="uint8" typeOffset="1"/>'
        '<message name="trade" type="0" size="48"><field name="price" type="int64" offset="16"/></message>'
        "</sourceFormat>"
    )
    records = trade(1, day=20) + trade(1, day=21)
    given = metadata(DbnMapping("A", ((20261120, 20261122, "1"),)))
    assert [part for part in parts_by_day([records], given, load_source_format(path)) if part] == [records]
