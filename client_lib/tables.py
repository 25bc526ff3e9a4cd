"""Batches as tables: numpy arrays, Arrow record batches, pandas and polars data frames.

numpy columns have the values on the wire. Arrow, pandas and polars have their meaning: decimals as decimals, times as
timestamps, text, names of enumerations, and nulls. pyarrow, pandas and polars are imported when they are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tandemfeed.client_lib.messages.values import time_unit
from tandemfeed.feedcore.sbe.messages import Column, Field, MessageType
from tandemfeed.feedcore.sbe.types import EnumType, SimpleType

if TYPE_CHECKING:
    from tandemfeed.client_lib.items import Batch
    from tandemfeed.client_lib.messages.message import MessageClasses

DECIMAL_DIGITS_MAX = 38  # of Arrow's decimal128; the mantissa has 19 at most
PREFIX_COUNT = 6  # columns of a frame's and a message's header, which come first


class Batches(Sequence["Batch"]):
    """Consecutive batches. Messages with groups or variable data are in no table: use `Batch.messages()`."""

    def __init__(self, batches: Sequence[Batch], classes: MessageClasses) -> None:
        self._batches, self._classes = list(batches), classes

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: Any) -> Any:
        return self._batches[index]

    @property
    def message_count(self) -> int:
        """The number of messages."""
        return sum(batch.message_count for batch in self._batches)

    def to_numpy(self) -> dict[str, NDArray[np.void]]:
        """The messages of each type as a structured array, by the type's name."""
        found: dict[str, list[NDArray[np.void]]] = {}
        for batch in self._batches:
            for message, rows in batch.arrays():
                found.setdefault(message.name, []).append(rows)
        return {name: np.concatenate(parts) for name, parts in found.items()}

    def to_arrow(self) -> dict[str, Any]:
        """The messages of each type as an Arrow record batch, by the type's name."""
        types = self._classes.model.schema.messages
        return {name: record_batch(types[name], rows) for name, rows in self.to_numpy().items()}

    def to_pandas(self, message: str | None = None) -> Any:
        """The messages of one type as a pandas data frame; the type may be left out if there is only one."""
        import pyarrow as pa

        return pa.Table.from_batches([self._one(message)]).to_pandas()

    def to_polars(self, message: str | None = None) -> Any:
        """The messages of one type as a polars data frame; the type may be left out if there is only one."""
        import polars  # type: ignore[import-not-found,unused-ignore]

        return polars.from_arrow(self._one(message))

    def _one(self, message: str | None) -> Any:
        rows = self.to_numpy()
        if message is None and len(rows) == 1:
            (message,) = rows
        if message not in rows:
            raise ValueError(f"message is {message!r}; the batches have {', '.join(rows) or 'no messages'}")
        return record_batch(self._classes.model.schema.messages[message], rows[message])


def record_batch(message: MessageType, rows: NDArray[np.void]) -> Any:
    """Messages of one type as an Arrow record batch."""
    import pyarrow as pa

    fields = {column.name: field for field in message.fields.values() for column in field.columns()}
    names = [name for name in rows.dtype.names or () if name in fields]
    return pa.record_batch(
        [_arrow_column(fields[name], message.columns[name], rows[name]) for name in names], names=names
    )


def _arrow_column(field: Field, column: Column, values: NDArray[Any]) -> Any:
    import pyarrow as pa

    kind = field.type
    if isinstance(kind, EnumType):
        return _enumeration(kind, values)
    if column.kind.name == "char":
        encoding = kind.character_encoding if isinstance(kind, SimpleType) else ""
        mask = values == b"" if column.null is not None else None
        try:
            return pa.array(values, mask=mask).cast(pa.string())  # most texts are ASCII
        except pa.ArrowInvalid:
            return pa.array(np.char.decode(values, encoding or "latin-1", "replace"), mask=mask)
    if values.ndim > 1:
        return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values).reshape(-1)), values.shape[1])
    mask = _nulls(column, values)
    if column.exponent < 0:
        return _decimals(values, -column.exponent, mask)
    unit = time_unit(kind, field.semantic_type)
    if unit == "ns":
        return pa.array(values.astype("<i8"), pa.int64(), mask=mask).cast(pa.timestamp("ns", "UTC"))
    if unit == "D":
        return pa.array(values.astype("<i4"), pa.int32(), mask=mask).cast(pa.date32())
    return pa.array(np.ascontiguousarray(values), mask=mask)


def _nulls(column: Column, values: NDArray[Any]) -> NDArray[np.bool_] | None:
    if column.null is None:
        return None
    found: NDArray[np.bool_] = np.isnan(values) if column.kind.is_float else values == column.null
    return found


def _decimals(mantissas: NDArray[Any], places: int, mask: NDArray[np.bool_] | None) -> Any:
    """Arrow's decimals are 128-bit integers: the mantissa, and its sign as the upper half."""
    import pyarrow as pa

    halves = np.empty((len(mantissas), 2), "<i8")
    halves[:, 0] = mantissas
    halves[:, 1] = np.where(halves[:, 0] < 0, -1, 0) if mantissas.dtype.kind == "i" else 0
    valid = None if mask is None else pa.py_buffer(np.packbits(~mask, bitorder="little").tobytes())
    kind = pa.decimal128(DECIMAL_DIGITS_MAX, places)
    return pa.Array.from_buffers(kind, len(mantissas), [valid, pa.py_buffer(halves.tobytes())])


def _enumeration(kind: EnumType, values: NDArray[Any]) -> Any:
    """Names; a value without a name is null."""
    import pyarrow as pa

    raw = values.view("u1") if values.dtype.kind == "S" else values
    known = np.array(sorted(kind.values.values()), raw.dtype)
    names = {value: name for name, value in kind.values.items()}
    places = np.minimum(np.searchsorted(known, raw), len(known) - 1)
    indices = pa.array(places.astype("i4"), mask=known[places] != raw)
    return pa.DictionaryArray.from_arrays(indices, [names[int(value)] for value in known])
