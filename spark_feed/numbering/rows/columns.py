"""Arrow columns of ticks as numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def integers_of(column: Any, null: int = 0) -> NDArray[np.int64]:
    """A column of integers; `null` where it has none."""
    if column.null_count:
        column = pc.fill_null(column, pa.scalar(null, column.type))
    return np.asarray(column.to_numpy(), np.int64)


def codes_of(column: Any) -> tuple[list[bytes], NDArray[np.int64]]:
    """The distinct values of a text column, and each row's index into them; that of a null is -1."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0) if encoded.num_chunks else pa.array([], pa.string()).dictionary_encode()
    texts = encoded.dictionary.cast(pa.binary()).to_numpy(zero_copy_only=False).tolist()
    return texts, integers_of(encoded.indices, -1)
