"""How values look in Python, and what can be wrong with a message.

| encoding | value |
|---|---|
| integer, float | int, float; None where an optional one is null |
| array of numbers | list; of uint8: bytes |
| char, array of char | str, without the NULs behind it |
| enum | the valid value's name; `Unlisted` where the schema lists no such value; None where it is null |
| set | frozenset of the choices' names, and of bit numbers that the schema does not name |
| composite | dict by member; None where its first member is null |
| variable data | str where it has a character encoding, otherwise bytes |
| group | list of dicts |

A field newer than the message, by its sinceVersion, reads as None, such a group as [].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact
from typing import Any


class SbeReadError(ValueError):
    """A message is truncated, of an unknown template, or its lengths do not add up; the text names the field."""


@dataclass(frozen=True, slots=True)
class Unlisted:
    """A value that an enumeration does not list: of a newer schema, or wrong."""

    value: int


@dataclass(frozen=True, slots=True)
class SbeMessage:
    """A message that was read.

    Attributes:
        fields: fields, groups and variable data by name.
        header: the message header's members.
        size: bytes of header and body.
    """

    name: str
    header: Mapping[str, int]
    fields: dict[str, Any]
    size: int


_EXACT = Context(prec=60, traps=[Inexact])


def as_decimal(value: Mapping[str, int] | None) -> Decimal | None:
    """A composite of mantissa and exponent as the number it is."""
    return None if value is None else _EXACT.scaleb(Decimal(value["mantissa"]), value["exponent"])
