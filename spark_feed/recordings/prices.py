"""Numbers as integers with exponent -9: decimal text exactly, floats rounded half even to nine decimal places."""

from __future__ import annotations

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


def to_nine_digits(column: Any, null: int) -> tuple[NDArray[np.int64], str]:
    """A column as integers with exponent -9, and how they were converted.

    Args:
        column: Arrow text, decimals, floats or integers.
        null: result for empty values.

    Raises:
        BadNumber: names the first row that is not a number, is text with more than nine decimal places, or is too
            large.
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
            values[code] = _nine_digits(value, null)
        except (BadNumber, OverflowError) as error:
            row = int(np.flatnonzero(codes == code)[0])
            raise BadNumber(row, value, str(error)) from None
    return values[codes], how


def size_exponent_of(values: NDArray[np.int64]) -> int:
    """The largest exponent (0 to -9) in which all the values are integers."""
    divisor = 10**PRICE_DIGITS
    for exponent in range(PRICE_DIGITS):
        if not np.any(values % divisor):
            return -exponent
        divisor //= 10
    return -PRICE_DIGITS


def _nine_digits(value: object, null: int) -> int:
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
    scaled = number.scaleb(PRICE_DIGITS, _CONTEXT)
    whole = scaled.to_integral_value(ROUND_HALF_EVEN)
    if isinstance(value, str) and whole != scaled:
        raise BadNumber(0, value, f"has more than {PRICE_DIGITS} decimal places")
    if not -LIMIT <= whole < LIMIT - 1:  # the largest value means null
        raise BadNumber(0, value, "does not fit in 64 bits with nine decimal places")
    return int(whole)
