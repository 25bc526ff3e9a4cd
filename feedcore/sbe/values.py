"""How values look in Python: what reading gives and writing takes.

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

# Entries of no bytes in a message: of constants alone, or of a version that had no field of theirs yet. The largest
# datagram has so many bytes. Without a limit the few bytes of a count would make the reader build billions of entries.
EMPTY_ENTRIES_MAX = 8_192


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


def decimal_parts(value: Decimal | int, exponent: int | None) -> dict[str, int]:
    """Mantissa and exponent of a number.

    Args:
        exponent: the constant one; None to choose it.

    Raises:
        ValueError: the number is not finite or needs more places than the exponent has.
    """
    number = Decimal(value)
    if not number.is_finite():
        raise ValueError(f"{value} is no finite number")
    if exponent is None:
        own = number.as_tuple().exponent
        exponent = min(int(own), 0)
    mantissa = number.scaleb(-exponent, Context(prec=200))
    if mantissa != mantissa.to_integral_value():
        raise ValueError(f"{value} has more places than the exponent {exponent} keeps")
    return {"mantissa": int(mantissa), "exponent": exponent}
