"""A reader's position on disk: two slots, written alternately, each with a CRC, so that one is always valid."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import google_crc32c

SLOT = struct.Struct("<QQ")
CRC = struct.Struct("<I")
SLOT_SIZE = 64  # a slot never straddles a disk sector


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
TAILERS_FOLDER = "tailers"


def tailer_path(folder: Path, name: str) -> Path:
    """The file with the position of a named tailer.

    Raises:
        ValueError: a name with other characters than letters, digits, dot, hyphen, underscore.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"{name!r}: a tailer's name has 1 to 100 letters, digits, dots, hyphens and underscores")
    return folder / TAILERS_FOLDER / f"{name}.position"


class NamedPosition:
    """A durable 64-bit position.

    Args:
        path: a small file, used only for this position.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._generation, self._value = self._newest()

    def load(self) -> int | None:
        """The stored position; None if there is none."""
        return self._value if self._generation else None

    def store(self, value: int) -> None:
        """Replace the position. It survives a crash of the process."""
        self._generation += 1
        self._value = value
        fields = SLOT.pack(self._generation, value)
        os.pwrite(self._fd, fields + CRC.pack(google_crc32c.value(fields)), (self._generation % 2) * SLOT_SIZE)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _newest(self) -> tuple[int, int]:
        best = (0, 0)
        for slot in range(2):
            data = os.pread(self._fd, SLOT.size + CRC.size, slot * SLOT_SIZE)
            if len(data) == SLOT.size + CRC.size and CRC.unpack(data[SLOT.size :])[0] == google_crc32c.value(
                data[: SLOT.size]
            ):
                generation, value = SLOT.unpack(data[: SLOT.size])
                best = max(best, (generation, value))
        return best
