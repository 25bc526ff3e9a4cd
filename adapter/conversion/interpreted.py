"""The same table in plain Python, message by message: slow, obvious, and the oracle the kernel is held against."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from adapter.conversion.functions import NULL
from adapter.conversion.kernel_source import kernel_source
from adapter.conversion.state_store import BUCKET_COUNT, MIX, MULTIPLIER
from adapter.conversion.table import Conversion, ConverterTable, Step
from feedcore.converter import Converted
from feedcore.primitive_types import PrimitiveType
from feedcore.source_format import SourceField
from feedcore.source_packet import SOURCE_FRAME, SOURCE_FRAME_SIZE, SOURCE_HEADER_SIZE

MASK64 = (1 << 64) - 1
SBE_PREFIX = struct.Struct("<HHHHHH")
SIGN_BIT = 1 << 63


class InterpretedConverter:
    """`feedcore.converter.Converter`, without a kernel."""

    def __init__(self, table: ConverterTable) -> None:
        self._table = table
        self._conversions = {conversion.source.type_id: conversion for conversion in table.conversions}
        self.rows: dict[int, list[int]] = {}
        self.bad = {"unknown_type": 0, "wrong_length": 0}
        self._fingerprint = hashlib.sha256(kernel_source(table).encode()).digest()[:16]

    def check(self, datagram: bytes) -> bool:
        """See `Converter.check`."""
        if len(datagram) < SOURCE_HEADER_SIZE:
            return False
        (count,) = struct.unpack_from("<H", datagram, 10)
        position = SOURCE_HEADER_SIZE
        for _ in range(count):
            if position + SOURCE_FRAME_SIZE > len(datagram):
                return False
            length = SOURCE_FRAME.unpack_from(datagram, position)[0]
            if length < SOURCE_FRAME_SIZE:
                return False
            position += length
        return position == len(datagram)

    def convert(
        self, datagram: bytes, skip: int, count: int, out: NDArray[np.uint8], start: int, end: int
    ) -> Converted:
        """See `Converter.convert`."""
        position = SOURCE_HEADER_SIZE
        for _ in range(skip):
            position += SOURCE_FRAME.unpack_from(datagram, position)[0]
        cursor, written = start, 0
        for index in range(count):
            length, kind = SOURCE_FRAME.unpack_from(datagram, position)
            conversion = self._conversions.get(kind)
            if conversion is None:
                self.bad["unknown_type"] += 1
            elif length != conversion.source.frame_size:
                self.bad["wrong_length"] += 1
            else:
                if cursor + conversion.target.frame_size > end:
                    return Converted(index, written, cursor)
                body = datagram[position + SOURCE_FRAME_SIZE : position + length]
                frame = self._frame(conversion, body, index)
                out[cursor : cursor + len(frame)] = np.frombuffer(frame, np.uint8)
                cursor += len(frame)
                written += 1
            position += length
        return Converted(count, written, cursor)

    def digests(self) -> NDArray[np.uint64]:
        """See `Converter.digests`."""
        digests = [0] * BUCKET_COUNT
        for key, row in self.rows.items():
            mixed = _hash(key & MASK64)
            bucket = mixed % BUCKET_COUNT
            for value in self._stored(row):
                mixed = _hash(mixed ^ (value & MASK64))
            digests[bucket] = (digests[bucket] + mixed) & MASK64
        return np.array(digests, dtype=np.uint64)

    def snapshot(self) -> bytes:
        """See `Converter.snapshot`; the same bytes as the kernel's."""
        return self._header(b"TFCS", len(self.rows)) + self._packed(sorted(self.rows))

    def restore(self, snapshot: bytes) -> None:
        """See `Converter.restore`."""
        count = self._checked(snapshot, b"TFCS")
        self.rows = self._unpacked(snapshot, 28, count)

    def snapshot_buckets(self, buckets: Sequence[int]) -> bytes:
        """See `Converter.snapshot_buckets`; the same bytes as the kernel's."""
        wanted = sorted(set(buckets))
        keys = sorted(key for key in self.rows if _hash(key & MASK64) % BUCKET_COUNT in wanted)
        listed = struct.pack(f"<H{len(wanted)}H", len(wanted), *wanted)
        return self._header(b"TFCB", len(keys)) + listed + self._packed(keys)

    def restore_buckets(self, data: bytes) -> None:
        """See `Converter.restore_buckets`."""
        count = self._checked(data, b"TFCB")
        (listed,) = struct.unpack_from("<H", data, 28)
        wanted = struct.unpack_from(f"<{listed}H", data, 30)
        theirs = self._unpacked(data, 30 + 2 * listed, count)
        kept = {key: row for key, row in self.rows.items() if _hash(key & MASK64) % BUCKET_COUNT not in wanted}
        self.rows = kept | theirs

    def _header(self, magic: bytes, count: int) -> bytes:
        return struct.pack("<4s16sII", magic, self._fingerprint, count, len(self._table.initial_state))

    def _checked(self, data: bytes, magic: bytes) -> int:
        if len(data) < 28 or data[:20] != magic + self._fingerprint:
            raise ValueError("not a snapshot of this table's state")
        return int.from_bytes(data[20:24], "little")

    def _packed(self, keys: list[int]) -> bytes:
        cells = [cell for key in keys for cell in self._stored(self.rows[key])]
        return struct.pack(f"<{len(keys)}q", *keys) + b"".join((cell & MASK64).to_bytes(8, "little") for cell in cells)

    def _unpacked(self, data: bytes, at: int, count: int) -> dict[int, list[int]]:
        columns = len(self._table.initial_state)
        if len(data) != at + 8 * count * (1 + columns):
            raise ValueError("the snapshot is cut short")
        values = struct.unpack_from(f"<{count * (1 + columns)}q", data, at)
        rows = (values[count + place * columns : count + (place + 1) * columns] for place in range(count))
        return {key: self._merged(list(row)) for key, row in zip(values[:count], rows, strict=True)}

    def _merged(self, stored: list[int]) -> list[int]:
        """The inverse of `_stored`."""
        row = list(stored)
        for high, low in {
            (step.columns[0], step.columns[1])
            for conversion in self._table.conversions
            for step in conversion.steps
            if step.function.name == "vwap"
        }:
            row[high], row[low] = (stored[high] << 32) + stored[low], 0
        return row

    def _frame(self, conversion: Conversion, body: bytes, index: int) -> bytes:
        target, table = conversion.target, self._table
        row: list[int] = []
        if conversion.key is not None:
            key = _value(body, conversion.key)
            row = self.rows.setdefault(key, list(table.initial_state))
        for step in conversion.steps:
            _update(step, body, row)
        frame = bytearray(target.frame_size)
        SBE_PREFIX.pack_into(
            frame,
            0,
            target.frame_size,
            index,
            target.block_length,
            target.template_id,
            table.schema_id,
            table.schema_version,
        )
        for step in conversion.steps:
            if step.target is not None:
                at = SBE_PREFIX.size + step.target.offset
                frame[at : at + step.target.size] = _output(step, body, row)
        return bytes(frame)

    def _stored(self, row: list[int]) -> list[int]:
        """A row as the kernel stores it: the turnover split in high and low."""
        stored = list(row)
        for conversion in self._table.conversions:
            for step in conversion.steps:
                if step.function.name == "vwap":
                    high, low, _ = step.columns
                    stored[high], stored[low] = row[high] >> 32, row[high] & 0xFFFF_FFFF
        return stored


def _hash(key: int) -> int:
    value = key * int(MULTIPLIER) & MASK64
    value ^= value >> 32
    value = value * int(MIX) & MASK64
    return value ^ (value >> 29)


def _value(body: bytes, field: SourceField) -> int:
    """A source value as the kernel sees it: an int64, a uint64 keeping its bits."""
    raw = body[field.offset : field.offset + field.size]
    value = int.from_bytes(raw, "little", signed=field.kind.minimum < 0)
    return value - (1 << 64) if value >= SIGN_BIT else value


def _update(step: Step, body: bytes, row: list[int]) -> None:
    """What the function does to its cells. The turnover is kept whole in its first column."""
    name, columns = step.function.name, step.columns
    if name in ("copy", "constant", "peek"):
        return
    value = _value(body, step.sources["of"])
    if name == "day_volume":
        row[columns[0]] += value
    elif value == NULL:
        return
    elif name == "day_high":
        row[columns[0]] = value if row[columns[0]] == NULL else max(row[columns[0]], value)
    elif name == "day_low":
        row[columns[0]] = min(row[columns[0]], value)
    elif name == "last":
        row[columns[0]] = value
    elif name == "vwap":
        weight = _value(body, step.sources["weight"])
        row[columns[0]] += value * weight
        row[columns[2]] += weight
    else:
        raise AssertionError(f"the interpreter does not know {name}")


def _output(step: Step, body: bytes, row: list[int]) -> bytes:
    assert step.target is not None
    name = step.function.name
    if name == "copy":
        source = step.sources["of"]
        if source.length > 1:
            return body[source.offset : source.offset + source.size]
        return _encode(_value(body, source), step.target.kind)
    if name == "constant":
        return _encode(step.constant, step.target.kind)
    if name == "vwap":
        turnover, _, weight = (row[column] for column in step.columns)
        return _encode(turnover // weight if weight else NULL, step.target.kind)
    return _encode(row[step.columns[0]], step.target.kind)


def _encode(value: int, kind: PrimitiveType) -> bytes:
    return (value & ((1 << (8 * kind.size)) - 1)).to_bytes(kind.size, "little")
