"""The columns of a capture's rows that say where the venue has their messages: its stream, and its number.

They are collected only if a query reads them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tandemfeed.adapter.convert_command.input.inputs import VenueNumbers
from tandemfeed.offline.ticks.rows import VENUE_SEQ, VENUE_STREAM


class VenueColumns:
    """Collects streams and numbers while rows are collected.

    Attributes:
        newest: of the chunk whose rows are added next.
    """

    def __init__(self) -> None:
        self.newest: VenueNumbers | None = None
        self._names: list[str] = []  # of streams
        self._streams: list[NDArray[np.int64]] = []
        self._numbers: list[NDArray[np.int64]] = []

    def add(self, places: NDArray[np.int64]) -> None:
        """Rows were added; their messages have these places in the newest chunk."""
        newest = self.newest
        if newest is None or not len(places):
            return
        streams = newest.streams[places]
        self._names += map(newest.name, range(len(self._names), int(streams.max()) + 1))
        self._streams.append(streams)
        self._numbers.append(newest.numbers[places])

    def take(self) -> dict[str, Any]:
        """The columns of all rows that were added, by name; afterwards there are none."""
        none = [np.empty(0, np.int64)]
        streams, numbers = np.concatenate(none + self._streams), np.concatenate(none + self._numbers)
        self._streams.clear()
        self._numbers.clear()
        names = pa.array(self._names, pa.string())
        return {
            VENUE_STREAM: pa.DictionaryArray.from_arrays(streams.astype(np.int32), names),
            VENUE_SEQ: pa.array(numbers),
        }
