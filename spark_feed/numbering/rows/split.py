"""Which source stream a row belongs to: pure functions of the row, so that a row always goes to the same stream.

Never uses other rows, time or chance; such a rule would break the identity of source sequence numbers.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from enum import Enum

import numpy as np
from numpy.typing import NDArray

FIRST_LETTER, LETTER_COUNT = ord("A"), 26


class SplitRule(Enum):
    """Value: the word on the command line."""

    LETTER = "letter"  # equal ranges of the ticker's first letter: A–M and N–Z for two streams
    HASH = "hash"  # CRC-32 of the ticker, for tickers that are not spread over the alphabet
    INDEX = "index"  # record_index in turn, for recordings of one symbol; its order is then kept only per stream


def assign_streams(
    rule: SplitRule,
    symbols: Sequence[bytes],
    symbol_codes: NDArray[np.int64],
    record_index: NDArray[np.int64],
    stream_count: int,
) -> NDArray[np.int64]:
    """The index (0 … stream_count - 1) of each row's source stream.

    Args:
        symbols: the distinct symbols.
        symbol_codes: shape (rows,), each row's index in `symbols`.
        record_index: shape (rows,).
    """
    if rule is SplitRule.INDEX:
        return record_index % stream_count
    if rule is SplitRule.LETTER:
        return streams_of_letters(symbols, stream_count)[symbol_codes]
    return np.array([stream_of_hash(symbol, stream_count) for symbol in symbols], np.int64)[symbol_codes]


def streams_of_letters(symbols: Sequence[bytes], stream_count: int) -> NDArray[np.int64]:
    """Equal ranges of A … Z, ignoring case; what sorts before A goes with A, what sorts after Z goes with Z."""
    letters = np.array(symbols, "S1").view(np.uint8).astype(np.int64)
    letters[(letters >= ord("a")) & (letters <= ord("z"))] -= ord("a") - ord("A")
    return np.clip(letters - FIRST_LETTER, 0, LETTER_COUNT - 1) * stream_count // LETTER_COUNT


def stream_of_hash(symbol: bytes, stream_count: int) -> int:
    """By the symbol's CRC-32, which is the same in every process (Python's hash is not)."""
    return zlib.crc32(symbol) % stream_count
