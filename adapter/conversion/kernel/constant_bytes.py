"""The bytes of an output that are the same in every message: header, gaps, nulls, literals, the ends of short texts.

They are collected and then written in words as wide as possible, because each store takes time to compile and to run.
"""

from __future__ import annotations

CHUNKS = (8, 4, 2, 1)  # sizes of stores


def chunks(start: int, end: int) -> list[tuple[int, int]]:
    """(place, size) of the stores that cover the bytes from `start` to `end`, `end` excluded."""
    found: list[tuple[int, int]] = []
    while start < end:
        size = next(each for each in CHUNKS if each <= end - start)
        found.append((start, size))
        start += size
    return found


class ConstantBytes:
    """Bytes by their distance from `cursor`."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}

    def put(self, at: int, data: bytes) -> None:
        """Have these bytes written at `at`."""
        self._bytes.update(zip(range(at, at + len(data)), data, strict=True))

    def lines(self) -> list[str]:
        """Kernel lines that write the bytes."""
        lines: list[str] = []
        for start, end in self._stretches():
            for place, size in chunks(start, end):
                data = bytes(self._bytes[each] for each in range(place, place + size))
                target = f"cursor + {place}" if place else "cursor"
                lines.append(f"store_{8 * size}(out, {target}, {int.from_bytes(data, 'little', signed=size == 8)})")
        return lines

    def _stretches(self) -> list[tuple[int, int]]:
        """(start, end) of the stretches without a gap."""
        found: list[tuple[int, int]] = []
        for place in sorted(self._bytes):
            if found and found[-1][1] == place:
                found[-1] = found[-1][0], place + 1
            else:
                found.append((place, place + 1))
        return found
