"""The symbols in the metadata of a DBN file, as records of the type `metadataMapping` among the file's own.

Records name instruments by number; the metadata says which symbol a number has on which days. A converter sees only
messages, so each interval of a mapping becomes a message before the first record of its first day.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import groupby

import numpy as np
from numba import types
from numpy.typing import NDArray

from tandemfeed.adapter.conversion.formats.chunks import MESSAGE_COUNT_MAX, FormatError, FrameChunk
from tandemfeed.adapter.conversion.formats.files.dbn import WORD_SIZE, DbnMetadata
from tandemfeed.adapter.kernel_cache import compiled
from tandemfeed.feedcore.documents.source_layout import SourceFormat, SourceMessageType

MAPPING = "metadataMapping"  # its name in dbn.xml
BY_INSTRUMENT_ID = 0  # the symbol type that is the instrument's number
RECORDS, PLACES = types.Array(types.uint8, 1, "C", readonly=True), types.Array(types.int64, 1, "C")


@compiled(types.int64(RECORDS, types.int64, PLACES, types.uint64))
def _first_from(records, at, places, time):  # type: ignore[no-untyped-def]
    """Where the first record from `at` on begins whose time is not before `time`; the end if there is none.

    Args:
        records: whole ones.
    """
    while at < records.size:
        size = np.int64(records[at]) * WORD_SIZE
        place = places[records[at + 1]]
        if 0 < place <= size - 8:
            found = np.uint64(0)
            for number in range(8):
                found |= np.uint64(records[at + place + number]) << np.uint64(8 * number)
            if found >= time and found != np.uint64(0xFFFF_FFFF_FFFF_FFFF):
                return at
        at += size
    return np.int64(records.size)


def parts_by_day(
    blocks: Iterable[bytes], metadata: DbnMetadata | None, source_format: SourceFormat
) -> Iterator[FrameChunk | bytes]:
    """The records of a file in parts, and before each part the mappings that begin to apply with it.

    Args:
        blocks: whole records.

    Raises:
        FormatError: a symbol of the metadata does not fit.
    """
    places, mapping = _places_of_times(source_format), source_format.messages.get(MAPPING)
    found = [] if metadata is None or mapping is None else _mappings(metadata, mapping)
    days = deque((day, [frame for _, frame in group]) for day, group in groupby(found, key=lambda each: each[0]))
    if days:
        yield from _chunks(days.popleft()[1])
    for block in blocks:
        view, start = np.frombuffer(block, np.uint8), 0
        while days and (end := int(_first_from(view, start, places, _midnight_ns(days[0][0])))) < len(block):
            yield block[start:end]
            yield from _chunks(days.popleft()[1])
            start = end
        yield block[start:]
    for _, frames in days:
        yield from _chunks(frames)


def _chunks(frames: list[bytes]) -> Iterator[FrameChunk]:
    for at in range(0, len(frames), MESSAGE_COUNT_MAX):
        part = frames[at : at + MESSAGE_COUNT_MAX]
        yield FrameChunk(b"".join(part), len(part), at + 1)


def _places_of_times(source_format: SourceFormat) -> NDArray[np.int64]:
    """By type of a record, where it has the time that files are sorted by: of its receipt, or else of its event."""
    places = np.zeros(256, np.int64)
    for message in source_format.messages.values():
        time = message.fields.get("ts_recv") or message.fields.get("ts_event")
        if time is not None:
            places[message.type_id] = time.offset
    return places


def _midnight_ns(day: int) -> int:
    """The beginning of a day YYYYMMDD in UTC, in nanoseconds since 1970."""
    text = f"{day:08}"
    return int(np.datetime64(f"{text[:4]}-{text[4:6]}-{text[6:]}", "ns").astype(np.int64))


def _mappings(metadata: DbnMetadata, message: SourceMessageType) -> list[tuple[int, bytes]]:
    """(first day, record) of each interval that maps an instrument's number, by day."""
    found = []
    for mapping in metadata.mappings:
        for first, end, name in mapping.intervals:
            number, symbol = name, mapping.raw_symbol
            if metadata.symbol_type_out != BY_INSTRUMENT_ID:
                number, symbol = symbol, number
            if number.isdecimal():
                found.append((first, _record(message, int(number), first, end, symbol)))
    return sorted(found, key=lambda each: each[0])


def _record(message: SourceMessageType, instrument_id: int, first: int, end: int, symbol: str) -> bytes:
    """The record of a mapping, as the format's document describes it."""
    text, room = symbol.encode(), message.fields["symbol"].size
    if len(text) > room:
        raise FormatError(f"the metadata's symbol {symbol!r} has {len(text)} bytes; at most {room} are read")
    numbers = {"instrument_id": instrument_id, "ts_event": _midnight_ns(first), "start_date": first, "end_date": end}
    record = bytearray(message.size)
    framing = message.framing
    for place, header in ((framing.length, message.size // framing.length_unit), (framing.type, message.type_id)):
        record[place.offset : place.end] = header.to_bytes(place.size, "little")
    for field in message.fields.values():
        value = text.ljust(room, b"\0") if field.is_text else numbers.get(field.name, 0).to_bytes(field.size, "little")
        record[field.offset : field.offset + field.size] = value
    return bytes(record)
