"""The compiled converter: one kernel call converts the messages of a source packet and updates the state."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemfeed.adapter.conversion.dead_letters import SAMPLES_KEPT_MAX, DeadLetter, RefusedPacket, dead_letters_in
from tandemfeed.adapter.conversion.kernel.calls.packet_calls import PacketCalls
from tandemfeed.adapter.conversion.kernel.calls.packet_functions import PacketFunctions
from tandemfeed.adapter.conversion.kernel.kernel_source import KernelSource, kernel_source
from tandemfeed.adapter.conversion.state.state_kernels import NEAR_ROWS_DEFAULT, SAMPLE_COUNT, SAMPLES
from tandemfeed.adapter.conversion.state.state_store import StateStore
from tandemfeed.adapter.conversion.table.reasons import Reason
from tandemfeed.adapter.conversion.table.table import ConverterTable
from tandemfeed.adapter.kernel_cache import load_generated, short_compilation, table_compilation_reported
from tandemfeed.feedcore.replica.output.converter import Converted

_new_tuple = tuple.__new__  # a named tuple's own constructor takes three times as long, and this runs for every packet


class CompiledConverter:
    """`feedcore.replica.output.converter.Converter` over a compiled kernel.

    Args:
        near_rows: the number of rows of state of each kind that fit in the processor's caches. With more rows, the
            kernel first scans the packet and prefetches the rows that it needs. This affects only speed.
        report: receives lines about the compilation, if the kernel is not in the cache; None: they are logged.

    Attributes:
        source: the generated Python source of the kernel, for people to read.
        refused: the newest packets with refused messages since they were last taken; empty if there were none.
    """

    def __init__(
        self, table: ConverterTable, *, near_rows: int = NEAR_ROWS_DEFAULT, report: Callable[[str], None] | None = None
    ) -> None:
        generated = kernel_source(table)
        with table_compilation_reported(table.name, generated.function_count, report), short_compilation():
            self._load(table, generated, near_rows)

    def _load(self, table: ConverterTable, generated: KernelSource, near_rows: int) -> None:
        self.source = generated.text
        module: Any = load_generated(generated.text)
        self._kernel, self._frames_fill = module.convert, module.check
        self._tables = np.array(generated.tables or (0,), dtype=np.int64)
        self._tables.setflags(write=False)
        self._source_format = table.source_format
        self._datagram = b""
        self._data = np.frombuffer(self._datagram, np.uint8)
        # each packet has at least one refused message
        self.refused: deque[RefusedPacket] = deque(maxlen=SAMPLES_KEPT_MAX)
        calls = PacketCalls(table.conversions)
        gathers = [getattr(module, f"gather_{stage}") for stage in range(calls.stages)]
        self._functions = PacketFunctions(calls, gathers, self._tables) if calls else None
        self._store = StateStore(table.spaces, table.fingerprint, [book.spaces for book in table.books], near_rows)

    def check(self, datagram: bytes) -> bool:
        """True if the frames fill the packet exactly and match its message count."""
        fits: bool = self._frames_fill(self._array(datagram))
        return fits

    def convert(
        self, datagram: bytes, skip: int, count: int, out: NDArray[np.uint8], start: int, end: int
    ) -> Converted:
        """See `feedcore.replica.output.converter.Converter.convert`."""
        if self._functions is not None:
            return self._convert_answered(self._functions, datagram, skip, count, out, start, end)
        data = self._data if datagram is self._datagram else self._array(datagram)
        consumed, written, cursor, refused = self._kernel(
            data, skip, count, out, start, end, self._store.arena, self._tables
        )
        if refused:
            self._keep_samples(datagram, skip)
        return _new_tuple(Converted, (consumed, written, cursor))

    def _convert_answered(
        self, functions: PacketFunctions, datagram: bytes, skip: int, count: int, out: NDArray[np.uint8],
        start: int, end: int,
    ) -> Converted:  # fmt: skip
        """Convert in parts, each when all its answers of users' functions are available; normally there is one part."""
        data, done, written, cursor = self._array(datagram), 0, 0, start
        while done < count:
            slots, ready = functions.prepare(data, skip + done, count - done)
            ready += done
            consumed, more, cursor, refused = self._kernel(
                data, skip, count, out, cursor, end, self._store.arena, self._tables, done, ready, slots,
                functions.answers,
            )  # fmt: skip
            written += more
            if refused:
                self._keep_samples(datagram, skip)
            done = consumed
            if consumed < ready:
                break  # the output is full
        return Converted(done, written, cursor)

    def function_failures(self) -> dict[str, str]:
        """By user's function that is called in Python: why it failed most recently."""
        return dict(self._functions.failures) if self._functions else {}

    def counts(self) -> dict[str, int]:
        """The number of source messages so far that were not converted correctly, by reason."""
        return {reason.name.lower(): int(self._store.arena[reason]) for reason in Reason}

    def take_refused(self) -> list[RefusedPacket]:
        """Take the packets of `refused`, for `dead_letters_in`, which may be called later and in any thread."""
        taken = list(self.refused)
        self.refused.clear()
        return taken

    def dead_letters_in(self, packets: Sequence[RefusedPacket]) -> list[DeadLetter]:
        """The refused messages of these packets; only the newest if there are many."""
        return dead_letters_in(packets, self._source_format)

    def take_dead_letters(self) -> list[DeadLetter]:
        """Samples of messages refused since the last call; only the newest if there are many."""
        return self.dead_letters_in(self.take_refused())

    def key_count(self) -> int:
        """The number of keys with state."""
        return self._store.key_count()

    def digests(self) -> NDArray[np.uint64]:
        """Digests of the conversion state, one per bucket of keys."""
        return self._store.digests()

    def snapshot(self) -> bytes:
        """A snapshot of the whole conversion state."""
        return self._store.snapshot()

    def restore(self, snapshot: bytes) -> None:
        """Replace the conversion state; raises ValueError if the snapshot belongs to a different table."""
        self._store.restore(snapshot)

    def snapshot_buckets(self, buckets: Sequence[int]) -> bytes:
        """A snapshot of some buckets of the conversion state."""
        return self._store.snapshot_buckets(buckets)

    def restore_buckets(self, data: bytes) -> None:
        """Replace the state of some buckets; raises ValueError if the data belongs to a different table."""
        self._store.restore_buckets(data)

    def _array(self, datagram: bytes) -> NDArray[np.uint8]:
        """The datagram as an array for the kernels; `check` and the conversions of one packet share it."""
        if datagram is not self._datagram:
            self._datagram, self._data = datagram, np.frombuffer(datagram, np.uint8)
        return self._data

    def _keep_samples(self, datagram: bytes, skip: int) -> None:
        arena = self._store.arena
        samples = arena[SAMPLES : SAMPLES + 2 * int(arena[SAMPLE_COUNT])].copy()
        self.refused.append(RefusedPacket(bytes(datagram), skip, samples))
