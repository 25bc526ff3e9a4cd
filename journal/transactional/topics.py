"""Names of queues, subscribers and topics, and matching of topics with patterns. Pure.

A topic consists of words separated by dots: `quotes.us.AAPL`. In a pattern `*` matches one word, and `#` at the end
matches any number of words, including none.
"""

from __future__ import annotations

import re

from tandemfeed.journal.transactional.errors import BadName

NAME_LENGTH_MAX = 200
SUBSCRIBER_PREFIX = "subscriber:"  # cannot clash: names of other queues have no colon
_NAME = re.compile(r"[A-Za-z0-9_.\-]+")
_GLOBAL_ID = re.compile(r"[\x21-\x7e]+")


def checked_name(name: str, what: str) -> str:
    """The name, if it is valid for a queue or subscriber."""
    if len(name) > NAME_LENGTH_MAX or not _NAME.fullmatch(name):
        raise BadName(f"{what} {name!r}: use 1 to {NAME_LENGTH_MAX} letters, digits, dots, hyphens and underscores")
    return name


def checked_global_id(global_id: str) -> str:
    """The global id, if it is valid."""
    if len(global_id) > NAME_LENGTH_MAX or not _GLOBAL_ID.fullmatch(global_id):
        raise BadName(f"global id {global_id!r}: use 1 to {NAME_LENGTH_MAX} printable ASCII characters without spaces")
    return global_id


def checked_topic(topic: str) -> str:
    """The topic, if it is valid."""
    words = topic.split(".")
    if len(topic) > NAME_LENGTH_MAX or not all(_NAME.fullmatch(word) for word in words):
        raise BadName(
            f"topic {topic!r}: use words of letters, digits, hyphens and underscores, separated by single dots"
        )
    return topic


def checked_pattern(pattern: str) -> str:
    """The pattern, if it is valid."""
    words = pattern.split(".")
    if words[-1] == "#":
        words.pop()
    if len(pattern) > NAME_LENGTH_MAX or not all(word == "*" or _NAME.fullmatch(word) for word in words):
        raise BadName(f"topic pattern {pattern!r}: use words, * for one word, and # at the end for any number of words")
    return pattern


def matches(pattern: str, topic: str) -> bool:
    """Whether the pattern matches the topic."""
    wanted, words = pattern.split("."), topic.split(".")
    if wanted[-1] == "#":
        wanted.pop()
        words = words[: len(wanted)] if len(words) >= len(wanted) else words
    return len(wanted) == len(words) and all(want in ("*", word) for want, word in zip(wanted, words, strict=True))
