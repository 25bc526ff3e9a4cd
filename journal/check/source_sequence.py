"""Sequence numbers that sources put into records: where they are in a record, and whether any is missing.

Pure. A rule finds stream and number in a record, or None in a record of another kind; a `ContinuityCheck` takes them in
the journal's order and reports gaps and numbers that go back.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Protocol

FIELD = r"(\d{1,9}):([ui](?:8|16|32|64)(?:be|le)?)"
BINARY_RULE = re.compile(rf"{FIELD}(?:@{FIELD})?")
FORMATS = {"8": "b", "16": "h", "32": "i", "64": "q"}
Stream = int | str


class SequenceRule(Protocol):
    """Where a record has its source's sequence number."""

    def find(self, record: memoryview) -> tuple[Stream, int] | None:
        """Stream and number; None: not a record of this kind."""
        ...


@dataclass(frozen=True, slots=True)
class Field:
    """An integer at an offset."""

    offset: int
    format: struct.Struct

    def read(self, record: memoryview) -> int | None:
        """The integer; None: the record ends before it."""
        if self.offset + self.format.size > len(record):
            return None
        (value,) = self.format.unpack_from(record, self.offset)
        return int(value)


@dataclass(frozen=True, slots=True)
class BinaryRule:
    """Integers at offsets; without a stream field there is one stream, 0."""

    number: Field
    stream: Field | None = None

    def find(self, record: memoryview) -> tuple[Stream, int] | None:
        """Stream and number."""
        number = self.number.read(record)
        stream = 0 if self.stream is None else self.stream.read(record)
        return None if number is None or stream is None else (stream, number)


@dataclass(frozen=True, slots=True)
class TextRule:
    """A regular expression over the record as text: groups `seq` and, if there are several streams, `stream`."""

    pattern: re.Pattern[str]

    def find(self, record: memoryview) -> tuple[Stream, int] | None:
        """Stream and number."""
        found = self.pattern.search(bytes(record).decode(errors="backslashreplace"))
        if found is None:
            return None
        names = self.pattern.groupindex
        number = found["seq" if "seq" in names else 1]
        if number is None or not number.isdecimal():
            return None
        return (found["stream"] or "" if "stream" in names else ""), int(number)


def parse_rule(text: str) -> SequenceRule:
    """The rule that a text stands for: `OFFSET:TYPE`, `OFFSET:TYPE@OFFSET:TYPE`, or a regular expression with a group.

    Types are u8 to u64 and i8 to i64, little-endian; with the suffix `be`, big-endian.

    Raises:
        ValueError: the text is not a rule.
    """
    if found := BINARY_RULE.fullmatch(text):
        offset, kind, stream_offset, stream_kind = found.groups()
        stream = None if stream_kind is None else _field(stream_offset, stream_kind)
        return BinaryRule(_field(offset, kind), stream)
    hint = "write OFFSET:TYPE (8:u64), OFFSET:TYPE@OFFSET:TYPE (8:u64@0:u16), or a regular expression with a group"
    try:
        pattern = re.compile(text)
    except re.error as wrong:
        raise ValueError(f"{text!r} is not a sequence rule ({wrong}); {hint}") from None
    if not pattern.groups:
        raise ValueError(f"{text!r} is not a sequence rule (it has no group); {hint}")
    return TextRule(pattern)


def _field(offset: str, kind: str) -> Field:
    order = ">" if kind.endswith("be") else "<"
    width = kind[1:].removesuffix("be").removesuffix("le")
    letter = FORMATS[width]
    return Field(int(offset), struct.Struct(order + (letter.upper() if kind[0] == "u" else letter)))


@dataclass(frozen=True, slots=True)
class NumbersMissing:
    """A stream continued with `found`, where `due` was expected."""

    stream: Stream
    due: int
    found: int


@dataclass(frozen=True, slots=True)
class NumberGoesBack:
    """A stream went back to `found`, where `due` was expected."""

    stream: Stream
    due: int
    found: int


class ContinuityCheck:
    """Checks the numbers of each stream, which may begin anywhere and must then increase by one."""

    def __init__(self) -> None:
        self._due: dict[Stream, int] = {}
        self.counted = 0

    @property
    def stream_count(self) -> int:
        """Number of streams found."""
        return len(self._due)

    def add(self, stream: Stream, number: int) -> NumbersMissing | NumberGoesBack | None:
        """Check a stream's next number; None if it is the expected one."""
        self.counted += 1
        due = self._due.get(stream, number)
        self._due[stream] = max(due, number + 1)
        if number == due:
            return None
        return NumbersMissing(stream, due, number) if number > due else NumberGoesBack(stream, due, number)
