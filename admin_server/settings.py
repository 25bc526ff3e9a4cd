"""The two files an administrator writes: the cluster (feeds, channels, adapters) and the policy (who may do what).

Everything wrong with one is an error that names file, key and reason, before anything is served.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedcore.output_packet import DATAGRAM_SIZE_MAX
from transport.dgram import BadGroup, parse_group

MS = 1_000_000
ROLES = frozenset({"client", "adapter", "source", "admin"})


class SettingsError(ValueError):
    """A settings file cannot be used."""


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """An output channel. Attributes: topic: what the policy grants."""

    channel_id: int
    topic: str
    source_stream_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SourceStreamSettings:
    """A source stream and the group it is multicast on."""

    source_stream_id: int
    name: str
    group: str


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """An adapter: the identity that may register as it, and its group per channel."""

    adapter_id: int
    name: str
    identity: str
    groups: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class FeedSettings:
    """A feed, the unit of redundancy."""

    feed_id: int
    name: str
    session: int
    message_model: bytes
    source_replay_endpoint: str
    lease_ttl_ns: int
    sync_interval_ns: int
    datagram_size_max: int
    channels: tuple[ChannelSettings, ...]
    source_streams: tuple[SourceStreamSettings, ...]
    adapters: tuple[AdapterSettings, ...]


@dataclass(frozen=True, slots=True)
class IdentitySettings:
    """What an identity may do. Attributes: subscribe: topic patterns."""

    name: str
    roles: frozenset[str]
    subscribe: tuple[str, ...]


class _Section:
    """A table of a TOML file that says where it stands when something is wrong."""

    def __init__(self, path: Path, where: str, values: Mapping[str, Any]) -> None:
        self.path, self.where, self.values = path, where, values

    def error(self, key: str, reason: str) -> SettingsError:
        return SettingsError(f"{self.path}: {self.where}.{key}: {reason}")

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        value = self.values.get(key, default)
        if value is None:
            raise self.error(key, "is missing")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.error(key, f"{value!r} is not of type {kind.__name__}")
        return value

    def number(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value: int = self.get(key, int, default)
        if not low <= value <= high:
            raise self.error(key, f"{value} is not within {low} and {high}")
        return value

    def sections(self, key: str) -> list[_Section]:
        rows = self.get(key, list, [])
        if not rows:
            raise self.error(key, "there must be at least one")
        return [_Section(self.path, f"{self.where}.{key}[{place}]", row) for place, row in enumerate(rows)]

    def only(self, *known: str) -> None:
        for key in self.values:
            if key not in known:
                raise self.error(key, f"unknown key; known are {', '.join(known)}")

    def group(self, key: str, group: object) -> str:
        try:
            parse_group(str(group))
        except BadGroup as bad:
            raise self.error(key, str(bad)) from bad
        return str(group)


def _load_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as bad:
        raise SettingsError(f"{path}: {bad}") from bad


def load_cluster(path: Path) -> dict[str, FeedSettings]:
    """The feeds of a cluster file, by name.

    Raises:
        SettingsError: with file, key and reason.
    """
    root = _Section(path, "", _load_toml(path))
    feeds = [_load_feed(section) for section in root.sections("feed")]
    for key in ("name", "feed_id"):
        values = [getattr(feed, key) for feed in feeds]
        if len(set(values)) != len(values):
            raise root.error("feed", f"two feeds have the same {key}")
    _check_ports(root, feeds)
    return {feed.name: feed for feed in feeds}


def _check_ports(root: _Section, feeds: list[FeedSettings]) -> None:
    """On one host the kernel hands a group's datagrams to every socket bound to the port, whatever group it joined."""
    groups = [stream.group for feed in feeds for stream in feed.source_streams]
    groups += [group for feed in feeds for adapter in feed.adapters for group in adapter.groups.values()]
    by_port: dict[int, str] = {}
    for group in groups:
        port = parse_group(group)[1]
        if port in by_port:
            raise root.error("feed", f"groups {by_port[port]} and {group} share a port: each group needs its own")
        by_port[port] = group


def _load_feed(section: _Section) -> FeedSettings:
    section.only(
        "feed_id",
        "name",
        "session",
        "message_model",
        "source_replay_endpoint",
        "lease_ttl_ms",
        "sync_interval_ms",
        "datagram_size_max",
        "channel",
        "source_stream",
        "adapter",
    )
    model_path = section.path.parent / section.get("message_model", str)
    try:
        model = model_path.read_bytes()
    except OSError as missing:
        raise section.error("message_model", f"{model_path}: {missing.strerror}") from missing
    streams = tuple(
        SourceStreamSettings(
            row.number("source_stream_id", 1, 65_535),
            row.get("name", str),
            row.group("group", row.get("group", str)),
        )
        for row in section.sections("source_stream")
    )
    channels = tuple(
        ChannelSettings(
            row.number("channel_id", 1, 65_535), row.get("topic", str), tuple(row.get("source_stream_ids", list))
        )
        for row in section.sections("channel")
    )
    _check_streams(section, streams, channels)
    adapters = tuple(_load_adapter(row, channels) for row in section.sections("adapter"))
    for key in ("adapter_id", "name"):
        values = [getattr(adapter, key) for adapter in adapters]
        if len(set(values)) != len(values):
            raise section.error("adapter", f"two adapters have the same {key}")
    return FeedSettings(
        section.number("feed_id", 1, 65_535),
        section.get("name", str),
        section.number("session", 19_700_101, 99_991_231),
        model,
        section.get("source_replay_endpoint", str),
        section.number("lease_ttl_ms", 50, 60_000, 300) * MS,
        section.number("sync_interval_ms", 10, 10_000, 100) * MS,
        section.number("datagram_size_max", 256, DATAGRAM_SIZE_MAX, 1_472),
        channels,
        streams,
        adapters,
    )


def _check_streams(
    section: _Section, streams: tuple[SourceStreamSettings, ...], channels: tuple[ChannelSettings, ...]
) -> None:
    known = [stream.source_stream_id for stream in streams]
    used = [stream for channel in channels for stream in channel.source_stream_ids]
    if sorted(known) != sorted(used):
        raise section.error(
            "channel",
            f"each source stream belongs to exactly one channel: {sorted(used)} used, {sorted(known)} defined",
        )


def _load_adapter(section: _Section, channels: tuple[ChannelSettings, ...]) -> AdapterSettings:
    groups = {int(key): section.group("groups", value) for key, value in section.get("groups", dict).items()}
    if set(groups) != {channel.channel_id for channel in channels}:
        raise section.error("groups", f"one group per channel is needed, {sorted(groups)} are given")
    return AdapterSettings(
        section.number("adapter_id", 1, 65_535), section.get("name", str), section.get("identity", str), groups
    )


def load_policy(path: Path) -> dict[str, IdentitySettings]:
    """The identities of a policy file, by name.

    Raises:
        SettingsError: with file, key and reason.
    """
    root = _Section(path, "", _load_toml(path))
    identities = {}
    for name, values in root.get("identity", dict, {}).items():
        section = _Section(path, f"identity.{name}", values)
        section.only("roles", "subscribe")
        roles = frozenset(section.get("roles", list))
        if not roles or not roles <= ROLES:
            raise section.error("roles", f"{sorted(roles)}: some of {', '.join(sorted(ROLES))}")
        identities[name] = IdentitySettings(name, roles, tuple(section.get("subscribe", list, [])))
    if not identities:
        raise root.error("identity", "there must be at least one")
    return identities
