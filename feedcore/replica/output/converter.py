"""The converter interface that the cores use. Conversion is pure: the same bytes in the same order give the same bytes.
So a core may own a converter. `adapter.conversion` provides the compiled one; the simulator has a small one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class Converted(NamedTuple):
    """The result of one `Converter.convert` call.

    Attributes:
        source_count: source messages consumed; fewer than requested if the output was full.
        message_count: application messages written.
        end: one past the last byte written in `out`.
    """

    source_count: int
    message_count: int
    end: int


class Converter(Protocol):
    """Turns source messages of one channel into application messages and keeps the conversion state.

    Invariant: the state is a function of the source messages converted so far, in their order per source stream.
    """

    def check(self, datagram: bytes) -> bool:
        """True if the packet's frames fill it exactly, and their number is its message count."""

    def convert(
        self, datagram: bytes, skip: int, count: int, out: NDArray[np.uint8], start: int, end: int
    ) -> Converted:
        """Convert messages `skip` … `skip + count - 1` of a source packet.

        Writes output frames (docs/protocol.md clause 3.3: frame_length u16, source_offset u16 counted from `skip`, SBE
        message header, body) into `out[start:end]`. Stops before the first source message whose output would not fit.
        A bad source message is consumed, yields no output and is counted by reason.

        Args:
            datagram: a source packet that `check` accepted.
            out: shape (capacity,), uint8.
        """

    def digests(self) -> NDArray[np.uint64]:
        """Digest of the conversion state per bucket of symbols, shape (bucket_count,), uint64."""

    def snapshot(self) -> bytes:
        """The entire conversion state, for `restore` in another adapter."""

    def restore(self, snapshot: bytes) -> None:
        """Replace the conversion state. Raises ValueError if the snapshot is of another table."""

    def snapshot_buckets(self, buckets: Sequence[int]) -> bytes:
        """The conversion state of these buckets (indices into `digests`), for `restore_buckets` in another adapter."""

    def restore_buckets(self, data: bytes) -> None:
        """Replace the state of the buckets in `data`, and of no others.

        Raises ValueError, and changes nothing, if `data` is of another table or damaged.
        """
