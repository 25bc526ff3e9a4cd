"""Batches as tables: numpy arrays, Arrow record batches, pandas and polars data frames.

numpy columns have the values on the wire. Arrow, pandas and polars have their meaning: decimals as decimals, times as
timestamps, text, names of enumerations, and nulls. pyarrow, pandas and polars are imported when they are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tandemfeed.client_lib.messages.gathering import gather
from tandemfeed.feedcore.sbe.messages import MessageType

if TYPE_CHECKING:
    from tandemfeed.client_lib.items import Batch
    from tandemfeed.client_lib.messages.message import MessageClasses


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
        for model, batches in groupby(self._batches, lambda batch: batch.model):
            for message, rows in gather(model, [batch.payload for batch in batches]).items():
                found.setdefault(message.name, []).append(rows)
        return {name: parts[0] if len(parts) == 1 else np.concatenate(parts) for name, parts in found.items()}

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
    from tandemfeed.tables.columns import FixedColumns, decoded

    return decoded(FixedColumns(message, shows_names=True).batch(rows))
