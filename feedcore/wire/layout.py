"""A fixed binary layout, declared once: one list of fields gives the struct, the offsets and the numpy dtype."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import numpy as np

NUMPY_CODES = {"B": "u1", "H": "<u2", "I": "<u4", "Q": "<u8", "4s": "S4"}  # of the fields that a dtype may have


class Layout:
    """Consecutive little-endian fields without padding.

    Args:
        fields: (name, struct code) each, in order.

    Attributes:
        struct: packs and unpacks all fields.
        size: in bytes.
        offsets: by field name.
    """

    def __init__(self, *fields: tuple[str, str]) -> None:
        self.struct = struct.Struct("<" + "".join(code for _, code in fields))
        self.size = self.struct.size
        self.offsets: dict[str, int] = {}
        self._codes = dict(fields)
        offset = 0
        for name, code in fields:
            self.offsets[name] = offset
            offset += struct.calcsize("<" + code)

    def places(self, *names: str) -> tuple[int, ...]:
        """The indexes of these fields in the tuple that `struct` unpacks."""
        order = list(self.offsets)
        return tuple(order.index(name) for name in names)

    def part(self, *names: str) -> struct.Struct:
        """The struct of some consecutive fields, to read or write at the offset of the first."""
        return struct.Struct("<" + "".join(self._codes[name] for name in names))

    def repeated(self, count: int, stride: int) -> struct.Struct:
        """The struct of this layout `count` times, each `stride` bytes after the one before."""
        return struct.Struct("<" + f"{self.struct.format.removeprefix('<')}{stride - self.size}x" * count)

    def dtype(self, names: Iterable[str] | None = None) -> np.dtype[Any]:
        """A numpy structure of the layout's size with these fields, or with all."""
        chosen = tuple(self.offsets if names is None else names)
        return np.dtype(
            {
                "names": list(chosen),
                "formats": [NUMPY_CODES[self._codes[name]] for name in chosen],
                "offsets": [self.offsets[name] for name in chosen],
                "itemsize": self.size,
            }
        )
