"""Numbers as scaled integers, of nine decimal places for ticks: decimal text exactly, floats rounded half to even."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tandemfeed.spark_feed.recordings.recording import PRICE_DIGITS

EXACT = "decimal strings, exact"
ROUNDED = "floats, rounded half even at nine digits"
WHOLE = "integers, exact"
LIMIT = 1 << 63
_CONTEXT = Context(prec=400, rounding=ROUND_HALF_EVEN)  # a float has up to 1,074 decimal places; 9 are used


class BadNumber(Exception):
    """A value is not a number, or does not fit.

    Attributes:
        row: index of the value's row.
        value: the value as read.
        reason: what is wrong with it, to be read after the value.
    """

    def __init__(self, row: int, value: object, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.value = value
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Scale:
    """Integers that hold numbers.

    Attributes:
        digits: decimal places: the integer is the number times ten to this power.
        lowest, highest: the integers that there are.
        rounds: floats may have more decimal places.
    """

    digits: int
    lowest: int
    highest: int
    rounds: bool = True


NINE_DIGITS = Scale(PRICE_DIGITS, -LIMIT, LIMIT - 2)  # the largest value means null


def to_nine_digits(column: Any, null: int) -> tuple[NDArray[np.int64], str]:
    """A column as integers with exponent -9, and how they were converted; as `to_integers`."""
    return to_integers(column, null, NINE_DIGITS)


def to_integers(column: Any, null: int, scale: Scale) -> tuple[NDArray[np.int64], str]:
    """A column as scaled integers, and how they were converted. Those above 63 bits become their two's complement.

    Args:
        column: Arrow text, decimals, floats or integers.
        null: result for empty values.

    Raises:
        BadNumber: names the first row that is not a number, is text with too many decimal places, or is out of range.
    """
    kind = column.type
    if pa.types.is_integer(kind):
        how = WHOLE
    elif pa.types.is_floating(kind):
        how = ROUNDED
    else:
        how = EXACT
        column = column.cast(pa.string())
    encoded = column.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    distinct = encoded.dictionary.to_pylist()
    codes = np.asarray(pc.fill_null(encoded.indices, len(distinct)).to_numpy(zero_copy_only=False), np.int64)
    values = np.empty(len(distinct) + 1, np.int64)
    values[-1] = null
    for code, value in enumerate(distinct):
        try:
            values[code] = _scaled(value, null, scale)
        except (BadNumber, OverflowError) as error:
            row = int(np.flatnonzero(codes == code)[0])
            raise BadNumber(row, value, str(error)) from None
    return values[codes], how


def signed(value: int) -> int:
    """The two's complement of a number above 63 bits; others are unchanged."""
    return value - (1 << 64) if value >= 1 << 63 else value


def size_exponent_of(values: NDArray[np.int64]) -> int:
    """The largest exponent (0 to -9) in which all the values are integers."""
    divisor = 10**PRICE_DIGITS
    for exponent in range(PRICE_DIGITS):
        if not np.any(values % divisor):
            return -exponent
        divisor //= 10
    return -PRICE_DIGITS


def _scaled(value: object, null: int, scale: Scale) -> int:
    if isinstance(value, str) and value.strip() in ("", "null", "NULL", "NaN", "nan"):
        return null
    try:
        number = Decimal(value.strip() if isinstance(value, str) else value)  # type: ignore[arg-type]
    except InvalidOperation:
        raise BadNumber(0, value, "is not a number") from None
    if number.is_nan():
        return null
    if not number.is_finite():
        raise BadNumber(0, value, "is not finite")
    scaled = number.scaleb(scale.digits, _CONTEXT)
    whole = scaled.to_integral_value(ROUND_HALF_EVEN)
    places = "no" if scale.digits <= 0 else scale.digits
    if whole != scaled and not (scale.rounds and isinstance(value, float)):
        if scale.digits < 0:
            raise BadNumber(0, value, f"is not a multiple of 1e{-scale.digits}")
        raise BadNumber(0, value, f"has more than {places} decimal places")
    if not scale.lowest <= whole <= scale.highest:
        if scale == NINE_DIGITS:
            raise BadNumber(0, value, "does not fit in 64 bits with nine decimal places")
        raise BadNumber(0, value, f"is out of range: as an integer it must be {scale.lowest} to {scale.highest}")
    return signed(int(whole))
