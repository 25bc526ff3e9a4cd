"""The decisions of a policy: may this identity do this, on this topic or feed, now? Pure.

A policy grants; what no rule grants is refused. Of several rules that grant the same, the first in the file decides.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tandemfeed.admin_server.policy.topic_index import Node, TopicIndex
from tandemfeed.feedcore.documents.symbol_words import EVERY_SYMBOL

FOUND_COUNT_MAX = 65_536  # remembered look-ups: each subscription asks for every channel again


class Action(StrEnum):
    """What a rule grants. SUBSCRIBE and CONTRIBUTE are granted on topics of channels, the others on names of feeds."""

    SUBSCRIBE = "subscribe"
    CONTRIBUTE = "contribute"
    ADMINISTER = "administer"
    OBSERVE = "observe"

    __hash__ = str.__hash__  # Enum's own is a slow one, and every decision looks an action up


CLIENT_ACTIONS = frozenset({Action.SUBSCRIBE, Action.CONTRIBUTE})


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, or the part of an identity's table that is one.

    Attributes:
        keys: the path of its patterns in the policy file; of the roles, if these grant it.
        line: the line on which its table begins.
        subjects: names of identities and groups.
        patterns: of topics if it grants a client's actions, else of names of feeds.
        minimum_age_ns: it grants only topics of feeds that are delayed at least so much.
        from_unix_ns, until_unix_ns: when it is valid (the end is exclusive); None: always.
    """

    keys: tuple[str | int, ...]
    line: int
    subjects: tuple[str, ...]
    actions: frozenset[Action]
    patterns: tuple[str, ...]
    from_unix_ns: int | None = None
    until_unix_ns: int | None = None
    minimum_age_ns: int = 0

    @property
    def name(self) -> str:
        """The rule's name in texts: `rule[0]`, `identity.reader.subscribe`."""
        table, which, key = self.keys
        return f"rule[{which}]" if table == "rule" else f"{table}.{which}.{key}"

    def is_valid_at(self, now_unix_ns: int) -> bool:
        """Whether the rule is valid at a time."""
        if self.from_unix_ns is not None and now_unix_ns < self.from_unix_ns:
            return False
        return self.until_unix_ns is None or now_unix_ns < self.until_unix_ns


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether an action is allowed. Attributes: rule: the rule that allows it; None: no rule does."""

    rule: Rule | None

    @property
    def is_allowed(self) -> bool:
        """Whether a rule allows the action."""
        return self.rule is not None

    @property
    def line(self) -> int | None:
        """The line of the deciding rule in the policy file."""
        return None if self.rule is None else self.rule.line


REFUSED = Decision(None)


@dataclass(frozen=True, slots=True)
class Channel:
    """What decisions need to know about a channel.

    Attributes:
        delay_ns: of its feed; 0: a real-time feed.
        has_symbols: whether single symbols of it can be granted.
    """

    delay_ns: int = 0
    has_symbols: bool = False


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a channel an identity may receive.

    Attributes:
        symbols: as words of topics, where `*` is every symbol; None: the whole channel.
    """

    symbols: frozenset[str] | None

    def __bool__(self) -> bool:
        return self.symbols is None or bool(self.symbols)

    def __or__(self, other: Extent) -> Extent:
        if self.symbols is None or other.symbols is None:
            return WHOLE
        return Extent(self.symbols | other.symbols)

    def __and__(self, other: Extent) -> Extent:
        for one, another in ((self, other), (other, self)):
            if one.symbols is None:
                return another
        for one, another in ((self, other), (other, self)):
            if one.symbols is not None and EVERY_SYMBOL in one.symbols:
                return another
        return Extent((self.symbols or frozenset()) & (other.symbols or frozenset()))

    def covers(self, other: Extent) -> bool:
        """Whether this is at least as much as the other."""
        if self.symbols is None:
            return True
        if other.symbols is None:
            return False
        return EVERY_SYMBOL in self.symbols or other.symbols <= self.symbols


WHOLE, NOTHING = Extent(None), Extent(frozenset())


@dataclass(frozen=True, slots=True)
class Identity:
    """An identity of the policy.

    Attributes:
        roles: the roles in the identity's table.
        subscription_count_max: the limit of subscriptions open at a time; None: only the server's own limit.
        calls_per_second_max: the limit of calls a second, on average; None: unlimited.
    """

    name: str
    roles: frozenset[str]
    subscription_count_max: int | None = None
    calls_per_second_max: float | None = None


@dataclass(frozen=True, slots=True)
class IdentitySettings:
    """What a token states about an identity.

    Attributes:
        roles: the roles in its table, and those that its rules imply.
        subscribe: the topics of the channels granted to it.
        contribute: the topics of the channels to which it may contribute.
        feeds: the names of the feeds of which it is an adapter.
    """

    name: str
    roles: frozenset[str]
    subscribe: tuple[str, ...]
    feeds: tuple[str, ...] = ()
    contribute: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy. Immutable apart from what it remembers of its look-ups, so threads may share it.

    Attributes:
        groups: the members of each group.
        rules: in the order of the file.
        channels: the cluster's channels, by topic; a topic that is not among them is that of no channel.
    """

    identities: Mapping[str, Identity]
    groups: Mapping[str, tuple[str, ...]]
    rules: tuple[Rule, ...]
    channels: Mapping[str, Channel] = field(default_factory=dict)
    _subjects: dict[str, tuple[str, ...]] = field(init=False, repr=False)  # of each identity: itself, its groups
    _indexes: dict[tuple[Action, str], TopicIndex] = field(init=False, repr=False)
    _change_times: list[int] = field(init=False, repr=False)
    _has_minimum_age: bool = field(init=False, repr=False)
    _has_symbols: bool = field(init=False, repr=False)
    _found: dict[tuple[str, Action, str], tuple[Rule, ...]] = field(init=False, repr=False, default_factory=dict)
    _of_places: dict[tuple[Node, ...], tuple[Rule, ...]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        subjects = {name: [name] for name in self.identities}
        for group, members in self.groups.items():
            for member in dict.fromkeys(members):
                subjects[member].append(group)
        object.__setattr__(self, "_subjects", {name: tuple(each) for name, each in subjects.items()})
        object.__setattr__(self, "_indexes", _index(self.rules))
        times = {time for rule in self.rules for time in (rule.from_unix_ns, rule.until_unix_ns) if time is not None}
        object.__setattr__(self, "_change_times", sorted(times))
        object.__setattr__(self, "_has_minimum_age", any(rule.minimum_age_ns for rule in self.rules))
        object.__setattr__(self, "_has_symbols", any(channel.has_symbols for channel in self.channels.values()))

    def decide(self, identity: str, action: Action, topic: str, now_unix_ns: int) -> Decision:
        """Whether an identity may do this on a topic (or on a feed, by its name), and which rule decides."""
        key = identity, action, topic
        if (rules := self._found.get(key)) is None:
            if len(self._found) >= FOUND_COUNT_MAX:
                self._found.clear()
            rules = self._found[key] = self.find_rules(*key)
        for rule in rules:
            if rule.is_valid_at(now_unix_ns):
                return Decision(rule)
        return REFUSED

    def find_rules(self, identity: str, action: Action, topic: str) -> tuple[Rule, ...]:
        """The rules that grant this at some time, in the order of the file."""
        found = self.find_rules_at_any_age(identity, action, topic)
        if self._has_minimum_age and action is Action.SUBSCRIBE:
            delay_ns = self.delay_ns_of(topic)
            return tuple(rule for rule in found if rule.minimum_age_ns <= delay_ns)
        return found

    def find_rules_at_any_age(self, identity: str, action: Action, topic: str) -> tuple[Rule, ...]:
        """As `find_rules`, with those that grant only older data than the topic has."""
        places: list[Node] = []
        above = self._channel_above(topic) if action is Action.SUBSCRIBE and self._has_symbols else None
        for subject in self._subjects.get(identity, ()):
            if (index := self._indexes.get((action, subject))) is not None:
                places += index.find(topic)
                if above is not None:
                    places += index.find(above)
        key = tuple(places)
        if (found := self._of_places.get(key)) is None:  # many topics share the places at which their patterns end
            if len(self._of_places) >= FOUND_COUNT_MAX:
                self._of_places.clear()
            numbers = sorted({number for place in places for number in place.rules})
            found = self._of_places[key] = tuple(map(self.rules.__getitem__, numbers))
        return found

    def extent(self, identity: str, topic: str, now_unix_ns: int) -> Extent:
        """How much of a channel an identity may receive now."""
        if self.decide(identity, Action.SUBSCRIBE, topic, now_unix_ns).is_allowed:
            return WHOLE
        channel = self.channels.get(topic)
        if channel is None or not channel.has_symbols:
            return NOTHING

        def is_granting(number: int) -> bool:
            rule = self.rules[number]
            return rule.is_valid_at(now_unix_ns) and rule.minimum_age_ns <= channel.delay_ns

        subjects = self._subjects.get(identity, ())
        indexes = [self._indexes[key] for subject in subjects if (key := (Action.SUBSCRIBE, subject)) in self._indexes]
        words = (word for index in indexes for word, rules in index.below(topic) if any(map(is_granting, rules)))
        return Extent(frozenset(words))

    def delay_ns_of(self, topic: str) -> int:
        """The delay of the feed that has a channel's or symbol's topic; 0 if none has."""
        channel = self.channels.get(topic) or self.channels.get(self._channel_above(topic) or "")
        return 0 if channel is None else channel.delay_ns

    def _channel_above(self, topic: str) -> str | None:
        """The channel's topic, if this is the topic of a symbol."""
        above = topic.rpartition(".")[0]
        channel = self.channels.get(above)
        return above if channel is not None and channel.has_symbols else None

    def roles_of(self, identity: Identity) -> frozenset[str]:
        """The roles in the identity's table, and those that its rules imply."""
        subjects = self._subjects[identity.name]
        granted = {action for action in Action if any((action, subject) in self._indexes for subject in subjects)}
        implied = {"client"} if granted & CLIENT_ACTIONS else set()
        if granted - CLIENT_ACTIONS:
            implied.add("admin")
        return identity.roles | implied

    def groups_of(self, identity: str) -> tuple[str, ...]:
        """The groups that an identity is in."""
        return self._subjects[identity][1:]

    def next_change_unix_ns(self, now_unix_ns: int) -> int | None:
        """When the next rule begins or ends; None if no rule will."""
        place = bisect_right(self._change_times, now_unix_ns)
        return self._change_times[place] if place < len(self._change_times) else None


def _index(rules: Iterable[Rule]) -> dict[tuple[Action, str], TopicIndex]:
    indexes: dict[tuple[Action, str], TopicIndex] = {}
    for number, rule in enumerate(rules):
        for action in rule.actions:
            for subject in rule.subjects:
                index = indexes.setdefault((action, subject), TopicIndex())
                for pattern in rule.patterns:
                    index.add(pattern, number)
    return indexes
