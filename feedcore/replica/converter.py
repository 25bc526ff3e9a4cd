"""What the cores ask of a converter. Conversion is pure (same bytes in the same order, same bytes out), so a core may
own one: `adapter.conversion` provides the compiled one, the simulator a small one of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class Converted(NamedTuple):
    """What one `Converter.convert` call did.

    Attributes:
        source_count: source messages consumed, at most the number asked for; fewer when the output was full.
        message_count: application messages written.
        end: one past the last byte written in `out`.
    """

    source_count: int
    message_count: int
    end: int


class Converter(Protocol):
    """Turns source messages of one channel into application messages and keeps the conversion state.

    Invariant: the state is a function of the sequence of source messages converted, per source stream.
    """

    def check(self, datagram: bytes) -> bool:
        """True if the source packet's frames fill it exactly and match its message count."""

    def convert(
        self, datagram: bytes, skip: int, count: int, out: NDArray[np.uint8], start: int, end: int
    ) -> Converted:
        """Convert messages `skip` … `skip + count - 1` of a source packet.

        Writes output frames (docs/protocol.md clause 3.3: frame_length u16, source_offset u16 counted from `skip`, SBE
        message header, body) into `out[start:end]`. Stops before the first source message whose output would not fit.
        A bad source message is consumed, yields no message and is counted by reason.

        Args:
            datagram: a source packet that `check` accepted.
            out: shape (capacity,), uint8.
        """

    def digests(self) -> NDArray[np.uint64]:
        """Digest of the conversion state per bucket of symbols, shape (bucket_count,), uint64."""

    def snapshot(self) -> bytes:
        """The whole conversion state, for `restore` in another adapter."""

    def restore(self, snapshot: bytes) -> None:
        """Replace the conversion state; raises ValueError if the snapshot is another table's."""

    def snapshot_buckets(self, buckets: Sequence[int]) -> bytes:
        """The conversion state of these buckets (indices into `digests`), for `restore_buckets` in another adapter."""

    def restore_buckets(self, data: bytes) -> None:
        """Replace the state of the buckets that `data` was made of, and no other's.

        Raises ValueError, and changes nothing, if it is another table's or damaged.
        """
