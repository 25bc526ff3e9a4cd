"""The compiled converter: one kernel call turns the messages of a source packet, state included."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapter.conversion.dead_letters import SAMPLES_KEPT_MAX, DeadLetter
from adapter.conversion.kernel_source import kernel_source
from adapter.conversion.reasons import REASONS, Reason
from adapter.conversion.state_kernels import SAMPLE_COUNT, SAMPLES
from adapter.conversion.state_store import StateStore
from adapter.conversion.table import ConverterTable
from adapter.kernel_cache import load_generated
from feedcore.converter import Converted


class CompiledConverter:
    """`feedcore.converter.Converter` over a compiled kernel.

    Attributes:
        source: the kernel's generated Python source, to print and read.
    """

    def __init__(self, table: ConverterTable) -> None:
        generated = kernel_source(table)
        self.source = generated.text
        module: Any = load_generated(generated.text)
        self._kernel, self._frames_fill = module.convert, module.check
        self._tables = np.array(generated.tables or (0,), dtype=np.int64)
        self._tables.setflags(write=False)
        self._framing = table.source_format.framing
        self._datagram = b""
        self._data = np.frombuffer(self._datagram, np.uint8)
        self._letters: deque[DeadLetter] = deque(maxlen=SAMPLES_KEPT_MAX)
        self._store = StateStore(table.spaces, table.fingerprint, [book.spaces for book in table.books])

    def check(self, datagram: bytes) -> bool:
        """True if the frames fill the packet exactly and match its message count."""
        fits: bool = self._frames_fill(self._array(datagram))
        return fits

    def convert(
        self, datagram: bytes, skip: int, count: int, out: NDArray[np.uint8], start: int, end: int
    ) -> Converted:
        """See `feedcore.converter.Converter.convert`."""
        consumed, written, cursor, refused = self._kernel(
            self._array(datagram), skip, count, out, start, end, self._store.arena, self._tables
        )
        if refused:
            self._keep_samples(datagram, skip)
        return Converted(consumed, written, cursor)

    def counts(self) -> dict[str, int]:
        """Source messages so far that were not converted as they should, by reason."""
        return {reason.name.lower(): int(self._store.arena[reason]) for reason in Reason}

    def take_dead_letters(self) -> list[DeadLetter]:
        """Samples of refused messages since the last call, for the dead-letter journal; the newest, if many."""
        taken = list(self._letters)
        self._letters.clear()
        return taken

    def key_count(self) -> int:
        """Keys that state is kept for."""
        return self._store.key_count()

    def digests(self) -> NDArray[np.uint64]:
        """Digest of the conversion state per bucket of keys."""
        return self._store.digests()

    def snapshot(self) -> bytes:
        """The whole conversion state."""
        return self._store.snapshot()

    def restore(self, snapshot: bytes) -> None:
        """Replace the conversion state; ValueError if it is another table's."""
        self._store.restore(snapshot)

    def snapshot_buckets(self, buckets: Sequence[int]) -> bytes:
        """The conversion state of some buckets."""
        return self._store.snapshot_buckets(buckets)

    def restore_buckets(self, data: bytes) -> None:
        """Replace the state of some buckets; ValueError if it is another table's."""
        self._store.restore_buckets(data)

    def _array(self, datagram: bytes) -> NDArray[np.uint8]:
        """The datagram as the kernels take it; check and the conversions of one packet share it."""
        if datagram is not self._datagram:
            self._datagram, self._data = datagram, np.frombuffer(datagram, np.uint8)
        return self._data

    def _keep_samples(self, datagram: bytes, skip: int) -> None:
        arena = self._store.arena
        for taken in range(int(arena[SAMPLE_COUNT])):
            position, told = (int(word) for word in arena[SAMPLES + 2 * taken : SAMPLES + 2 * taken + 2])
            self._letters.append(
                DeadLetter.of(datagram, position, skip + (told >> 8), REASONS[told & 255], self._framing)
            )
