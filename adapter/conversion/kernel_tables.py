"""The constant words a kernel reads: maps sorted for look-up, literals, and the days on which zones change."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from adapter.conversion.function_use import ValueMap
from adapter.time_zones import zone_changes


def word_of(text: bytes) -> int:
    """A text of at most 8 bytes as the kernel's int64."""
    return int.from_bytes(text.ljust(8, b"\0"), "little", signed=True)


class TableData:
    """Words gathered while a kernel is generated; what is asked for twice stands there once."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.zones: dict[str, tuple[int, int]] = {}
        self._maps: dict[str, int] = {}
        self._literals: dict[bytes, int] = {}

    def _append(self, words: Sequence[int]) -> int:
        at = len(self.words)
        self.words += words
        return at

    def literal(self, text: bytes) -> int:
        """Where a text lies."""
        if text not in self._literals:
            self._literals[text] = self._append(words_of(text, -(-len(text) // 8)))
        return self._literals[text]

    def map(self, value_map: ValueMap) -> int:
        """Where a map lies: its keys ascending, their values, then the default's value."""
        if value_map.name not in self._maps:
            words = value_words(value_map)
            keys = {word_of(key) if isinstance(key, bytes) else key: value for key, value in value_map.entries.items()}
            values = [keys[key] for key in sorted(keys)] + ([] if value_map.default is None else [value_map.default])
            flat = [
                word for value in values for word in (words_of(value, words) if isinstance(value, bytes) else [value])
            ]
            self._maps[value_map.name] = self._append([*sorted(keys), *flat])
        return self._maps[value_map.name]

    def midnight(self, zone: str) -> str:
        """The variable that holds the session's midnight in a zone."""
        if zone not in self.zones:
            changes = zone_changes(zone)
            at = self._append([*(day for day, _ in changes), *(seconds for _, seconds in changes)])
            self.zones[zone] = (at, len(changes))
        return f"midnight_{list(self.zones).index(zone)}"

    def digest(self) -> str:
        """Names the words in the kernel's source, of which they are a part."""
        return hashlib.sha256(struct.pack(f"<{len(self.words)}q", *self.words)).hexdigest()[:16]


def words_of(text: bytes, words: int) -> list[int]:
    """A text as int64s."""
    return [word_of(text[8 * place : 8 * place + 8]) for place in range(words)]


def value_words(value_map: ValueMap) -> int:
    """Words of each value of a map."""
    values = [*value_map.entries.values(), value_map.default]
    return max(-(-len(value) // 8) if isinstance(value, bytes) else 1 for value in values if value is not None)
