"""The trie finds the rules that a matcher without one finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.admin_server.policy.rules import Action, Identity, Policy, Rule
from tandemfeed.admin_server.policy.topic_index import TopicIndex
from tandemfeed.feedcore.topics import any_topic_matches

WORDS = st.sampled_from(["a", "b", "c"])
PATTERNS = st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1, max_size=5).map(".".join)
TOPICS = st.lists(WORDS, min_size=1, max_size=6).map(".".join)


@given(st.lists(PATTERNS, max_size=12), TOPICS)
def test_the_index_finds_the_rules_that_a_naive_matcher_finds(patterns: list[str], topic: str) -> None:
    index = TopicIndex()
    for number, pattern in enumerate(patterns):
        index.add(pattern, number)
    assert index.rules_of(topic) == {
        number for number, pattern in enumerate(patterns) if any_topic_matches([pattern], topic)
    }


RULES = st.builds(
    Rule,
    keys=st.just(("rule", 0, "topics")),
    line=st.integers(1, 9),
    subjects=st.lists(st.sampled_from(["x", "y", "g"]), min_size=1, unique=True).map(tuple),
    actions=st.sampled_from(list(Action)).map(lambda action: frozenset({action})),
    patterns=st.lists(PATTERNS, min_size=1, max_size=4).map(tuple),
    from_unix_ns=st.none() | st.integers(0, 5),
    until_unix_ns=st.none() | st.integers(0, 5),
)


@given(
    st.lists(RULES, max_size=8),
    st.sampled_from(["x", "y", "z"]),
    st.sampled_from(list(Action)),
    TOPICS,
    st.integers(0, 5),
)
def test_the_first_valid_rule_of_the_identity_or_its_groups_decides(
    rules: list[Rule], identity: str, action: Action, topic: str, now: int
) -> None:
    identities = {name: Identity(name, frozenset()) for name in ("x", "y")}
    policy = Policy(identities, {"g": ("x",)}, tuple(rules))
    subjects = {"x": {"x", "g"}, "y": {"y"}}.get(identity, set())
    expected = next(
        (
            rule
            for rule in rules
            if subjects & set(rule.subjects)
            and action in rule.actions
            and any_topic_matches(rule.patterns, topic)
            and rule.is_valid_at(now)
        ),
        None,
    )
    assert policy.decide(identity, action, topic, now).rule is expected


def test_patterns_of_one_rule_share_their_leaves() -> None:
    index = TopicIndex()
    index.add("a.b", 0)
    index.add("a.c", 0)
    index.add("a.c.d", 1)  # replaces the shared leaf of a.c, and leaves that of a.b
    assert [index.rules_of(topic) for topic in ("a.b", "a.c", "a.c.d")] == [{0}, {0}, {1}]
    assert not index.rules_of("a.b.d")
