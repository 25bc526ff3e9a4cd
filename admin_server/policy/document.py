"""The policy file: its tables as models, and the policy that they describe.

The file accepts only what the cluster enforces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from tandemfeed.admin_server.policy.rules import CLIENT_ACTIONS, Action, Channel, Identity, Policy, Rule
from tandemfeed.admin_server.policy.topic_index import TopicIndex
from tandemfeed.admin_server.settings import NAME_FORM, NAME_RULE, FeedSettings, Name
from tandemfeed.feedcore.documents.symbol_words import EVERY_SYMBOL, symbol_of
from tandemfeed.transport.settings_file import InvalidSetting, SettingsFile, shown

TopicPattern = Annotated[
    str,
    Meta(
        pattern=r"^([A-Za-z0-9_%-]+|[*#])(\.([A-Za-z0-9_%-]+|[*#])){0,15}\Z",  # bounds the work of a look-up
        description="a topic pattern: at most 16 words of letters, digits, '_' and '-' (in symbols also %XX), or '*' "
        "(one word) or '#' (any number of words), separated by '.'",
    ),
]
Role = Literal["client", "adapter", "source", "admin"]
ActionName = Literal["subscribe", "contribute", "administer", "observe"]
ON_TOPICS = {"subscribe", "contribute"}  # the other actions are granted on feeds
Time = Annotated[datetime, Meta(tz=True, description="a time with its offset from UTC, as 2026-11-30T18:00:00Z")]
EVERY_FEED = ("#",)


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the policy file."""


class _IdentityTable(_Table, frozen=True, kw_only=True):
    roles: Annotated[frozenset[Role], Meta(min_length=1)] = frozenset()
    subscribe: tuple[TopicPattern, ...] = ()
    contribute: tuple[TopicPattern, ...] = ()
    subscription_count_max: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    calls_per_second_max: Annotated[float, Meta(ge=0.1, le=100_000)] | None = None


class _GroupTable(_Table, frozen=True, kw_only=True):
    members: Annotated[tuple[Name, ...], Meta(min_length=1)]


class _RuleTable(_Table, frozen=True, kw_only=True):
    """A rule. Attributes: to: names of identities and groups."""

    to: Annotated[tuple[Name, ...], Meta(min_length=1)]
    actions: Annotated[tuple[ActionName, ...], Meta(min_length=1)]
    topics: tuple[TopicPattern, ...] = ()
    feeds: tuple[TopicPattern, ...] = ()
    valid_from: Time | None = field(default=None, name="from")
    valid_until: Time | None = field(default=None, name="until")
    minimum_age_s: Annotated[float, Meta(ge=0.001, le=604_800)] | None = None

    def __post_init__(self) -> None:
        if self.minimum_age_s is not None and "subscribe" not in self.actions:
            reason = f'is set, but {shown(self.actions)} has no minimum age, only "subscribe" has; remove it'
            raise InvalidSetting(reason, "minimum_age_s")
        is_on_topics = bool(ON_TOPICS & set(self.actions))
        if is_on_topics and not set(self.actions) <= ON_TOPICS:
            reason = f"is {shown(self.actions)}; topics and feeds need rules of their own, so split this rule"
            raise InvalidSetting(reason, "actions")
        needed, other = ("topics", "feeds") if is_on_topics else ("feeds", "topics")
        if not getattr(self, needed):
            reason = f"is missing or empty; {shown(self.actions)} is granted on {needed}"
            raise InvalidSetting(reason, needed)
        if getattr(self, other):
            reason = f"is set, but {shown(self.actions)} is granted on {needed}; remove it"
            raise InvalidSetting(reason, other)
        if self.valid_from and self.valid_until and self.valid_until <= self.valid_from:
            reason = f'is {self.valid_until.isoformat()}; it must be later than "from", {self.valid_from.isoformat()}'
            raise InvalidSetting(reason, "until")


class _PolicyTables(_Table, frozen=True, kw_only=True):
    """The policy file. The tables of identities and groups are read one by one, so that errors give their names."""

    identities: Annotated[dict[str, Any], Meta(min_length=1, description="a table with at least one entry")] = field(
        name="identity"
    )
    groups: dict[str, Any] = field(name="group", default_factory=dict)
    rules: tuple[_RuleTable, ...] = field(name="rule", default=())

    def __post_init__(self) -> None:
        for table, names in (("identity", self.identities), ("group", self.groups)):
            for name in names:
                if not re.match(NAME_FORM, name):
                    raise InvalidSetting(f"is not a valid key; it must be {NAME_RULE}", table, name)
        for name in self.groups:
            if name in self.identities:
                reason = "has the name of an identity; rename one of them, because rules refer to both by name"
                raise InvalidSetting(reason, "group", name)
        for place, rule in enumerate(self.rules):
            _require_known(rule.to, {**self.identities, **self.groups}, "identity or group", "rule", place, "to")


def load_policy(path: Path, feeds: Mapping[str, FeedSettings] | None = None, content: bytes | None = None) -> Policy:
    """The policy of a file.

    Args:
        feeds: the cluster's feeds; None: check the file alone.
        content: the file's content, if it was read already.

    Raises:
        SettingsError: with file, line, key and reason.
    """
    file = SettingsFile(path, content)
    tables = file.convert(_PolicyTables)
    identities = {name: file.convert(_IdentityTable, "identity", name) for name in tables.identities}
    groups = {name: file.convert(_GroupTable, "group", name).members for name in tables.groups}
    for name, members in groups.items():
        try:
            _require_known(members, identities, "identity", "group", name, "members")
        except InvalidSetting as bad:
            raise file.error(bad.keys, bad.reason) from bad
    rules = tuple(_rules(file, identities, tables.rules))
    if feeds is not None:
        _check_patterns_below_channels(file, rules, feeds)
    channels = {
        channel.topic: Channel(feed.delay_ns, bool(feed.symbol_field_of(channel)))
        for feed in (feeds or {}).values()
        for channel in feed.channels
    }
    return Policy(
        {
            name: Identity(name, each.roles, each.subscription_count_max, each.calls_per_second_max)
            for name, each in identities.items()
        },
        groups,
        rules,
        channels,
    )


def _rules(
    file: SettingsFile, identities: Mapping[str, _IdentityTable], tables: Iterable[_RuleTable]
) -> Iterator[Rule]:
    """The rules that identities' tables contain, then those of the [[rule]] tables."""
    for name, each in identities.items():
        line = file.table_line("identity", name)
        if "admin" in each.roles:
            actions = frozenset({Action.ADMINISTER, Action.OBSERVE})
            yield Rule(("identity", name, "roles"), line, (name,), actions, EVERY_FEED)
        for action, patterns in ((Action.SUBSCRIBE, each.subscribe), (Action.CONTRIBUTE, each.contribute)):
            if patterns:
                yield Rule(("identity", name, action.value), line, (name,), frozenset({action}), patterns)
    for place, rule in enumerate(tables):
        yield Rule(
            ("rule", place, "topics" if rule.topics else "feeds"),
            file.table_line("rule", place),
            rule.to,
            frozenset(map(Action, rule.actions)),
            rule.topics or rule.feeds,
            _unix_ns(rule.valid_from),
            _unix_ns(rule.valid_until),
            round((rule.minimum_age_s or 0) * 1_000_000_000),
        )


def _unix_ns(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp()) * 1_000_000_000 + time.microsecond * 1_000


def _require_known(names: Iterable[str], known: Mapping[str, object], kind: str, *keys: str | int) -> None:
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1)
            advice = f"did you mean {near[0]}?" if near else "add it to the policy, or remove it here"
            raise InvalidSetting(f"contains {shown(name)}, which is not an {kind}; {advice}", *keys)


def _check_patterns_below_channels(
    file: SettingsFile, rules: Iterable[Rule], feeds: Mapping[str, FeedSettings]
) -> None:
    """Refuse patterns that name something inside a channel, other than the symbols of a channel that has them."""
    has_symbols = {
        channel.topic: bool(feed.symbol_field_of(channel)) for feed in feeds.values() for channel in feed.channels
    }
    for rule in rules:
        if not rule.actions & CLIENT_ACTIONS:
            continue
        for place, pattern in enumerate(rule.patterns):
            found = _channel_above(pattern, has_symbols)
            if found is None:
                continue
            channel, words = found
            if Action.CONTRIBUTE in rule.actions:
                reason = "but contributing is granted on whole channels"
            elif len(words) > 1:
                reason = "which has several words below the channel; a symbol is one word, with '.' written as %2E"
            elif not has_symbols[channel]:
                reason = "but the cluster file gives the channel no symbol_field, so only the whole can be granted"
            else:
                try:
                    if words[0] != EVERY_SYMBOL:
                        symbol_of(words[0])
                    continue
                except ValueError as bad:
                    reason = str(bad)
            raise file.error((*rule.keys, place), f'is "{pattern}", below the channel "{channel}": {reason}')


def _channel_above(pattern: str, has_symbols: Mapping[str, bool]) -> tuple[str, list[str]] | None:
    """A channel whose topic matches the beginning of a pattern that matches no channel, and the words that follow; of
    several channels one of which the pattern can be a symbol."""
    words = pattern.split(".")
    if "#" in words or any(_covers(words, topic) for topic in has_symbols):
        return None
    counts = {topic: topic.count(".") + 1 for topic in has_symbols}
    found = [
        (topic, words[count:])
        for topic, count in counts.items()
        if len(words) > count and _covers(words[:count], topic)
    ]
    return min(found, key=lambda each: (not has_symbols[each[0]], len(each[1])), default=None)


def _covers(words: list[str], topic: str) -> bool:
    index = TopicIndex()
    index.add(".".join(words), 0)
    return bool(index.find(topic))


def check_adapters(path: Path, feeds: Mapping[str, FeedSettings], policy: Policy) -> None:
    """Check that the identities of every adapter and source exist and have the roles "adapter" and "source".

    Args:
        path: the cluster file, for the error text.

    Raises:
        SettingsError: an identity is not in the policy, or lacks the role.
    """
    for feed_place, feed in enumerate(feeds.values()):
        for place, adapter in enumerate(feed.adapters):
            _require_role(path, policy, adapter.identity, "adapter", "feed", feed_place, "adapter", place, "identity")
        if feed.source_identity is not None:
            _require_role(path, policy, feed.source_identity, "source", "feed", feed_place, "source_identity")


def _require_role(path: Path, policy: Policy, identity: str, role: Role, *keys: str | int) -> None:
    known = policy.identities.get(identity)
    if known is None or role not in known.roles:
        why = f'lacks the role "{role}" in the policy' if known else "is not in the policy; add it there"
        raise SettingsFile(path).error(keys, f'is "{identity}", which {why}')
