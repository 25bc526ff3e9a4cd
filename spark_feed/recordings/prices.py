"""Numbers as scaled integers, of nine decimal places for ticks: decimal text exactly, floats rounded half to even."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation, Overflow
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tandemfeed.spark_feed.recordings.recording import PRICE_DIGITS
from tandemfeed.spark_feed.recordings.values import BadValue, cast

EXACT = "decimal strings, exact"
ROUNDED = "floats, rounded half even at nine digits"
WHOLE = "integers, exact"
LIMIT = 1 << 63
CONVERTED_MAX = 1 << 17  # numbers that are kept: prices and sizes recur, and each conversion takes microseconds
_CONTEXT = Context(prec=400, rounding=ROUND_HALF_EVEN)  # a float has up to 1,074 decimal places; 9 are used


class Scale(NamedTuple):
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


def to_nine_digits(column: Any, null: int) -> NDArray[np.int64]:
    """A column as integers with exponent -9; as `to_integers`."""
    return to_integers(column, null, NINE_DIGITS)


def conversion_of(kind: Any) -> str:
    """How `to_integers` converts values of an Arrow type, in words."""
    if pa.types.is_integer(kind):
        return WHOLE
    return ROUNDED if pa.types.is_floating(kind) else EXACT


def to_integers(column: Any, null: int, scale: Scale) -> NDArray[np.int64]:
    """A column as scaled integers. Those above 63 bits become their two's complement.

    Args:
        column: an Arrow array of text, decimals, floats or integers.
        null: result for empty values.

    Raises:
        BadValue: names the first value that is not a number, is text with too many decimal places, or is out of range.
    """
    if conversion_of(column.type) == EXACT:
        column = cast(column, pa.string(), "is not a number")
    encoded = column.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    codes = np.asarray(pc.fill_null(encoded.indices, len(distinct)).to_numpy(zero_copy_only=False), np.int64)
    values = np.empty(len(distinct) + 1, np.int64)
    values[-1] = null
    for code, value in enumerate(distinct):
        try:
            values[code] = _scaled(value, null, scale)
        except (ValueError, OverflowError) as reason:
            row = int(np.flatnonzero(codes == code)[0])
            raise BadValue(row, f"{value!r} {reason}") from None
    return values[codes]


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


@lru_cache(CONVERTED_MAX)
def _scaled(value: object, null: int, scale: Scale) -> int:
    """Raises ValueError if the number cannot be recorded; its text is the reason."""
    if isinstance(value, str) and value.strip() in ("", "null", "NULL", "NaN", "nan"):
        return null
    try:
        number = Decimal(value.strip() if isinstance(value, str) else value)  # type: ignore[arg-type]
    except InvalidOperation:
        raise ValueError("is not a number") from None
    if number.is_nan():
        return null
    if not number.is_finite():
        raise ValueError("is not finite")
    try:
        scaled = number.scaleb(scale.digits, _CONTEXT)
    except Overflow:
        raise ValueError("is out of range") from None
    whole = scaled.to_integral_value(ROUND_HALF_EVEN)
    places = "no" if scale.digits <= 0 else scale.digits
    if whole != scaled and not (scale.rounds and isinstance(value, float)):
        if scale.digits < 0:
            raise ValueError(f"is not a multiple of 1e{-scale.digits}")
        raise ValueError(f"has more than {places} decimal places")
    if not scale.lowest <= whole <= scale.highest:
        if scale == NINE_DIGITS:
            raise ValueError("does not fit in 64 bits with nine decimal places")
        raise ValueError(f"is out of range: as an integer it must be {scale.lowest} to {scale.highest}")
    return signed(int(whole))
