"""Which topics a subscription asks for, checked and indexed. Pure and immutable."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from tandemfeed.admin_server.policy.rules import NOTHING, WHOLE, Extent
from tandemfeed.admin_server.policy.topic_index import TopicIndex
from tandemfeed.feedcore.documents.symbol_words import EVERY_SYMBOL
from tandemfeed.feedcore.topics import TopicEntry, extended

ENTRY_COUNT_MAX = 256  # of one subscription, so that its memory is bounded
PATTERN_SIZE_MAX = 255
PATTERN_FORM = re.compile(r"([A-Za-z0-9_%-]+|[*#])(\.([A-Za-z0-9_%-]+|[*#])){0,15}", re.ASCII)


class SelectionRefused(ValueError):
    """The entries cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A subscription's entries, in order; the last one that covers a topic decides."""

    entries: tuple[TopicEntry, ...] = ()
    _index: TopicIndex = field(init=False, repr=False, compare=False)
    _below: dict[str, list[int]] = field(init=False, repr=False, compare=False)  # topic -> the entries for its symbols

    def __post_init__(self) -> None:
        index, below = TopicIndex(), dict[str, list[int]]()
        for place, entry in enumerate(self.entries):
            index.add(entry.pattern, place)
            below.setdefault(entry.pattern.rpartition(".")[0], []).append(place)
        object.__setattr__(self, "_index", index)
        object.__setattr__(self, "_below", below)

    def extent(self, topic: str) -> Extent:
        """How much of a channel is selected, by entries for its topic and for its symbols.

        Raises:
            SelectionRefused: a symbol is left out of a whole channel.
        """
        selected = NOTHING
        whole = self._index.rules_of(topic)
        for place in sorted({*whole, *self._below.get(topic, ())}):
            entry = self.entries[place]
            word = entry.pattern.rpartition(".")[2]
            if place in whole:
                selected = NOTHING if entry.is_removed else WHOLE
            elif not entry.is_removed:
                selected |= Extent(frozenset({word}))
            elif word == EVERY_SYMBOL:
                selected = NOTHING
            elif selected.symbols is None or EVERY_SYMBOL in selected.symbols:
                raise SelectionRefused(f"{entry.pattern!r} cannot be left out of all symbols of {topic!r}; add symbols")
            else:
                selected = Extent(selected.symbols - {word})
        return selected

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
                    "digits, '_' and '-' (in symbols also %XX), or '*' (one word) or '#' (any number of words), "
                    "separated by '.'"
                )
        result = extended(self.entries, added)
        if len(result) > ENTRY_COUNT_MAX:
            raise SelectionRefused(
                f"{len(result)} topic patterns are more than {ENTRY_COUNT_MAX}; use fewer, with * and #"
            )
        return Selection(result)
