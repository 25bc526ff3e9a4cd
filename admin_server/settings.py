"""The two files that an administrator writes: the cluster (feeds, channels, adapters) and the policy (who may do what).

Every mistake in them is an error that names the file, the key and the reason, before the server serves anything.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any

from tandemfeed.admin_server.feed.protocol_settings import (
    BELOW_THRESHOLD,
    FAIL_POLICIES,
    PUBLISH_MODES,
    SESSION_STATES,
    SILENCE_MODES,
    ProtocolSettings,
)
from tandemfeed.feedcore.wire.output_packet import DATAGRAM_SIZE_MAX
from tandemfeed.transport.dgram import BadGroup, parse_group

MS = 1_000_000
DATAGRAM_SIZE_MIN = 576  # every IPv4 host accepts this size, and a heartbeat's lineage and a signature fit
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # identities become file names, feeds and adapters option values
ENDPOINT = re.compile(r"\S+:\d{1,5}")
TOPIC_WORD = re.compile(r"[A-Za-z0-9_-]+")
WILDCARDS = frozenset({"*", "#"})
ROLES = frozenset({"client", "adapter", "source", "admin"})
SOURCE_LINES = ("sealed", "open")


class SettingsError(ValueError):
    """A settings file cannot be used."""


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """An output channel. Attributes: topic: the name that the policy grants."""

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
    """A feed, the unit of redundancy.

    Attributes:
        wait_for_better_ns: how long a poor candidate waits while an adapter is missing.
        wait_at_first_start_ns: the same when the feed has never had an active.
        source_is_sealed: the feed's source seals its packets; False for lines that come directly from an exchange.
    """

    feed_id: int
    name: str
    session: int
    message_model: bytes
    source_replay_endpoint: str
    lease_ttl_ns: int
    sync_interval_ns: int
    datagram_size_max: int
    wait_for_better_ns: int
    wait_at_first_start_ns: int
    protocol: ProtocolSettings
    channels: tuple[ChannelSettings, ...]
    source_streams: tuple[SourceStreamSettings, ...]
    adapters: tuple[AdapterSettings, ...]
    source_is_sealed: bool = True


@dataclass(frozen=True, slots=True)
class IdentitySettings:
    """What an identity may do.

    Attributes:
        subscribe: topic patterns.
        feeds: the names of the feeds of which it is an adapter.
    """

    name: str
    roles: frozenset[str]
    subscribe: tuple[str, ...]
    feeds: tuple[str, ...] = ()


class _Section:
    """A table of a TOML file, which knows its place in the file for error messages."""

    def __init__(self, path: Path, where: str, values: Mapping[str, Any]) -> None:
        self.path, self.where, self.values = path, where, values

    def error(self, key: str, reason: str) -> SettingsError:
        return SettingsError(f"{self.path}: {f'{self.where}.{key}'.lstrip('.')} {reason}")

    def get(self, key: str, kind: type | UnionType, default: Any = None) -> Any:
        value = self.values.get(key, default)
        if value is None:
            raise self.error(key, "is missing")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.error(key, f"is {value!r}; it must be of type {getattr(kind, '__name__', kind)}")
        return value

    def number(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value: int = self.get(key, int, default)
        if not low <= value <= high:
            raise self.error(key, f"is {value}; it must be between {low} and {high}")
        return value

    def choice(self, key: str, known: tuple[str, ...]) -> str:
        """One of the known words; the first is the default."""
        value: str = self.get(key, str, known[0])
        if value not in known:
            raise self.error(key, f"is {value!r}; it must be one of {', '.join(known)}")
        return value

    def ratio(self, key: str) -> float:
        value: float = float(self.get(key, int | float))
        if isinstance(self.values[key], bool) or not 0.0 <= value <= 1.0:
            raise self.error(key, f"is {self.values[key]}; it must be between 0 and 1")
        return value

    def sections(self, key: str) -> list[_Section]:
        rows = self.get(key, list, [])
        if not rows:
            raise self.error(key, "must have at least one entry")
        return [self.section(f"{key}[{place}]", row) for place, row in enumerate(rows)]

    def section(self, key: str, values: object) -> _Section:
        if not isinstance(values, dict):
            raise self.error(key, f"is {values!r}; it must be a table")
        return _Section(self.path, f"{self.where}.{key}".lstrip("."), values)

    def text(self, key: str, form: re.Pattern[str]) -> str:
        value: str = self.get(key, str)
        if not form.fullmatch(value):
            raise self.error(key, f"is {value!r}; it must have the form {form.pattern}")
        return value

    def items(self, key: str, kind: type, default: Any = None) -> tuple[Any, ...]:
        values = self.get(key, list, default)
        for value in values:
            if not isinstance(value, kind) or isinstance(value, bool):
                raise self.error(key, f"contains {value!r}; every entry must be of type {kind.__name__}")
        return tuple(values)

    def topic(self, key: str, topic: str, wildcards: frozenset[str] = frozenset()) -> str:
        for word in topic.split("."):
            if word not in wildcards and not TOPIC_WORD.fullmatch(word):
                reason = f"has the bad topic {topic!r}: {word!r} is not a word of letters, digits, _ and -"
                raise self.error(key, reason)
        return topic

    def only(self, *known: str) -> None:
        for key in self.values:
            if key not in known:
                raise self.error(key, f"is not a known key; the known keys are {', '.join(known)}")

    def group(self, key: str, group: object) -> str:
        try:
            parse_group(str(group))
        except BadGroup as bad:
            raise self.error(key, f"is invalid: {bad}") from bad
        return str(group)


def _load_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as bad:
        raise SettingsError(f"{path} cannot be read: {(bad.strerror or str(bad)).lower()}") from bad
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as bad:
        raise SettingsError(f"{path}: {bad}") from bad


def load_cluster(path: Path) -> dict[str, FeedSettings]:
    """The feeds of a cluster file, by name.

    Raises:
        SettingsError: with file, key and reason.
    """
    root = _Section(path, "", _load_toml(path))
    root.only("feed")
    feeds = [_load_feed(section) for section in root.sections("feed")]
    for key in ("name", "feed_id"):
        values = [getattr(feed, key) for feed in feeds]
        if len(set(values)) != len(values):
            raise root.error("feed", f"has two entries with the same {key}")
    _check_ports(root, feeds)
    return {feed.name: feed for feed in feeds}


def _check_ports(root: _Section, feeds: list[FeedSettings]) -> None:
    """Each group needs its own port: on one host, every socket bound to a port receives the datagrams of all groups."""
    groups = [stream.group for feed in feeds for stream in feed.source_streams]
    groups += [group for feed in feeds for adapter in feed.adapters for group in adapter.groups.values()]
    by_port: dict[int, str] = {}
    for group in groups:
        port = parse_group(group)[1]
        if port in by_port:
            raise root.error("feed", f"has groups that share a port: {by_port[port]} and {group}; each needs its own")
        by_port[port] = group


def _load_feed(section: _Section) -> FeedSettings:
    section.only(
        "feed_id", "name", "session", "message_model", "source_replay_endpoint", "lease_ttl_ms",
        "sync_interval_ms", "datagram_size_max", "wait_for_better_ms", "wait_at_first_start_ms", "publish",
        "on_silence", "fail_policy", "fail_threshold", "session_state", "session_grace_ms", "source_lines",
        "channel", "source_stream", "adapter",
    )  # fmt: skip
    model_path = section.path.parent / section.get("message_model", str)
    try:
        model = model_path.read_bytes()
    except OSError as missing:
        raise section.error("message_model", f"cannot be read: {model_path}: {missing.strerror}") from missing
    streams = tuple(_load_stream(row) for row in section.sections("source_stream"))
    channels = tuple(_load_channel(row) for row in section.sections("channel"))
    for key in ("channel_id", "topic"):
        values = [getattr(channel, key) for channel in channels]
        if len(set(values)) != len(values):
            raise section.error("channel", f"has two entries with the same {key}")
    _check_streams(section, streams, channels)
    adapters = tuple(_load_adapter(row, channels) for row in section.sections("adapter"))
    for key in ("adapter_id", "name"):
        values = [getattr(adapter, key) for adapter in adapters]
        if len(set(values)) != len(values):
            raise section.error("adapter", f"has two entries with the same {key}")
    return FeedSettings(
        section.number("feed_id", 1, 65_535),
        section.text("name", NAME),
        section.number("session", 19_700_101, 99_991_231),
        model,
        section.text("source_replay_endpoint", ENDPOINT),
        section.number("lease_ttl_ms", 50, 60_000, 300) * MS,
        section.number("sync_interval_ms", 10, 10_000, 100) * MS,
        section.number("datagram_size_max", DATAGRAM_SIZE_MIN, DATAGRAM_SIZE_MAX, 1_472),
        section.number("wait_for_better_ms", 0, 60_000, 2_000) * MS,
        section.number("wait_at_first_start_ms", 0, 60_000, 500) * MS,
        _load_protocol(section),
        channels,
        streams,
        adapters,
        section.choice("source_lines", SOURCE_LINES) == "sealed",
    )


def _load_protocol(section: _Section) -> ProtocolSettings:
    policy = section.choice("fail_policy", FAIL_POLICIES)
    if policy != BELOW_THRESHOLD and "fail_threshold" in section.values:
        raise section.error(
            "fail_threshold", f"is set, but fail_policy is {policy!r}; it is only for fail_policy = {BELOW_THRESHOLD!r}"
        )
    return ProtocolSettings(
        section.choice("publish", PUBLISH_MODES),
        section.choice("on_silence", SILENCE_MODES),
        policy,
        section.ratio("fail_threshold") if policy == BELOW_THRESHOLD else 0.0,
        section.choice("session_state", SESSION_STATES),
        section.number("session_grace_ms", 100, 3_600_000, 5_000) * MS,
    )


def _load_stream(section: _Section) -> SourceStreamSettings:
    section.only("source_stream_id", "name", "group")
    return SourceStreamSettings(
        section.number("source_stream_id", 1, 65_535),
        section.get("name", str),
        section.group("group", section.get("group", str)),
    )


def _load_channel(section: _Section) -> ChannelSettings:
    section.only("channel_id", "topic", "source_stream_ids")
    return ChannelSettings(
        section.number("channel_id", 1, 65_535),
        section.topic("topic", section.get("topic", str)),
        section.items("source_stream_ids", int),
    )


def _check_streams(
    section: _Section, streams: tuple[SourceStreamSettings, ...], channels: tuple[ChannelSettings, ...]
) -> None:
    known = [stream.source_stream_id for stream in streams]
    used = [stream for channel in channels for stream in channel.source_stream_ids]
    if sorted(known) != sorted(used):
        raise section.error(
            "channel",
            f"must use each source stream in exactly one channel; used are {sorted(used)}, defined are {sorted(known)}",
        )


def _load_adapter(section: _Section, channels: tuple[ChannelSettings, ...]) -> AdapterSettings:
    section.only("adapter_id", "name", "identity", "groups")
    groups = {}
    for key, value in section.get("groups", dict).items():
        if not key.isdecimal():
            raise section.error("groups", f"has the key {key!r}; every key must be a channel_id")
        groups[int(key)] = section.group("groups", value)
    if set(groups) != {channel.channel_id for channel in channels}:
        raise section.error("groups", f"must have one group for each channel; it has groups for {sorted(groups)}")
    return AdapterSettings(
        section.number("adapter_id", 1, 65_535), section.text("name", NAME), section.text("identity", NAME), groups
    )


def load_policy(path: Path) -> dict[str, IdentitySettings]:
    """The identities of a policy file, by name.

    Raises:
        SettingsError: with file, key and reason.
    """
    root = _Section(path, "", _load_toml(path))
    root.only("identity")
    identities = {}
    for name, values in root.get("identity", dict, {}).items():
        section = root.section(f"identity.{name}", values)
        if not NAME.fullmatch(name):
            raise root.error("identity", f"has the name {name!r}; it must have the form {NAME.pattern}")
        section.only("roles", "subscribe")
        roles = frozenset(section.items("roles", str))
        if not roles or not roles <= ROLES:
            raise section.error("roles", f"is {sorted(roles)}; it must be one or more of {', '.join(sorted(ROLES))}")
        patterns = [section.topic("subscribe", each, WILDCARDS) for each in section.items("subscribe", str, [])]
        identities[name] = IdentitySettings(name, roles, tuple(patterns))
    if not identities:
        raise root.error("identity", "must have at least one entry")
    return identities


def check_identities(
    path: Path, feeds: Mapping[str, FeedSettings], policy: Mapping[str, IdentitySettings]
) -> dict[str, IdentitySettings]:
    """Check that the identity of every adapter exists and has the role "adapter".

    Args:
        path: the cluster file, for the error text.

    Returns:
        The policy's identities, each with the feeds of which it is an adapter.

    Raises:
        SettingsError: an adapter's identity is not in the policy, or lacks the role.
    """
    feeds_by_identity: dict[str, set[str]] = {}
    for feed in feeds.values():
        for adapter in feed.adapters:
            known = policy.get(adapter.identity)
            if known is None or "adapter" not in known.roles:
                why = "is not in the policy" if known is None else 'lacks the role "adapter" in the policy'
                raise SettingsError(
                    f"{path}: feed {feed.name}: adapter {adapter.name}.identity: {adapter.identity!r} {why}"
                )
            feeds_by_identity.setdefault(adapter.identity, set()).add(feed.name)
    return {
        name: replace(identity, feeds=tuple(sorted(feeds_by_identity.get(name, ()))))
        for name, identity in policy.items()
    }
