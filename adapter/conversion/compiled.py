"""The compiled converter: one kernel call turns the messages of a source packet, state included."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from adapter.conversion.functions import NULL
from adapter.conversion.kernel_source import BAD_LENGTH, BAD_TYPE, kernel_source
from adapter.conversion.state_store import StateStore, find_slot, wide_floor_divide
from adapter.conversion.table import ConverterTable
from adapter.conversion.unaligned import LOADS, STORES
from feedcore.converter import Converted
from feedcore.source_packet import SOURCE_FRAME_SIZE, SOURCE_HEADER_SIZE

MESSAGE_COUNT_OFFSET = 10  # of a source packet's header

_DATAGRAM = types.Array(types.uint8, 1, "C", readonly=True)
_BYTES = types.Array(types.uint8, 1, "C")
_INT64 = types.Array(types.int64, 1, "C")
_ROWS = types.Array(types.int64, 2, "C")
_load_u16 = LOADS["load_u16"]


@njit(types.boolean(_DATAGRAM))
def frames_fill(datagram):  # type: ignore[no-untyped-def]
    """True if the frames fill the packet exactly and are as many as its header says."""
    if datagram.size < SOURCE_HEADER_SIZE:
        return False
    count = _load_u16(datagram, MESSAGE_COUNT_OFFSET)
    position = SOURCE_HEADER_SIZE
    for _ in range(count):
        if position + SOURCE_FRAME_SIZE > datagram.size:
            return False
        length = _load_u16(datagram, position)
        if length < SOURCE_FRAME_SIZE:
            return False
        position += length
    return position == datagram.size


@njit
def _load_bytes(array, offset, size):  # type: ignore[no-untyped-def]
    value = np.int64(0)
    for place in range(size):
        value |= np.int64(array[offset + place]) << (8 * place)
    return value


def compile_kernel(source: str) -> Any:
    """Compile a generated kernel; no call of it ever compiles again."""
    names: dict[str, Any] = {
        **LOADS,
        **STORES,
        "BAD_TYPE": BAD_TYPE,
        "BAD_LENGTH": BAD_LENGTH,
        "NULL": NULL,
        "MASK32": 0xFFFF_FFFF,
        "SOURCE_HEADER_SIZE": SOURCE_HEADER_SIZE,
        "SOURCE_FRAME_SIZE": SOURCE_FRAME_SIZE,
        "find_slot": find_slot,
        "wide_floor_divide": wide_floor_divide,
        "load_bytes": _load_bytes,
    }
    exec(compile(source, "<converter table>", "exec"), names)
    intp = types.intp
    answer: Any = types.UniTuple(types.int64, 4)
    signature = answer(_DATAGRAM, intp, intp, _BYTES, intp, intp, _INT64, _INT64, _ROWS, _INT64)
    return njit(signature)(names["convert"])


class CompiledConverter:
    """`feedcore.converter.Converter` over a compiled kernel.

    Attributes:
        source: the kernel's generated Python source, to print and read.
    """

    def __init__(self, table: ConverterTable) -> None:
        self.source = kernel_source(table)
        self._kernel = compile_kernel(self.source)
        self._datagram = b""
        self._data = np.frombuffer(self._datagram, np.uint8)
        self._store = StateStore(table.initial_state, hashlib.sha256(self.source.encode()).digest()[:16])

    def check(self, datagram: bytes) -> bool:
        """True if the frames fill the packet exactly and match its message count."""
        fits: bool = frames_fill(self._array(datagram))
        return fits

    def convert(
        self, datagram: bytes, skip: int, count: int, out: NDArray[np.uint8], start: int, end: int
    ) -> Converted:
        """See `feedcore.converter.Converter.convert`."""
        store = self._store
        consumed, written, cursor, is_full = self._kernel(
            self._array(datagram), skip, count, out, start, end, store.slots, store.keys, store.state, store.registers
        )
        done = Converted(consumed, written, cursor)
        return self._grow_and_go_on(datagram, skip, count, out, done, end) if is_full else done

    def counts(self) -> dict[str, int]:
        """Bad source messages so far, by reason."""
        registers = self._store.registers
        return {"unknown_type": int(registers[BAD_TYPE]), "wrong_length": int(registers[BAD_LENGTH])}

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

    def _grow_and_go_on(
        self, datagram: bytes, skip: int, count: int, out: NDArray[np.uint8], done: Converted, end: int
    ) -> Converted:
        """The store is full: grow it and convert the rest."""
        self._store.grow()
        consumed = done.source_count
        rest = self.convert(datagram, skip + consumed, count - consumed, out, done.end, end)
        position = done.end
        while position < rest.end:  # the rest counted its source offsets from its own start
            frame = out[position : position + 4].view("<u2")
            frame[1] += consumed
            position += int(frame[0])
        return Converted(consumed + rest.source_count, done.message_count + rest.message_count, rest.end)
