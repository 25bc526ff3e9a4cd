"""Which topics a subscription asks for, checked and indexed. Pure and immutable."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from tandemfeed.admin_server.policy.topic_index import TopicIndex
from tandemfeed.feedcore.topics import TopicEntry, extended

ENTRY_COUNT_MAX = 256  # of one subscription, so that its memory is bounded
PATTERN_SIZE_MAX = 255
PATTERN_FORM = re.compile(r"([A-Za-z0-9_-]+|[*#])(\.([A-Za-z0-9_-]+|[*#])){0,15}", re.ASCII)


class SelectionRefused(ValueError):
    """The entries cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A subscription's entries, in order; the last one that covers a topic decides."""

    entries: tuple[TopicEntry, ...] = ()
    _index: TopicIndex = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        index = TopicIndex()
        for place, entry in enumerate(self.entries):
            index.add(entry.pattern, place)
        object.__setattr__(self, "_index", index)

    def covers(self, topic: str) -> bool:
        """Whether the topic is selected."""
        places = self._index.find(topic)
        return bool(places) and not self.entries[max(places)].is_removed

    def extended(self, entries: Iterable[TopicEntry]) -> Selection:
        """This selection with further entries.

        Raises:
            SelectionRefused: an entry is not a pattern, or there are too many.
        """
        added = tuple(entries)
        for entry in added:
            if len(entry.pattern) > PATTERN_SIZE_MAX or not PATTERN_FORM.fullmatch(entry.pattern):
                raise SelectionRefused(
                    f"{entry.pattern[:PATTERN_SIZE_MAX]!r} is not a topic pattern: at most 16 words of letters, "
                    f"digits, '_' and '-', or '*' (one word) or '#' (any number of words), separated by '.'"
                )
        result = extended(self.entries, added)
        if len(result) > ENTRY_COUNT_MAX:
            raise SelectionRefused(
                f"{len(result)} topic patterns are more than {ENTRY_COUNT_MAX}; use fewer, with * and #"
            )
        return Selection(result)
