"""Which source stream a value belongs to: pure functions of the value, so that it always goes to the same stream.

Never uses other rows, time or chance; such a rule would break the identity of source sequence numbers.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

FIRST_LETTER, LETTER_COUNT = ord("A"), 26


def streams_of_letters(first_bytes: NDArray[np.uint8], stream_count: int) -> NDArray[np.int64]:
    """Equal ranges of A … Z, ignoring case; what sorts before A goes with A, what sorts after Z goes with Z."""
    letters = first_bytes.astype(np.int64)
    letters[(letters >= ord("a")) & (letters <= ord("z"))] -= ord("a") - ord("A")
    return np.clip(letters - FIRST_LETTER, 0, LETTER_COUNT - 1) * stream_count // LETTER_COUNT


def stream_of_hash(text: bytes, stream_count: int) -> int:
    """By the text's CRC-32, which is the same in every process (Python's hash is not)."""
    return zlib.crc32(text) % stream_count
