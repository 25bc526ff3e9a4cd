"""Databento Binary Encoding (DBN): metadata, then records; plain or zstd-compressed, in one frame or several.

A record begins with its length in words of four bytes and its type, so that walking over records does not depend on the
version. If the metadata says that the server's send time follows each record (`ts_out`), the reader removes it: its
output records are as the format's document describes them. `DbnStream` reads files of any size, `read_dbn` what is in
memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NoReturn

import numpy as np
import zstandard
from numba import types

from tandemfeed.adapter.conversion.formats.chunks import MESSAGE_COUNT_MAX, FormatError, FrameChunk
from tandemfeed.adapter.kernel_cache import compiled

DBN_MAGIC = b"DBN"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ZSTD_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
WORD_SIZE = 4
RECORD_SIZE_MIN = 16  # a record's header
TS_OUT_SIZE = 8
SYMBOL_SIZE_V1 = 22
RESERVED_SIZE_V1, RESERVED_SIZE = 47, 53
VERSION_MAX = 3
NONE_16, NONE_8, NONE_64 = 0xFFFF, 0xFF, (1 << 64) - 1
HEAD_SIZE = 8  # the magic, the version, and the size of the metadata
BLOCK_SIZE = 4 << 20  # read at a time, so that a file of any size needs little memory
RECORDS, KEPT = types.Array(types.uint8, 1, "C", readonly=True), types.Array(types.uint8, 1, "C")
_FIXED_V1 = struct.Struct("<16sHQQQ8xBBB")
_FIXED = struct.Struct("<16sHQQQBBBH")
SCHEMAS = (
    *("mbo", "mbp-1", "mbp-10", "tbbo", "trades", "ohlcv-1s", "ohlcv-1m", "ohlcv-1h", "ohlcv-1d", "definition"),
    *("statistics", "status", "imbalance", "ohlcv-eod", "cmbp-1", "cbbo-1s", "cbbo-1m", "tcbbo", "bbo-1s", "bbo-1m"),
)


@dataclass(frozen=True, slots=True)
class DbnMapping:
    """The names of an instrument, by day.

    Attributes:
        intervals: (first day, day after the last, symbol); days as YYYYMMDD.
    """

    raw_symbol: str
    intervals: tuple[tuple[int, int, str], ...]


@dataclass(frozen=True, slots=True)
class DbnMetadata:
    """The metadata before the records.

    Attributes:
        schema: the schema of the records; None if there are several.
        start_ns, end_ns: the requested times, since the Unix epoch; None if the end is open.
        limit: the largest number of records requested; None for all.
        symbol_type_in, symbol_type_out: the symbol types of the request and of the mappings; None if mixed.
        has_ts_out: the server's send time follows each record.
    """

    version: int
    dataset: str
    schema: str | None
    start_ns: int
    end_ns: int | None
    limit: int | None
    symbol_type_in: int | None
    symbol_type_out: int
    has_ts_out: bool
    symbols: tuple[str, ...]
    partial: tuple[str, ...]
    not_found: tuple[str, ...]
    mappings: tuple[DbnMapping, ...]


@dataclass(frozen=True, slots=True)
class DbnFile:
    """A DBN file.

    Attributes:
        metadata: None for a fragment, which has only records.
        records: all records, one after another; each is whole.
    """

    metadata: DbnMetadata | None
    records: bytes

    def chunks(self, messages_max: int = MESSAGE_COUNT_MAX) -> Iterator[FrameChunk]:
        """The records in chunks, numbered from 1."""
        first, start, offset, count = 1, 0, 0, 0
        records = self.records
        while offset < len(records):
            offset += records[offset] * WORD_SIZE
            count += 1
            if count == messages_max:
                yield FrameChunk(records[start:offset], count, first)
                first, start, count = first + count, offset, 0
        if count:
            yield FrameChunk(records[start:offset], count, first)


@compiled(types.UniTuple(types.int64, 2)(RECORDS, types.int64, KEPT))
def _take_whole_records(data, tail, kept):  # type: ignore[no-untyped-def]
    """(end, bytes kept) of the whole records from the beginning on.

    Args:
        tail: bytes at the end of each record that are not kept.
        kept: receives the records without them, if there is a tail.
    """
    at = to = 0
    while at < data.size:
        size = np.int64(data[at]) * WORD_SIZE
        if size < RECORD_SIZE_MIN + tail or at + size > data.size:
            break
        if tail:
            kept[to] = (size - tail) // WORD_SIZE
            for place in range(1, size - tail):
                kept[to + place] = data[at + place]
        at += size  # type: ignore[assignment]
        to += size - tail
    return np.int64(at), np.int64(to)


class DbnStream:
    """A DBN file or fragment, decompressed, as a stream.

    Attributes:
        metadata: None for a fragment, which has only records.

    Raises:
        FormatError: the metadata is damaged, or its version is unknown.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        head = file.read(HEAD_SIZE)
        self.metadata, self._begun = None, head
        if head.startswith(DBN_MAGIC):
            version, size = _version_and_size(head)
            self.metadata, self._begun = _metadata(version, size, file.read(size)), b""

    def blocks(self, block_size: int = BLOCK_SIZE) -> Iterator[bytes]:
        """The records, in blocks of whole ones, without send times.

        Raises:
            FormatError: with the offset among the records, after those that are whole.
        """
        data, offset, tail = self._begun, 0, _send_time_size(self.metadata)
        while True:
            more = self._file.read(block_size)
            data = data + more if data else more
            if not data:
                return
            end, records = _whole_records(data, tail)
            if end:
                yield records
            if end < len(data) and not more:
                _refuse_record(data, end, offset, tail)
            offset, data = offset + end, data[end:]


def read_dbn(data: bytes) -> DbnFile:
    """Read a DBN file or fragment, plain or zstd-compressed.

    Raises:
        FormatError: it is damaged, or its version is unknown.
    """
    if data[:4] == ZSTD_MAGIC or int.from_bytes(data[:4], "little") in ZSTD_SKIPPABLE:
        data = _decompressed(data)
    metadata = None
    if data.startswith(DBN_MAGIC):
        version, size = _version_and_size(data[:HEAD_SIZE])
        metadata = _metadata(version, size, data[HEAD_SIZE : HEAD_SIZE + size])
        data = data[HEAD_SIZE + size :]
    tail = _send_time_size(metadata)
    end, records = _whole_records(data, tail)
    if end < len(data):
        _refuse_record(data, end, 0, tail)
    return DbnFile(metadata, records)


def _send_time_size(metadata: DbnMetadata | None) -> int:
    return TS_OUT_SIZE if metadata is not None and metadata.has_ts_out else 0


def _whole_records(data: bytes, tail: int) -> tuple[int, bytes]:
    """(where the whole records end, these without `tail` bytes each)."""
    kept = np.empty(len(data) if tail else 0, np.uint8)
    end, size = _take_whole_records(np.frombuffer(data, np.uint8), tail, kept)
    return int(end), kept[:size].tobytes() if tail else data[:end]


def _refuse_record(data: bytes, at: int, offset: int, tail: int) -> NoReturn:
    """Raises FormatError: the record that begins at `at` is not whole, or has no room for a send time."""
    size = data[at] * WORD_SIZE
    if RECORD_SIZE_MIN <= size <= len(data) - at:
        raise FormatError(f"offset {offset + at}: a record of {size} bytes has no room for {tail} bytes of send time")
    raise FormatError(f"offset {offset + at}: a record has {size} bytes, but only {len(data) - at} are left")


def _version_and_size(head: bytes) -> tuple[int, int]:
    """The version, and the size of the metadata."""
    if len(head) < HEAD_SIZE:
        raise FormatError(f"offset 0: {len(head)} bytes are too short for metadata")
    version = head[3]
    if not 1 <= version <= VERSION_MAX:
        raise FormatError(f"offset 3: the DBN version is {version}; 1 to {VERSION_MAX} are supported")
    return version, int.from_bytes(head[4:], "little")


def _decompressed(data: bytes) -> bytes:
    """The content of all zstd frames of the file."""
    parts, rest, offset = [], data, 0
    try:
        while rest:
            if int.from_bytes(rest[:4], "little") in ZSTD_SKIPPABLE and len(rest) >= 8:
                rest = rest[8 + int.from_bytes(rest[4:8], "little") :]
                continue
            frame = zstandard.ZstdDecompressor().decompressobj()
            parts.append(frame.decompress(rest))
            if not frame.eof:
                raise FormatError(f"offset {offset}: the zstd frame is truncated")
            offset += len(rest) - len(frame.unused_data)
            rest = frame.unused_data
    except zstandard.ZstdError as damaged:
        raise FormatError(f"offset {offset}: the zstd frame is damaged: {damaged}") from None
    return b"".join(parts)


class _Cursor:
    """Reads metadata; every read is checked to end within it."""

    def __init__(self, data: bytes, offset: int, symbol_size: int) -> None:
        self._data = data
        self._offset = offset
        self._symbol_size = symbol_size

    def _take(self, size: int) -> bytes:
        part = self._data[self._offset : self._offset + size]
        if len(part) < size:
            raise FormatError(f"offset {8 + self._offset}: the metadata ends within its symbols")
        self._offset += size
        return part

    def integer(self) -> int:
        return int.from_bytes(self._take(4), "little")

    def symbol(self) -> str:
        return _text(self._take(self._symbol_size))

    def symbols(self) -> tuple[str, ...]:
        return tuple(self.symbol() for _ in range(self.integer()))

    def mapping(self) -> DbnMapping:
        raw_symbol = self.symbol()
        return DbnMapping(
            raw_symbol, tuple((self.integer(), self.integer(), self.symbol()) for _ in range(self.integer()))
        )


def _text(raw: bytes) -> str:
    try:
        return raw.rstrip(b"\0").decode()
    except UnicodeDecodeError:
        raise FormatError(f"the metadata has a name that is not text: {raw!r}") from None


def _metadata(version: int, size: int, data: bytes) -> DbnMetadata:
    if len(data) < size:
        raise FormatError(f"offset 4: the metadata has {size} bytes, but only {len(data)} are left")
    fixed = _FIXED_V1 if version == 1 else _FIXED
    symbols_at = fixed.size + (RESERVED_SIZE_V1 if version == 1 else RESERVED_SIZE) + 4
    if len(data) < symbols_at:
        raise FormatError(
            f"offset 8: the metadata has {len(data)} bytes; version {version} needs at least {symbols_at}"
        )
    values = fixed.unpack_from(data)
    dataset, schema, start, end, limit, type_in, type_out, ts_out = values[:8]
    if schema != NONE_16 and schema >= len(SCHEMAS):
        raise FormatError(f"offset 24: schema {schema} is unknown")
    cursor = _Cursor(data, symbols_at, SYMBOL_SIZE_V1 if version == 1 else values[8])
    return DbnMetadata(
        version,
        _text(dataset),
        None if schema == NONE_16 else SCHEMAS[schema],
        start,
        None if end in (0, NONE_64) else end,
        limit or None,
        None if type_in == NONE_8 else type_in,
        type_out,
        bool(ts_out),
        cursor.symbols(),
        cursor.symbols(),
        cursor.symbols(),
        tuple(cursor.mapping() for _ in range(cursor.integer())),
    )
