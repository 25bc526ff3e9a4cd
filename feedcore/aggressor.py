"""The words by which files say who of a trade was the aggressor: one closed vocabulary for every reader. Pure.

Never: a word that is not known is never taken for one of the sides.
"""

from __future__ import annotations

from enum import Enum


class Aggressor(Enum):
    """Whose order was not in the book before; of an order, its own side."""

    BUYER = "buyer"
    SELLER = "seller"
    UNKNOWN = "unknown"


OF_SIDES = {
    **dict.fromkeys(("b", "buy", "buyer", "bid", "1"), Aggressor.BUYER),
    **dict.fromkeys(("s", "sell", "seller", "a", "ask", "-1", "2"), Aggressor.SELLER),
    **dict.fromkeys(("", "n", "none"), Aggressor.UNKNOWN),
}
# Whether the buyer was the maker. Libraries write 1.0 and 0.0 for truth values if some are missing, databases t and f.
OF_MAKERS = {
    **dict.fromkeys(("true", "t", "yes", "y", "1", "1.0"), Aggressor.SELLER),
    **dict.fromkeys(("false", "f", "no", "n", "0", "0.0"), Aggressor.BUYER),
    **dict.fromkeys(("", "none", "nan"), Aggressor.UNKNOWN),
}


def by_side(value: object) -> Aggressor:
    """The aggressor, from a word or number for a side; None: not known.

    Raises:
        ValueError: the word is not known; the text lists those that are.
    """
    return _known(value, OF_SIDES)


def by_buyer_maker(value: object) -> Aggressor:
    """The aggressor, from whether the buyer was the maker: then the seller was the aggressor; None: not known.

    Raises:
        ValueError: the word is not known; the text lists those that are.
    """
    return _known(value, OF_MAKERS)


def _known(value: object, words: dict[str, Aggressor]) -> Aggressor:
    word = "" if value is None else str(value).strip().lower()
    if word not in words:
        raise ValueError(f"{str(value)!r} is not one of {', '.join(filter(None, words))}")
    return words[word]
