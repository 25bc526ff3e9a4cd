"""Generates ticker symbols: unique, one to five letters, with first letters spread evenly over the alphabet."""

from __future__ import annotations

import numpy as np

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LENGTH_SHARES = (0.01, 0.06, 0.40, 0.48, 0.05)  # of 1 … 5 letters, about as on the large US exchanges
SYMBOL_COUNT_MAX = 200_000  # far below the 26^4 possible names, so that redrawing a taken name ends soon


def make_tickers(rng: np.random.Generator, count: int) -> list[str]:
    """`count` unique tickers in order of activity; first letters take turns in a shuffled alphabet.

    Raises:
        ValueError: for a count outside 1 … SYMBOL_COUNT_MAX.
    """
    if not 1 <= count <= SYMBOL_COUNT_MAX:
        raise ValueError(f"the number of symbols is {count}; it must be 1 to {SYMBOL_COUNT_MAX}")
    alphabet = [LETTERS[i] for i in rng.permutation(len(LETTERS))]
    lengths = rng.choice(5, size=count, p=LENGTH_SHARES) + 1
    tails = rng.integers(0, 26, size=(count, 4))
    taken: set[str] = set()
    tickers = []
    for place in range(count):
        first = alphabet[place % 26]
        ticker = first + "".join(LETTERS[i] for i in tails[place, : lengths[place] - 1])
        while ticker in taken:  # a short name that is taken grows; a long one is drawn again
            size = min(max(len(ticker), 3), 4)
            ticker = first + "".join(LETTERS[i] for i in rng.integers(0, 26, size=size))
        taken.add(ticker)
        tickers.append(ticker)
    return tickers
