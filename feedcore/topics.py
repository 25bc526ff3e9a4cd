"""Topic patterns: dotted words, `*` for exactly one word, `#` for any number of words (or none)."""

from __future__ import annotations

from collections.abc import Iterable


def topic_matches(pattern: str, topic: str) -> bool:
    """True if the pattern covers the topic: `equities.*.trades` covers `equities.us.trades`, `equities.#` all of it."""
    return _matches(pattern.split("."), topic.split("."))


def any_topic_matches(patterns: Iterable[str], topic: str) -> bool:
    """True if one of the patterns covers the topic."""
    return any(topic_matches(pattern, topic) for pattern in patterns)


def _matches(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_matches(pattern[1:], words[skip:]) for skip in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _matches(pattern[1:], words[1:])
