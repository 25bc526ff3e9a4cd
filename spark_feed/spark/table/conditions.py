"""Spark's filters as conditions on numpy columns, so that rows are dropped before they become Arrow columns.

A condition is exact: Spark does not evaluate its filter again. A filter that cannot be one exactly stays with Spark.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
NS_PER_US = 1_000
SEQ_END = (1 << 63) - 1
COMPARISONS: dict[type[Filter], Callable[[Any, Any], Any]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


class ValueKind(Enum):
    """What the numpy values of a column are."""

    NUMBER = "number"
    TIME = "nanoseconds, shown as a timestamp in microseconds"
    TEXT = "bytes"
    OTHER = "not compared here"


@dataclass(frozen=True, slots=True)
class Condition:
    """A column compared with one of some values; no value is None."""

    column: str
    kind: ValueKind
    compare: Callable[[Any, Any], Any]
    values: tuple[Any, ...]

    def holds(self, column: NDArray[Any]) -> NDArray[np.bool_]:
        """For each value of the column, whether the condition holds."""
        shown = column // NS_PER_US if self.kind is ValueKind.TIME else column
        found = np.zeros(len(column), np.bool_)
        for value in self.values:
            found |= self.compare(shown, value)
        return found

    def may_hold(self, low: int, high: int) -> bool:
        """False if the condition holds for no number from low to high, both included."""
        if self.kind is ValueKind.TIME:
            low, high = low // NS_PER_US, high // NS_PER_US
        if self.compare is operator.eq:
            return any(low <= value <= high for value in self.values)
        return any(self.compare(low, value) or self.compare(high, value) for value in self.values)


def take_filters(filters: Iterable[Filter], kinds: Mapping[str, ValueKind]) -> tuple[list[Condition], list[Filter]]:
    """(conditions for the filters that can be one, the filters that stay with Spark).

    Args:
        kinds: of the columns that are never null.
    """
    taken: list[Condition] = []
    left: list[Filter] = []
    for each in filters:
        column = _column(each)
        kind = kinds.get(column, ValueKind.OTHER)
        if isinstance(each, IsNotNull) and column in kinds:
            continue
        condition = None if kind is ValueKind.OTHER else _condition(each, column, kind)
        if condition is None:
            left.append(each)
        else:
            taken.append(condition)
    return taken, left


def bounds_of(conditions: Iterable[Condition], column: str) -> tuple[int, int]:
    """The numbers of a column for which all conditions may hold: from the first to before the second."""
    low, end = 0, SEQ_END
    for each in conditions:
        if each.column != column:
            continue
        least, most = min(each.values), max(each.values)
        if each.compare in (operator.eq, operator.ge):
            low = max(low, least)
        if each.compare is operator.gt:
            low = max(low, least + 1)
        if each.compare in (operator.eq, operator.le):
            end = min(end, most + 1)
        if each.compare is operator.lt:
            end = min(end, most)
    return low, max(low, end)


def _column(each: Any) -> str:
    """The column of a filter on a plain one; else empty."""
    path: tuple[str, ...] = getattr(each, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _condition(each: Any, column: str, kind: ValueKind) -> Condition | None:
    if isinstance(each, In):
        compare: Callable[[Any, Any], Any] = operator.eq
        values = [_value(value, kind) for value in each.value if value is not None]
    else:
        found = COMPARISONS.get(type(each))
        if found is None or (kind is ValueKind.TEXT and found is not operator.eq):
            return None
        compare, values = found, [_value(each.value, kind)]
    return None if None in values else Condition(column, kind, compare, tuple(values))


def _value(value: Any, kind: ValueKind) -> Any:
    """The value as numpy has it; None if it cannot be compared exactly."""
    if kind is ValueKind.TEXT:
        is_plain = isinstance(value, str) and value.isascii() and "\0" not in value
        return value.encode() if is_plain else None
    if kind is ValueKind.TIME:
        if not isinstance(value, datetime):
            return None
        return (value.astimezone(UTC) - EPOCH) // MICROSECOND
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else None
    return value if isinstance(value, int) else None
