"""Warnings about a policy that can be used: what it grants to no effect, and what it leaves to the middleware. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from tandemfeed.admin_server.policy.rules import CLIENT_ACTIONS, Action, Channel, Policy, Rule
from tandemfeed.admin_server.policy.topic_index import TopicIndex


def warnings_of(policy: Policy, feeds: Mapping[str, int] | None, now_unix_ns: int) -> list[str]:
    """One sentence for each warning, beginning with its place in the file.

    Args:
        feeds: the delay of each feed of the cluster; None: the cluster file is not known.
    """
    found = [*_expired(policy, now_unix_ns), *_without_rights(policy)]
    if feeds is not None:
        found += [*_without_effect(policy, feeds), *_filtered_by_the_middleware(policy)]
    return found


def _expired(policy: Policy, now_unix_ns: int) -> Iterator[str]:
    for rule in policy.rules:
        if rule.until_unix_ns is not None and rule.until_unix_ns <= now_unix_ns:
            ended = datetime.fromtimestamp(rule.until_unix_ns // 1_000_000_000, UTC)
            yield f"line {rule.line}: {rule.name} has ended, at {ended:%Y-%m-%d %H:%M}Z; remove it"


def _without_rights(policy: Policy) -> Iterator[str]:
    """Groups that no rule names, and identities without a role or a rule."""
    named = {subject for rule in policy.rules for subject in rule.subjects}
    for group in policy.groups:
        if group not in named:
            yield f"group.{group} is named by no rule, so it grants its members nothing"
    for identity in policy.identities.values():
        if not identity.roles and named.isdisjoint((identity.name, *policy.groups_of(identity.name))):
            yield f"identity.{identity.name} has no role, and no rule names it or a group of it, so it may do nothing"


def _without_effect(policy: Policy, feeds: Mapping[str, int]) -> Iterator[str]:
    """Patterns that match no channel or feed, and minimum ages that no matching feed has."""
    for rule in policy.rules:
        of_topics = bool(rule.actions & CLIENT_ACTIONS)
        delays = {topic: channel.delay_ns for topic, channel in policy.channels.items()} if of_topics else feeds
        matched = _matches(rule, delays, policy.channels if of_topics else {})
        kind = "channel" if of_topics else "feed"
        for place, pattern in enumerate(rule.patterns):
            if not matched[place]:
                yield f'line {rule.line}: {rule.name}: "{pattern}" matches no {kind} of the cluster file'
        found = {name for names in matched.values() for name in names}
        if rule.minimum_age_ns and found and all(delays[name] < rule.minimum_age_ns for name in found):
            why = f"no feed that it matches is delayed by at least {rule.minimum_age_ns / 1e9:g} s"
            yield f"line {rule.line}: {rule.name} grants nothing: {why}"


def _matches(rule: Rule, names: Mapping[str, int], channels: Mapping[str, Channel]) -> dict[int, set[str]]:
    """By place of a pattern: the names that it matches, or of which it matches symbols."""
    index = TopicIndex()
    for place, pattern in enumerate(rule.patterns):
        index.add(pattern, place)
    matched: dict[int, set[str]] = {place: set() for place in range(len(rule.patterns))}
    for name in names:
        places = index.rules_of(name)
        if name in channels and channels[name].has_symbols:
            places.update(place for _, below in index.below(name) for place in below)
        for place in places:
            matched[place].add(name)
    return matched


def _filtered_by_the_middleware(policy: Policy) -> Iterator[str]:
    for rule in policy.rules:
        if Action.SUBSCRIBE not in rule.actions:
            continue
        index = TopicIndex()
        for place, pattern in enumerate(rule.patterns):
            index.add(pattern, place)
        for topic, channel in policy.channels.items():
            if channel.has_symbols and not index.find(topic) and any(True for _ in index.below(topic)):
                yield (
                    f'line {rule.line}: {rule.name} grants single symbols of "{topic}", which only the middleware of a '
                    "client filters: the channel's key opens all of it; to protect them, use a channel of their own"
                )
