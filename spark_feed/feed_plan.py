"""What the source must know about its feed to number and pack, read from the cluster file (TOML)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, field

from tandemfeed.feedcore.wire.output_packet import DATAGRAM_SIZE_MAX
from tandemfeed.feedcore.wire.source_packet import SOURCE_HEADER_SIZE
from tandemfeed.transport.sealing.source_sealing import SOURCE_SEAL_SIZE
from tandemfeed.transport.settings_file import InvalidSetting, SettingsFile

DATAGRAM_SIZE_DEFAULT = 1_472
DATAGRAM_SIZE_MIN = SOURCE_HEADER_SIZE + SOURCE_SEAL_SIZE + 1


@dataclass(frozen=True, slots=True)
class FeedPlan:
    """The feed as its source sees it. `session` is the trading day, YYYYMMDD."""

    feed_id: int
    name: str
    session: int
    source_stream_ids: tuple[int, ...]
    datagram_size_max: int = DATAGRAM_SIZE_DEFAULT

    def in_session(self, session: int) -> FeedPlan:
        """The same feed in another session; 0 keeps the session."""
        return replace(self, session=session) if session else self


class _SourceStream(Struct, frozen=True):
    source_stream_id: int
    contributions: str | None = None  # sent by a contribution gateway


class _Channel(Struct, frozen=True):
    channel_id: int
    source_stream_ids: tuple[int, ...] = ()
    also_reads: tuple[int, ...] = ()


class _Feed(Struct, frozen=True, kw_only=True):
    """The keys of a feed that matter to its source and to who reads it; the admin server checks the others."""

    feed_id: int
    name: str
    session: int
    source_streams: Annotated[tuple[_SourceStream, ...], Meta(min_length=1)] = field(name="source_stream")
    channels: tuple[_Channel, ...] = field(name="channel", default=())
    datagram_size_max: Annotated[int, Meta(ge=DATAGRAM_SIZE_MIN, le=DATAGRAM_SIZE_MAX)] = DATAGRAM_SIZE_DEFAULT

    def __post_init__(self) -> None:
        if len({stream.source_stream_id for stream in self.source_streams}) != len(self.source_streams):
            raise InvalidSetting("has two entries with the same source_stream_id", "source_stream")


class _FeedName(Struct, frozen=True):
    name: str


class _Cluster(Struct, frozen=True):
    feeds: Annotated[tuple[_FeedName, ...], Meta(min_length=1)] = field(name="feed")


def read_feed_plan(document: str) -> FeedPlan:
    """Read `FILE#FEED`, or `FILE` if it describes only one feed.

    Raises:
        SettingsError: the file, the feed or one of its keys is missing or invalid.
    """
    file, feed = _read_feed(document)
    ids = tuple(stream.source_stream_id for stream in feed.source_streams if stream.contributions is None)
    if not ids:
        raise file.error(["feed"], f"has only source streams with contributions in {feed.name}, so none for a job")
    return FeedPlan(feed.feed_id, feed.name, feed.session, ids, feed.datagram_size_max)


def read_readers(document: str) -> frozenset[tuple[int, int]]:
    """The (channel_id, source_stream_id) of all channels and the streams that they read; raises as `read_feed_plan`."""
    _, feed = _read_feed(document)
    return frozenset(
        (channel.channel_id, stream)
        for channel in feed.channels
        for stream in channel.source_stream_ids + channel.also_reads
    )


def _read_feed(document: str) -> tuple[SettingsFile, _Feed]:
    path, _, name = document.partition("#")
    file = SettingsFile(Path(path))
    names = [feed.name for feed in file.convert(_Cluster).feeds]
    if names.count(name) != 1 if name else len(names) != 1:
        raise file.error(["feed"], f"has entries named {', '.join(names)}; choose one of them with {path}#NAME")
    return file, file.convert(_Feed, "feed", names.index(name) if name else 0)
