"""The form of the audit log: one JSON object per line, each with its number and the digest of the line before.

Pure. The digest of an entry is the SHA-256 of its line, byte for byte as in the file and without the newline, so a
check needs no canonical encoding. The first entry of a chain has number 1 and, as `previous`, 64 zeros.

    {"number":7,"previous":"9f86…","records":31,"unix_ns":1795…,"event":"subscribed","identity":"reader",…}

`records` is the generation of the server's records when the entry was written (`lease_records.ClusterRecords`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

OWN_FIELDS = ("number", "previous", "records", "unix_ns", "event")
NO_DIGEST = "0" * 64


class BadEntry(ValueError):
    """A line is not an entry, or does not continue the chain; the text says why."""


@dataclass(frozen=True, slots=True)
class Head:
    """The last entry of a chain; of an empty one by default."""

    number: int = 0
    digest: str = NO_DIGEST


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry.

    Attributes:
        fields: what its event adds: who, whom, why.
        line: its bytes in the file, without the newline.
    """

    number: int
    previous: str
    records: int
    unix_ns: int
    event: str
    fields: Mapping[str, Any]
    line: bytes = field(repr=False)

    @property
    def head(self) -> Head:
        """The head of the chain that ends with this entry."""
        return Head(self.number, sha256(self.line).hexdigest())


def encode_fields(unix_ns: int, event: str, fields: Mapping[str, object]) -> str:
    """The part of an entry that does not depend on its place in the chain."""
    assert not fields.keys() & set(OWN_FIELDS), f"{event}: the log itself writes {', '.join(OWN_FIELDS)}"
    return json.dumps({"unix_ns": unix_ns, "event": event, **fields}, separators=(",", ":"), default=str)


def encode_entry(head: Head, records: int, encoded_fields: str) -> tuple[bytes, Head]:
    """The line of the entry that follows `head`, with its newline, and the head after it."""
    number = head.number + 1
    line = f'{{"number":{number},"previous":"{head.digest}","records":{records},{encoded_fields[1:]}'.encode()
    return line + b"\n", Head(number, sha256(line).hexdigest())


def decode_entry(line: bytes) -> Entry:
    """The entry in a line without its newline.

    Raises:
        BadEntry: the line is not one.
    """
    try:
        known = json.loads(line)
        own = [known.pop(name) for name in OWN_FIELDS]
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as bad:
        raise BadEntry(f"it is not an entry: {type(bad).__name__} {bad}") from bad
    if [type(value) for value in own] != [int, str, int, int, str]:
        raise BadEntry(f"it is not an entry: {', '.join(OWN_FIELDS)} have wrong types")
    number, previous, records, unix_ns, event = own
    return Entry(number, previous, records, unix_ns, event, known, line)


def check_continues(entry: Entry, head: Head) -> None:
    """Raise BadEntry unless the entry follows `head`."""
    if entry.number != head.number + 1:
        raise BadEntry(f"it has number {entry.number}; {head.number + 1} was expected, so entries are missing or moved")
    if entry.previous != head.digest:
        raise BadEntry(f"it does not continue entry {head.number}: that entry or this one was changed")
