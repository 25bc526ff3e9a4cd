"""Symbols as words of topics: `equities.ticks.XEL` is the symbol XEL of the channel `equities.ticks`. Pure.

A symbol is one word. Letters, digits, `_` and `-` stand for themselves; any other byte is `%` and two hexadecimal
digits in upper case: BRK.B is `BRK%2EB`. So each symbol has exactly one word. Padding at a symbol's end (spaces, zero
bytes) is not a part of it. The word `*` means every symbol.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tandemfeed.feedcore.documents.message_model import MessageModel
from tandemfeed.feedcore.sbe.messages import Column

EVERY_SYMBOL = "*"
SYMBOL_WORD = re.compile(r"([A-Za-z0-9_-]|%[0-9A-F]{2})+\Z")
_PLAIN = re.compile(rb"[A-Za-z0-9_-]")
_ESCAPE = re.compile(r"%([0-9A-F]{2})")


def word_of(symbol: bytes) -> str:
    """The word of a symbol; empty for an empty symbol."""
    plain = symbol.rstrip(b"\0 ")
    return "".join(chr(byte) if _PLAIN.match(bytes((byte,))) else f"%{byte:02X}" for byte in plain)


def symbol_of(word: str) -> bytes:
    """The symbol that a word means.

    Raises:
        ValueError: the word is not one that `word_of` returns; the text says which word it would return.
    """
    if not SYMBOL_WORD.match(word):
        proper = word_of(word.encode())
        raise ValueError(
            f"{word!r} is not a symbol's word; characters other than letters, digits, '_' and '-' are "
            f"written as % and two hexadecimal digits in upper case, as in {proper!r}"
        )
    symbol = _ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), word).encode("latin-1")
    if (proper := word_of(symbol)) != word:
        raise ValueError(f"{word!r} is not the word of its symbol, which is {proper!r}")
    return symbol


def symbol_columns(model: MessageModel, field: str) -> dict[int, Column]:
    """By template: the column of the messages that have this field, as text of a fixed length or as an integer."""
    found = {}
    for message in model.schema.messages.values():
        column = message.columns.get(field)
        if column is not None and (column.kind.name == "char" or (column.length == 1 and _is_integer(column))):
            found[message.template_id] = column
    return found


def _is_integer(column: Column) -> bool:
    return column.exponent == 0 and np.dtype(column.numpy_code("<")).kind in "iu"


def granted_values(column: Column, words: Iterable[str]) -> NDArray[np.generic]:
    """The values of a symbol column that these words mean, sorted. Words that no value of the column can have count for
    nothing."""
    kind = np.dtype(column.numpy_code("<"))
    if kind.kind == "S":
        symbols = [symbol for symbol in map(symbol_of, words) if len(symbol) <= column.length]
        padded = [symbol.ljust(column.length) for symbol in symbols]
        return np.unique(np.array([*symbols, *padded], kind))
    bounds = np.iinfo(kind)
    numbers = [int(word) for word in words if re.fullmatch(r"0|-?[1-9][0-9]{0,19}", word)]
    return np.unique(np.array([number for number in numbers if bounds.min <= number <= bounds.max], kind))
