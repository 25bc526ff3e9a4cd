"""The policy file: what it means, and what its errors say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tandemfeed.admin_server.policy.document import load_policy
from tandemfeed.admin_server.policy.rules import Action
from tandemfeed.admin_server.settings import load_cluster
from tandemfeed.transport.settings_file import SettingsError
from tests.admin_server.cluster_files import POLICY, write_settings

RULES = """# a group and a rule
[group.desk]
members = ["reader"]
[[rule]]
to = ["desk"]
actions = ["subscribe"]
topics = ["fx.*"]
from = 2026-01-01T00:00:00Z
until = 2027-01-01T00:00:00Z
"""
IN_2026 = 1_780_000_000_000_000_000
IN_2027 = 1_800_000_000_000_000_000


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        (
            'roles = ["source"]',
            'roles = ["sauce"]',
            ', line 9: identity.source.roles[0] is "sauce"; it must be one of "adapter", "admin", "client", "source"',
        ),
        (
            'roles = ["source"]',
            "roles = []",
            ", line 9: identity.source.roles is []; it must be an array with at least",
        ),
        (
            '["equities.#"]',
            '["equities.a*"]',
            ', line 12: identity.reader.subscribe[0] is "equities.a*"; it must be a topic pattern: at most 16 wor',
        ),
        (
            "[identity.source]",
            '[identity."../source"]',
            ", line 8: identity.../source is not a valid key; it must be a name of at most 64 letters",
        ),
        ("[identity.source]", "[identities.source]", ", line 8: identities is not a known key; did you mean identity?"),
        ("[group.desk]", "[group.reader]", ", line 2: group.reader has the name of an identity; rename one of them"),
        (
            'members = ["reader"]',
            'members = ["raeder"]',
            ', line 3: group.desk.members contains "raeder", which is not an identity; did you mean reader?',
        ),
        ('to = ["desk"]', 'to = ["x"]', ', line 5: rule[0].to contains "x", which is not an identity or group; add it'),
        ('["subscribe"]', '["sub"]', ', line 6: rule[0].actions[0] is "sub"; it must be one of "administer", "contrib'),
        ('["subscribe"]', '["subscribe", "observe"]', ', line 6: rule[0].actions is ["subscribe","observe"]; topics'),
        ('["subscribe"]', '["contribute", "observe"]', ', line 6: rule[0].actions is ["contribute","observe"]; topics'),
        (
            '["subscribe"]',
            '["observe"]',
            ', line 4: rule[0].feeds is missing or empty; ["observe"] is granted on feeds',
        ),
        (
            "topics =",
            'feeds = ["#"]\ntopics =',
            ', line 7: rule[0].feeds is set, but ["subscribe"] is granted on topics',
        ),
        (
            'actions = ["subscribe"]',
            'minimum_age_s = 900\nactions = ["observe"]',
            ', line 6: rule[0].minimum_age_s is set, but ["observe"] has no minimum age',
        ),
        (
            "topics =",
            "minimum_age_s = 0\ntopics =",
            ", line 7: rule[0].minimum_age_s is 0; it must be a number from 0.001",
        ),
        ("2026-01-01T00:00:00Z", "2026-01-01", ', line 8: rule[0].from is "2026-01-01"; it must be a time with its'),
        ("2027-01-01T", "2025-01-01T", ", line 9: rule[0].until is 2025-01-01T00:00:00+00:00; it must be later than"),
        (
            "fx.*",
            "equities.ticks.ABC",
            ', line 7: rule[0].topics[0] is "equities.ticks.ABC", below the channel "equities.ticks": but',
        ),
        (
            "fx.*",
            "*.*.ABC",
            ', line 7: rule[0].topics[0] is "*.*.ABC", below the channel "equities.ticks": but the cluster file',
        ),
    ],
)
def test_an_error_in_the_policy_names_line_and_key(tmp_path: Path, old: str, new: str, error: str) -> None:
    text = RULES + POLICY.removeprefix("\n") if "group" in old + new or old in RULES else POLICY
    assert old in text
    cluster, policy = write_settings(tmp_path, policy=text.replace(old, new, 1))
    with pytest.raises(SettingsError, match=re.escape(f"{policy}{error}")):
        load_policy(policy, load_cluster(cluster))


def test_each_rule_knows_its_name_and_line(tmp_path: Path) -> None:
    _, path = write_settings(tmp_path, policy=RULES + POLICY.removeprefix("\n"))
    rules = {rule.name: rule.line for rule in load_policy(path).rules}
    assert rules == {
        "identity.reader.subscribe": 18,
        "identity.stranger.subscribe": 21,
        "identity.operator.roles": 24,
        "rule[0]": 4,
    }


def test_the_lines_of_rules_without_headers_are_found(tmp_path: Path) -> None:
    text = 'rule = [\n{ to = ["a"], actions = ["observe"], feeds = ["x"] },\n]\nidentity.a.roles = ["client"]\n'
    text += 'identity.a.subscribe = ["b"]\n'
    _, path = write_settings(tmp_path, policy=text)
    assert {rule.name: rule.line for rule in load_policy(path).rules} == {"identity.a.subscribe": 4, "rule[0]": 1}


def test_a_member_of_a_group_has_the_rights_of_the_group_while_the_rule_is_valid(tmp_path: Path) -> None:
    _, path = write_settings(tmp_path, policy=RULES + POLICY)
    policy = load_policy(path)
    assert policy.decide("reader", Action.SUBSCRIBE, "fx.eurusd", IN_2026).is_allowed
    assert not policy.decide("reader", Action.SUBSCRIBE, "fx.eurusd", IN_2027).is_allowed
    assert not policy.decide("stranger", Action.SUBSCRIBE, "fx.eurusd", IN_2026).is_allowed
    assert policy.next_change_unix_ns(IN_2026) == 1_798_761_600_000_000_000
    assert policy.next_change_unix_ns(IN_2027) is None


def test_the_role_admin_grants_every_feed_and_a_rule_grants_some(tmp_path: Path) -> None:
    text = POLICY + '[[rule]]\nto = ["reader"]\nactions = ["administer"]\nfeeds = ["equities"]\n'
    _, path = write_settings(tmp_path, policy=text)
    policy = load_policy(path)
    for identity, feed, is_allowed in (
        ("operator", "bonds", True),
        ("reader", "equities", True),
        ("reader", "bonds", False),
        ("stranger", "equities", False),
        ("unknown", "equities", False),
    ):
        assert policy.decide(identity, Action.ADMINISTER, feed, IN_2026).is_allowed is is_allowed
    assert not policy.decide("reader", Action.OBSERVE, "equities", IN_2026).is_allowed
    assert policy.roles_of(policy.identities["reader"]) == {"client", "admin"}


def test_contributing_is_granted_apart_from_subscribing_and_implies_no_administration(tmp_path: Path) -> None:
    text = POLICY + '[identity.dealer]\ncontribute = ["equities.*"]\n'
    text += '[[rule]]\nto = ["stranger"]\nactions = ["subscribe", "contribute"]\ntopics = ["fx.#"]\n'
    _, path = write_settings(tmp_path, policy=text)
    policy = load_policy(path)

    def may(identity: str, action: Action, topic: str) -> bool:
        return policy.decide(identity, action, topic, IN_2026).is_allowed

    assert may("dealer", Action.CONTRIBUTE, "equities.ticks")
    assert not may("dealer", Action.SUBSCRIBE, "equities.ticks")
    assert not may("reader", Action.CONTRIBUTE, "equities.ticks")
    assert may("stranger", Action.CONTRIBUTE, "fx.eurusd")
    assert may("stranger", Action.SUBSCRIBE, "fx.eurusd")
    assert policy.roles_of(policy.identities["dealer"]) == {"client"}


def test_contributing_is_not_granted_below_a_channel(tmp_path: Path) -> None:
    cluster, path = write_settings(tmp_path, policy=POLICY + '[identity.dealer]\ncontribute = ["equities.ticks.ABC"]\n')
    with pytest.raises(SettingsError, match="contributing is granted on whole channels"):
        load_policy(path, load_cluster(cluster))
