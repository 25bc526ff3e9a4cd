"""What the source must know about its feed to number and pack, read from the cluster file (TOML)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

from tandemfeed.feedcore.wire.source_packet import SOURCE_HEADER_SIZE
from tandemfeed.transport.source_sealing import SOURCE_SEAL_SIZE

DATAGRAM_SIZE_DEFAULT = 1_472


class FeedPlanError(Exception):
    """The cluster file does not describe the feed; the text says where and what to do."""


@dataclass(frozen=True, slots=True)
class FeedPlan:
    """The feed as its source sees it. `session` is the trading day, YYYYMMDD."""

    feed_id: int
    name: str
    session: int
    source_stream_ids: tuple[int, ...]
    datagram_size_max: int = DATAGRAM_SIZE_DEFAULT

    def __post_init__(self) -> None:
        if not self.source_stream_ids or len(set(self.source_stream_ids)) != len(self.source_stream_ids):
            raise FeedPlanError(
                f"feed {self.name}: source streams are {self.source_stream_ids}; there must be at least one, each once"
            )
        overhead = SOURCE_HEADER_SIZE + SOURCE_SEAL_SIZE
        if self.datagram_size_max <= overhead:
            raise FeedPlanError(
                f"feed {self.name}: datagram_size_max is {self.datagram_size_max}; header and seal alone take "
                f"{overhead} bytes"
            )

    def in_session(self, session: int) -> FeedPlan:
        """The same feed in another session; 0 keeps the session."""
        return replace(self, session=session) if session else self


def read_feed_plan(document: str) -> FeedPlan:
    """Read `FILE#FEED`, or `FILE` if it describes only one feed.

    Raises:
        FeedPlanError: if the file, the feed or one of its fields is missing.
    """
    text, _, name = document.partition("#")
    path = Path(text)
    try:
        feeds = tomllib.loads(path.read_text(encoding="utf-8")).get("feed", [])
    except OSError as error:
        raise FeedPlanError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FeedPlanError(f"{path} is not TOML: {error}") from error
    names = [feed.get("name", "?") for feed in feeds]
    chosen = [feed for feed in feeds if feed.get("name") == name] if name else feeds
    if len(chosen) != 1:
        raise FeedPlanError(f"{path} describes the feeds {names}; choose one with {path}#NAME")
    feed = chosen[0]
    try:
        return FeedPlan(
            feed_id=int(feed["feed_id"]),
            name=str(feed["name"]),
            session=int(feed["session"]),
            source_stream_ids=tuple(int(stream["source_stream_id"]) for stream in feed["source_stream"]),
            datagram_size_max=int(feed.get("datagram_size_max", DATAGRAM_SIZE_DEFAULT)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FeedPlanError(f"{path}: feed {feed.get('name')!r}: missing or invalid field: {error}") from error
