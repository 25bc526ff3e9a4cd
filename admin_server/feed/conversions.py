"""By which documents each adapter of a feed converts. Pure.

Adapters that convert by different documents send different messages under the same numbers. So a start of an adapter
is refused if an attending adapter converts by others: to change a table, all adapters of the feed stop before one is
started again. A start that the server knows already is not refused, because it may be the feed's active adapter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from tandemfeed.admin_server.settings import FeedSettings
from tandemfeed.feedcore.documents.versions import SHOWN_SIZE, DocumentKind
from tandemfeed.v1 import admin_pb2

EVERY_CHANNEL = 0  # used as the channel_id by a start that has not learnt the feed's channels


class OtherConversion(Exception):
    """The start may not register; the text says why, and what to do."""


class Conversion(NamedTuple):
    """The versions by which a channel is converted; empty if not known."""

    message_model: str
    source_format: str
    converter_table: str


class Conversions:
    """The conversions of one feed's adapters. Not safe for several threads at once."""

    def __init__(self, feed: FeedSettings) -> None:
        self._feed = feed
        self._names = {adapter.adapter_id: adapter.name for adapter in feed.adapters}
        self._own: dict[int, dict[int, Conversion]] = {}  # adapter_id -> channel_id -> how it converts

    def note(self, adapter_id: int, claimed: Iterable[admin_pb2.ChannelConversion]) -> None:
        """An adapter has registered."""
        self._own[adapter_id] = self._read(claimed)

    def check(
        self, adapter_id: int, claimed: Iterable[admin_pb2.ChannelConversion], attending: Collection[int]
    ) -> None:
        """Check a new start.

        Args:
            claimed: by what it converts; empty: by the documents of the feed's definition.
            attending: the adapters whose streams are open.

        Raises:
            OtherConversion: it may not register.
        """
        own, defined = self._read(claimed), self._read(())
        name, feed = self._names[adapter_id], self._feed.name
        for channel_id, conversion in own.items():
            if (differing := _first_difference(conversion, defined[channel_id])) is not None:
                kind, version, wanted = differing
                raise OtherConversion(
                    f"the {kind} of {name} has version {version}, but the definition of feed {feed!r} has version "
                    f"{wanted} for channel {channel_id}; start the adapter without --source-format and --table, or "
                    "with the files of the definition"
                )
        if (difference := self._difference(adapter_id, own, attending)) is not None:
            raise OtherConversion(difference)

    def difference(self, adapter_id: int, attending: Collection[int]) -> str | None:
        """What distinguishes the conversion of an adapter from that of one that attends; None: nothing."""
        return self._difference(adapter_id, self._own.get(adapter_id, {}), attending)

    def _difference(self, adapter_id: int, own: dict[int, Conversion], attending: Collection[int]) -> str | None:
        name, feed = self._names[adapter_id], self._feed.name
        for other_id in sorted(set(attending) - {adapter_id}):
            others = self._own.get(other_id, {})
            for channel_id in own.keys() & others.keys():
                if (differing := _first_difference(own[channel_id], others[channel_id])) is not None:
                    kind, version, other = differing
                    return (
                        f"the {kind} of {name} has version {version}, but {self._names[other_id]}, which attends, "
                        f"converts channel {channel_id} by version {other}; stop all adapters of feed {feed!r} before "
                        "one starts with other documents"
                    )
        return None

    def _read(self, claimed: Iterable[admin_pb2.ChannelConversion]) -> dict[int, Conversion]:
        """The conversion of each channel: as claimed, else as the feed's definition says."""
        by_channel = {each.channel_id: each for each in claimed}
        conversions = {}
        for channel in self._feed.channels:
            own = by_channel.get(channel.channel_id, by_channel.get(EVERY_CHANNEL))
            table = self._feed.table_of(channel)
            if own is not None:
                model = own.message_model.version or self._feed.message_model.version
                conversion = Conversion(model, own.source_format.version, own.converter_table.version)
            elif table is not None:
                versions = table.source_format.version, table.document.version
                conversion = Conversion(self._feed.message_model.version, *versions)
            else:
                conversion = Conversion(self._feed.message_model.version, "", "")
            conversions[channel.channel_id] = conversion
        return conversions


def _first_difference(one: Conversion, other: Conversion) -> tuple[DocumentKind, str, str] | None:
    """The first kind of document in two versions, and these, shortened. What is not known is not compared."""
    kinds = (DocumentKind.MESSAGE_MODEL, DocumentKind.SOURCE_FORMAT, DocumentKind.CONVERTER_TABLE)
    for kind, version, another in zip(kinds, one, other, strict=True):
        if version and another and version != another:
            return kind, version[:SHOWN_SIZE], another[:SHOWN_SIZE]
    return None
