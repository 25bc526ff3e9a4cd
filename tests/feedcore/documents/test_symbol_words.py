"""Symbols as words of topics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.feedcore.documents.symbol_words import symbol_of, word_of


@pytest.mark.parametrize(
    ("symbol", "word"),
    [
        (b"XEL", "XEL"),
        (b"BRK.B", "BRK%2EB"),
        (b"ES 26Z\0\0", "ES%2026Z"),
        (b"XEL     ", "XEL"),
        (b"100%", "100%25"),
        (b"*", "%2A"),
        (b"\xe9", "%E9"),
        (b"-5_a", "-5_a"),
    ],
)
def test_a_symbol_is_one_word(symbol: bytes, word: str) -> None:
    assert word_of(symbol) == word
    assert symbol_of(word) == symbol.rstrip(b"\0 ")


@given(st.binary(min_size=1, max_size=12))
def test_each_symbol_has_one_word_and_comes_back_from_it(symbol: bytes) -> None:
    word = word_of(symbol)
    assert not set(word) & set(".*#")
    if word:
        assert symbol_of(word) == symbol.rstrip(b"\0 ")


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("BRK.B", "'BRK%2EB'"),
        ("brk%2eb", "upper case"),
        ("%41", "'A'"),
        ("A%", "'A%25'"),
        ("", "is not a"),
    ],
)
def test_a_word_that_no_symbol_has_is_refused_with_the_proper_one(word: str, advice: str) -> None:
    with pytest.raises(ValueError, match=advice):
        symbol_of(word)
