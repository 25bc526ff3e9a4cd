"""Formats records, times and figures as text or as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import msgspec

from tandemfeed.journal.history import MalformedHistory, MessageHistory, split_history
from tandemfeed.journal.roll_cycle import NS_PER_S, format_index
from tandemfeed.journal.source_sequence import SequenceRule
from tandemfeed.journal.typed import NotAMethodRecord, describe

# Control characters are always escaped: they could control the terminal.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
LINE_BREAKS = {"\n": "\\n", "\t": "\\t"}
METHOD_ARRAY = b"\x92"  # MessagePack's array of two: the first byte of every method record
HEX_WIDTH = 16
SIZE_STEPS = ("B", "KiB", "MiB", "GiB", "TiB")


class RecordView:
    """A record with its index and time, decoded on demand for display."""

    def __init__(self, index: int, appended_at_ns: int, record: bytes) -> None:
        self.index = index
        self.appended_at_ns = appended_at_ns
        self.record = record

    @cached_property
    def _split(self) -> tuple[MessageHistory | None, memoryview]:
        try:
            return split_history(self.record)
        except MalformedHistory:  # then the whole record is its body
            return None, memoryview(self.record)

    @property
    def history(self) -> MessageHistory | None:
        """The record's history, if it has one."""
        return self._split[0]

    @property
    def body(self) -> memoryview:
        """The record's bytes after the history."""
        return self._split[1]

    @cached_property
    def typed(self) -> dict[str, Any] | None:
        """Method and arguments, if a method writer wrote the record."""
        if self.body[:1] != METHOD_ARRAY:  # a cheap check: decoding takes longer than all the rest
            return None
        try:
            return describe(self.record)
        except NotAMethodRecord:
            return None

    @cached_property
    def text(self) -> str:
        """The text that filters search: `method(argument=value)`, or the bytes as UTF-8, invalid bytes as \\xff."""
        if self.typed is not None:
            arguments = ", ".join(f"{name}={value!r}" for name, value in self.typed["arguments"].items())
            return f"{self.typed['method']}({arguments})"
        return bytes(self.body).decode(errors="backslashreplace")

    def line(self) -> str:
        """The text on one line."""
        return one_line(self.text)

    def block(self) -> str:
        """The text with its own line breaks, other control characters escaped."""
        return CONTROLS.sub(_escaped, self.text)

    def as_json(self, rule: SequenceRule | None = None) -> dict[str, Any]:
        """The fields for JSON; a body that is not UTF-8 is in `base64`."""
        shown: dict[str, Any] = {
            "index": format_index(self.index),
            "appended_at": time_text(self.appended_at_ns),
            "appended_at_ns": self.appended_at_ns,
            "size": len(self.record),
        }
        if self.history is not None:
            shown["history"] = [asdict(hop) for hop in self.history.hops]
        if rule is not None and (found := rule.find(self.body)) is not None:
            shown["source_stream"], shown["source_seq"] = found
        if self.typed is not None:
            return shown | {"method": self.typed["method"], "arguments": self.typed["arguments"]}
        try:
            shown["text"] = str(self.body, "utf-8")
        except UnicodeDecodeError:
            shown["base64"] = bytes(self.body)  # encoded as base64
        return shown


def one_line(text: str) -> str:
    """Line breaks and controls escaped."""
    if text.isprintable():
        return text
    return re.sub(r"[\n\t]", lambda found: LINE_BREAKS[found[0]], CONTROLS.sub(_escaped, text))


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def to_json(value: object) -> str:
    """One line."""
    return msgspec.json.encode(value, enc_hook=_for_json).decode()


def _for_json(value: object) -> object:
    if isinstance(value, msgspec.msgpack.Ext):
        return {"extension": value.code, "data": bytes(value.data)}
    return str(value)


def time_text(at_ns: int) -> str:
    """A time to the nanosecond, in UTC; a dash for 0."""
    if not at_ns:
        return "-"
    moment = datetime.fromtimestamp(at_ns // NS_PER_S, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ns % NS_PER_S:09d}Z"


def size_text(count: int) -> str:
    """A size with its unit, rounded."""
    value, step = float(count), 0
    while value >= 1_024 and step < len(SIZE_STEPS) - 1:
        value, step = value / 1_024, step + 1
    return f"{count} B" if not step else f"{value:.1f} {SIZE_STEPS[step]}"


def counted(count: int, noun: str) -> str:
    """A count with its noun, singular or plural."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def hex_lines(data: memoryview, size_max: int | None = None) -> Iterator[str]:
    """Offset, bytes, and the printable ones as text, sixteen to a line."""
    end = len(data) if size_max is None else min(len(data), size_max)
    for begin in range(0, end, HEX_WIDTH):
        row = bytes(data[begin : min(begin + HEX_WIDTH, end)])
        text = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        yield f"{begin:08x}  {row.hex(' '):<{3 * HEX_WIDTH}} {text}"
    if end < len(data):
        yield f"{end:08x}  … {len(data) - end} more bytes"


def table(rows: list[tuple[str, ...]], right: frozenset[int] = frozenset()) -> list[str]:
    """Rows aligned in columns; those in `right` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
