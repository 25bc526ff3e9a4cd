"""Doubles in cells, in plain Python."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence

from tandemfeed.adapter.conversion.table.values import NULL

NAN_BITS = 0x7FF8_0000_0000_0000


def kept_double(name: str, row: list[int], columns: Sequence[int], values: Mapping[str, int | bytes] | None) -> bytes:
    """Apply a function to its cells, which have the bits of doubles; its value. Args: values: None: read only."""
    if values is not None:
        _change(name, row, columns, values)
    if name == "vwap":
        turnover, weight = _double(row[columns[0]]), _double(row[columns[2]])
        return _packed(turnover / weight if weight else math.nan)
    if name in ("best_bid", "best_ask"):
        offers = [each for each in (_double(row[column]) for column in columns) if not math.isnan(each)]
        return _packed((max if name == "best_bid" else min)(offers, default=math.nan))
    return _packed(_double(row[columns[0]]))


def _change(name: str, row: list[int], columns: Sequence[int], values: Mapping[str, int | bytes]) -> None:
    of, first = _given(values["of"]), columns[0]
    kept = _double(row[first])
    if name in ("best_bid", "best_ask"):
        source = values["source"]
        assert isinstance(source, int)
        if 0 <= source < len(columns):
            row[columns[source]] = NULL if math.isnan(of) else _bits(of)
        return
    if name == "vwap":
        weight = _given(values["weight"])
        if not math.isnan(of * weight):
            row[first] = _bits(kept + of * weight)
            row[columns[2]] = _bits(_double(row[columns[2]]) + weight)
        return
    if math.isnan(of):
        return
    if name in ("sum", "day_volume"):
        row[first] = _bits(kept + of)
        return
    is_better = (name in ("max", "day_high") and of > kept) or (name in ("min", "day_low") and of < kept)
    if name == "last" or math.isnan(kept) or is_better:
        row[first] = _bits(of)


def _given(value: int | bytes) -> float:
    """A float or double, from its bytes."""
    assert isinstance(value, bytes)
    found: float = struct.unpack("<f" if len(value) == 4 else "<d", value)[0]
    return found


def _double(bits: int) -> float:
    found: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return found


def _bits(value: float) -> int:
    return int(struct.unpack("<q", _packed(value))[0])


def _packed(value: float) -> bytes:
    return struct.pack("<q", NAN_BITS) if math.isnan(value) else struct.pack("<d", value)
