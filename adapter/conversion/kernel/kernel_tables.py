"""The constant words that a kernel reads: maps laid out for look-up, literals, and the days on which zones change."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tandemfeed.adapter.conversion.state.state_kernels import MIX, MULTIPLIER
from tandemfeed.adapter.conversion.table.function_use import ValueMap
from tandemfeed.adapter.time_zones import zone_changes

WORD_SIZE = 8  # bytes; a text that is not longer is one word and is looked up like a number
MASK64 = (1 << 64) - 1


def word_of(text: bytes) -> int:
    """A text of at most 8 bytes as the kernel's int64."""
    return int.from_bytes(text.ljust(8, b"\0"), "little", signed=True)


@dataclass(frozen=True, slots=True)
class WordMap:
    """A map whose keys are words. From `at` on: its keys in ascending order, their values, the default's value.

    For a map of texts, it contains only the keys of one word; a one-word text can match no other key.
    """

    at: int
    count: int

    @property
    def values_at(self) -> int:
        """Where the values begin."""
        return self.at + self.count

    @property
    def values(self) -> str:
        """The same as an expression in the kernel's source, which shows where the keys begin."""
        return f"{self.at} + {self.count}"


@dataclass(frozen=True, slots=True)
class TextMap:
    """A map of texts of any size. From `at` on: an index of `mask` + 1 entries, the keys, their values, the default's.

    The index uses open addressing. An entry is 0, or the key's number plus one, with 31 bits of its hash above that.
    Every key has `words` words.
    """

    at: int
    count: int
    mask: int
    words: int

    @property
    def values_at(self) -> int:
        """Where the values begin."""
        return self.at + self.mask + 1 + self.count * self.words

    @property
    def values(self) -> str:
        """The same, as text in the kernel's source."""
        return str(self.values_at)


class TableData:
    """The words collected while a kernel is generated; the same map, literal or zone is stored only once."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.zones: dict[str, tuple[int, int]] = {}
        self._maps: dict[tuple[str, bool], WordMap | TextMap] = {}
        self._literals: dict[bytes, int] = {}

    def _append(self, words: Sequence[int]) -> int:
        at = len(self.words)
        self.words += words
        return at

    def literal(self, text: bytes) -> int:
        """The position of a text."""
        if text not in self._literals:
            self._literals[text] = self._append(words_of(text, -(-len(text) // 8)))
        return self._literals[text]

    def map(self, value_map: ValueMap, *, is_word: bool) -> WordMap | TextMap:
        """The position and layout of a map.

        Args:
            is_word: the value to look up is a number, or a text of at most WORD_SIZE bytes.
        """
        found = self._maps.get((value_map.name, is_word))
        if found is None:
            found = self._word_map(value_map) if is_word else self._text_map(value_map)
            self._maps[value_map.name, is_word] = found
        return found

    def _word_map(self, value_map: ValueMap) -> WordMap:
        keys = {
            word_of(key) if isinstance(key, bytes) else key: value
            for key, value in value_map.entries.items()
            if isinstance(key, int) or len(key) <= WORD_SIZE
        }
        order = sorted(keys)
        return WordMap(self._append([*order, *_values(value_map, [keys[key] for key in order])]), len(keys))

    def _text_map(self, value_map: ValueMap) -> TextMap:
        keys = sorted(key for key in value_map.entries if isinstance(key, bytes))
        words = max(_word_count(key) for key in keys)
        mask = (1 << (2 * len(keys) - 1).bit_length()) - 1  # at least half of it stays free, so that searches end soon
        index = [0] * (mask + 1)
        for place, key in enumerate(keys):
            mixed = _hash_of(words_of(key, _word_count(key)))
            slot = mixed & mask
            while index[slot]:
                slot = (slot + 1) & mask
            index[slot] = ((mixed >> 32) & 0x7FFF_FFFF) << 32 | (place + 1)
        flat = [word for key in keys for word in words_of(key, words)]
        values = _values(value_map, [value_map.entries[key] for key in keys])
        return TextMap(self._append([*index, *flat, *values]), len(keys), mask, words)

    def midnight(self, zone: str) -> str:
        """The variable that contains the session's midnight in a zone."""
        if zone not in self.zones:
            changes = zone_changes(zone)
            at = self._append([*(day for day, _ in changes), *(seconds for _, seconds in changes)])
            self.zones[zone] = (at, len(changes))
        return f"midnight_{list(self.zones).index(zone)}"

    def digest(self) -> str:
        """The digest of the words; the kernel's source contains it, because the words are a part of the kernel."""
        return hashlib.sha256(struct.pack(f"<{len(self.words)}q", *self.words)).hexdigest()[:16]


def _values(value_map: ValueMap, values: list[int | bytes]) -> list[int]:
    """The words of the values, then those of the default."""
    words = value_words(value_map)
    values = values if value_map.default is None else [*values, value_map.default]
    return [word for value in values for word in (words_of(value, words) if isinstance(value, bytes) else [value])]


def _word_count(text: bytes) -> int:
    return max(1, -(-len(text) // WORD_SIZE))


def _hash_of(words: Sequence[int]) -> int:
    """As `state_kernels.hash_of_key`, but in plain Python, so that laying out a map does not wait for compilation."""
    mixed = 0
    for word in words:
        mixed = (mixed ^ word) * int(MULTIPLIER) & MASK64
        mixed ^= mixed >> 32
        mixed = mixed * int(MIX) & MASK64
        mixed ^= mixed >> 29
    return mixed


def words_of(text: bytes, words: int) -> list[int]:
    """A text as int64s."""
    return [word_of(text[8 * place : 8 * place + 8]) for place in range(words)]


def value_words(value_map: ValueMap) -> int:
    """The number of words of each value of a map."""
    values = [*value_map.entries.values(), value_map.default]
    return max(-(-len(value) // 8) if isinstance(value, bytes) else 1 for value in values if value is not None)
