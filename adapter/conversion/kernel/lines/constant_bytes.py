"""The bytes of an output that are the same in every message: header, gaps, nulls, literals, the ends of short texts.

They are collected and then written together, because each store takes time to compile and to run: a few in words as
wide as possible, many as one copy of an image of the output, whose other bytes are written afterwards.
"""

from __future__ import annotations

from tandemfeed.adapter.conversion.kernel.kernel_tables import TableData

CHUNKS = (8, 4, 2, 1)  # sizes of stores
STORES_MAX = 4  # if more would be needed, an image is copied


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

    def lines(self, data: TableData) -> list[str]:
        """Kernel lines that write the bytes; bytes between them are undefined until the lines that follow write them.

        Args:
            data: gets the image, if there is one.
        """
        places = [each for start, end in self._stretches() for each in chunks(start, end)]
        if len(places) > STORES_MAX:
            first, end = places[0][0], sum(places[-1])
            image = bytes(self._bytes.get(each, 0) for each in range(first, end))
            return [f"store_image(out, {_target(first)}, tables, {data.literal(image)}, {len(image)})"]
        lines: list[str] = []
        for place, size in places:
            word = bytes(self._bytes[each] for each in range(place, place + size))
            value = int.from_bytes(word, "little", signed=size == 8)
            lines.append(f"store_{8 * size}(out, {_target(place)}, {value})")
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


def _target(place: int) -> str:
    return f"cursor + {place}" if place else "cursor"
