"""Reads single messages as a source format's document describes them, in plain Python: for people, tools and tests.

It shares no code with the kernel or with its interpreter, so that it can check both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tandemfeed.adapter.conversion.formats.chunks import FormatError
from tandemfeed.feedcore.documents.primitive_types import Place
from tandemfeed.feedcore.documents.source_layout import (
    SourceData,
    SourceField,
    SourceFormat,
    SourceGroup,
    SourceMessageType,
)


def _unsigned(data: memoryview, header: int, place: Place, is_big_endian: bool) -> int:
    """The number at a place in the header that begins at `header`."""
    return int.from_bytes(data[header + place.offset : header + place.end], "big" if is_big_endian else "little")


def field_value(field: SourceField, data: memoryview, offset: int) -> int | float | bytes | None:
    """The value of a field: a number, text without trailing spaces and NULs, or None for null.

    Args:
        offset: where the offsets of the fields count from.
    """
    if field.constant is not None:
        return field.constant
    raw = bytes(data[offset + field.offset : offset + field.offset + field.size])
    if field.is_text:
        return raw.rstrip(b" \0")
    if field.kind.is_float:
        code = (">" if field.is_big_endian else "<") + ("f" if field.size == 4 else "d")
        return float(struct.unpack(code, raw)[0])
    value = int.from_bytes(raw, "big" if field.is_big_endian else "little", signed=field.kind.minimum < 0)
    return None if value == field.null else value


class FrameReader:
    """Walks over frames of one source format and reads them."""

    def __init__(self, source_format: SourceFormat) -> None:
        self.format = source_format
        self._framing = source_format.framing
        self._types: dict[int, list[SourceMessageType]] = {}
        for message in source_format.messages.values():
            self._types.setdefault(message.type_id, []).append(message)

    def walk(self, frames: bytes | memoryview) -> Iterator[tuple[int, int, int]]:
        """(offset, size, type) of each frame.

        Raises:
            FormatError: the lengths of the frames do not add up.
        """
        view, framing, offset = memoryview(frames), self._framing, 0
        while offset < len(view):
            if offset + framing.size_min > len(view):
                raise FormatError(f"offset {offset}: {len(view) - offset} bytes are not a whole frame")
            length = _unsigned(view, offset, framing.length, framing.is_big_endian)
            size = length * framing.length_unit + framing.length_adds
            if size < framing.size_min or offset + size > len(view):
                raise FormatError(f"offset {offset}: a frame has {size} bytes, but only {len(view) - offset} are left")
            kind = _unsigned(view, offset, framing.type, framing.is_big_endian)
            yield offset, size, kind
            offset += size

    def message_type(self, kind: int, frame: memoryview) -> SourceMessageType | None:
        """The message type for a type and length; None if the format has none."""
        found = self._types.get(kind, [])
        if self._framing.block_length is not None:  # the message itself contains the length of its fixed part
            return found[0] if found else None
        body = len(frame) - self._framing.header_size
        for message in found:
            if message.size == body and not message.parts:
                return message
        for message in found:
            if message.size <= body and (message.longer or message.parts):
                return message
        return None

    def read(self, frames: bytes | memoryview) -> Iterator[tuple[str, dict[str, Any]]]:
        """(message name, values by field) of each frame; groups are lists of dicts, variable data is bytes.

        Raises:
            FormatError: a type is unknown, or the lengths of the frames do not add up.
        """
        view = memoryview(frames)
        for offset, size, kind in self.walk(view):
            frame = view[offset : offset + size]
            message = self.message_type(kind, frame)
            if message is None:
                raise FormatError(f"offset {offset}: no message has type {kind} and {size} bytes")
            yield message.name, self._values(message, frame)

    def _values(self, message: SourceMessageType, frame: memoryview) -> dict[str, Any]:
        framing = self._framing
        start = framing.header_size
        block, version = message.size, 0
        if framing.block_length is not None:
            block = _unsigned(frame, 0, framing.block_length, framing.is_big_endian)
        if framing.version is not None:
            version = _unsigned(frame, 0, framing.version, framing.is_big_endian)
        if start + block > len(frame):
            raise FormatError(f"{message.name}: a block of {block} bytes does not fit in the frame")
        values: dict[str, Any] = _fields(message.fields, frame, start, block, version)
        _parts(message.parts, frame, start + block, version, values)
        return values


def _parts(
    parts: Sequence[SourceGroup | SourceData], frame: memoryview, offset: int, version: int, values: dict[str, Any]
) -> int:
    """Add the groups and texts that begin at `offset` to the values; returns where they end."""
    for part in parts:
        if part.since_version > version:
            values[part.name] = [] if isinstance(part, SourceGroup) else b""
        elif isinstance(part, SourceGroup):
            values[part.name], offset = _group(part, frame, offset, version)
        else:
            values[part.name], offset = _data(part, frame, offset)
    return offset


def _fields(
    fields: Mapping[str, SourceField], data: memoryview, offset: int, size: int, version: int
) -> dict[str, Any]:
    """The fields of a block of `size` bytes; those that the message's version does not have are None."""
    return {
        name: field_value(field, data, offset)
        if field.offset + field.size <= size and field.since_version <= version
        else None
        for name, field in fields.items()
    }


def _group(group: SourceGroup, frame: memoryview, offset: int, version: int) -> tuple[list[dict[str, Any]], int]:
    count, size = group.count, group.size
    if offset + group.header_size > len(frame):
        raise FormatError(f"group {group.name!r}: its header does not fit in the frame")
    if isinstance(count, Place):
        count = _unsigned(frame, offset, count, group.is_big_endian)
        if group.entry_size is not None:
            size = _unsigned(frame, offset, group.entry_size, group.is_big_endian)
        offset += group.header_size
    if offset + count * size > len(frame) or (size < group.size and group.entry_size is None):
        raise FormatError(f"group {group.name!r}: {count} entries of {size} bytes do not fit in the frame")
    entries = []
    for _ in range(count):
        if offset + size > len(frame):
            raise FormatError(f"group {group.name!r}: {count} entries do not fit in the frame")
        entries.append(_fields(group.fields, frame, offset, size, version))
        offset = _parts(group.parts, frame, offset + size, version, entries[-1])
    return entries, offset


def _data(data: SourceData, frame: memoryview, offset: int) -> tuple[bytes, int]:
    if offset + data.header_size > len(frame):
        raise FormatError(f"data {data.name!r}: its header does not fit in the frame")
    size = _unsigned(frame, offset, Place(data.length_kind, 0), data.is_big_endian)
    start = offset + data.header_size
    if start + size > len(frame):
        raise FormatError(f"data {data.name!r}: {size} bytes do not fit in the frame")
    return bytes(frame[start : start + size]), start + size
