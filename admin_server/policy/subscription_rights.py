"""What a subscription receives of a feed: the requested part of the channels and symbols that are granted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from tandemfeed.admin_server.policy.rules import NOTHING, WHOLE, Extent
from tandemfeed.admin_server.settings import FeedSettings
from tandemfeed.feedcore.documents.symbol_words import EVERY_SYMBOL, symbol_of

SHOWN_COUNT_MAX = 16  # symbols of a channel that a refusal names


class Grants(Protocol):
    """The policy in force."""

    def extent(self, identity: str, topic: str) -> Extent:
        """How much of a channel an identity may receive now."""
        ...


class NotGranted(Exception):
    """A requested topic does not exist or is not granted."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic


def granted_extents(policy: Grants, identity: str, feed: FeedSettings) -> dict[str, Extent]:
    """How much an identity may receive of each channel of a feed, by topic; without those of which it may nothing."""
    extents = {channel.topic: policy.extent(identity, channel.topic) for channel in feed.channels}
    return {topic: extent for topic, extent in extents.items() if extent}


def requested_extents(granted: Mapping[str, Extent], topics: Iterable[str], feed: FeedSettings) -> dict[int, Extent]:
    """How much a subscription receives of each channel, by channel_id.

    Args:
        topics: requested topics of channels, of their symbols, or of all symbols (`equities.ticks.*`); if there are
            none, everything that is granted.

    Raises:
        NotGranted: a topic is not one of the feed's, or is not granted.
    """
    wanted = {} if topics else dict(granted)
    for topic in topics:
        channel, extent = part_of(topic, feed)
        if not granted.get(channel, NOTHING).covers(extent):
            raise NotGranted(topic)
        wanted[channel] = wanted.get(channel, NOTHING) | extent
    return {channel.channel_id: wanted[channel.topic] for channel in feed.channels if channel.topic in wanted}


def shown_topics(granted: Mapping[str, Extent]) -> list[str]:
    """The topics that are granted, for a text."""
    shown = []
    for topic, extent in granted.items():
        symbols = sorted(extent.symbols or ())
        shown += [f"{topic}.{symbol}" for symbol in symbols[:SHOWN_COUNT_MAX]] if symbols else [topic]
        if len(symbols) > SHOWN_COUNT_MAX:
            shown.append(f"{len(symbols) - SHOWN_COUNT_MAX} more symbols of {topic}")
    return shown


def topics_of(extents: Mapping[int, Extent], feed: FeedSettings) -> list[str]:
    """The topics of what a subscription receives."""
    topics: list[str] = []
    for channel in feed.channels:
        extent = extents.get(channel.channel_id, NOTHING)
        if extent.symbols is None:
            topics.append(channel.topic)
        else:
            topics += (f"{channel.topic}.{word}" for word in sorted(extent.symbols))
    return topics


def part_of(topic: str, feed: FeedSettings) -> tuple[str, Extent]:
    """The channel of a requested topic, and how much of it is requested.

    Raises:
        NotGranted: the topic is not one of the feed's.
    """
    above, _, word = topic.rpartition(".")
    for channel in feed.channels:
        if channel.topic == topic:
            return topic, WHOLE
        if channel.topic == above and feed.symbol_field_of(channel):
            if word != EVERY_SYMBOL:
                try:
                    symbol_of(word)
                except ValueError:
                    break
            return above, Extent(frozenset({word}))
    raise NotGranted(topic)
