"""Topic patterns: dotted words, `*` for exactly one word, `#` for any number of words (or none).

A selection is a sequence of entries that add topics or leave them out; the last one that covers a topic decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """An entry of a selection. Attributes: is_removed: the topics that the pattern covers are left out."""

    pattern: str
    is_removed: bool = False


EVERY_TOPIC = TopicEntry("#")


def extended(selection: Iterable[TopicEntry], entries: Iterable[TopicEntry]) -> tuple[TopicEntry, ...]:
    """A selection with further entries. A new selection that begins by leaving topics out selects all others.

    The result has each pattern once, so repeated changes do not add up.
    """
    kept = {entry.pattern: entry for entry in selection}
    for entry in entries:
        if not kept and entry.is_removed:
            kept[EVERY_TOPIC.pattern] = EVERY_TOPIC
        kept.pop(entry.pattern, None)
        kept[entry.pattern] = entry
    result = list(kept.values())
    while result and result[0].is_removed:  # there is nothing before it that it could leave out
        del result[0]
    return tuple(result)


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
