"""Rights on single symbols, and on data of a minimum age: decided, explained, granted, revoked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemfeed.admin_server.command.admin_command import main as check_policy
from tandemfeed.admin_server.policy.document import load_policy
from tandemfeed.admin_server.policy.rules import NOTHING, WHOLE, Action, Extent, Policy
from tandemfeed.admin_server.policy.subscription_rights import NotGranted, requested_extents
from tandemfeed.admin_server.server import AdminServer
from tandemfeed.admin_server.settings import load_cluster
from tandemfeed.feedcore.topics import TopicEntry
from tandemfeed.transport.settings_file import SettingsError
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc
from tests.admin_server.cluster_files import CLUSTER, POLICY, channel_as, running_server, write_settings
from tests.admin_server.policy.test_policy_of_a_server import READER, audit_of, run, write_policy
from tests.admin_server.subscriber_by_hand import RefusedRequest, SubscriberCall, grants, keys_of

SYMBOLS = CLUSTER.replace('source_lines = "open"\n', 'source_lines = "open"\nsymbol_field = "symbol"\n')
DELAYED = (
    SYMBOLS[SYMBOLS.index("[[feed]]") :]
    .replace("feed_id = 1", 'feed_id = 2\ndelayed_from = "equities"\ndelay_s = 900')
    .replace('name = "equities"', 'name = "equities-delayed"')
    .replace('"equities.ticks"', '"delayed.equities.ticks"')
    .replace(":7411", ":7412")
    .replace(":50", ":51")
)
BOTH = SYMBOLS + DELAYED
RULES = """
[[rule]]
to = ["reader"]
actions = ["subscribe"]
topics = ["*.ticks.XEL", "*.ticks.BRK%2EB"]
[[rule]]
to = ["stranger"]
actions = ["subscribe"]
topics = ["#.ticks"]
minimum_age_s = 900
[[rule]]
to = ["reader"]
actions = ["subscribe"]
topics = ["equities.ticks.OLD"]
until = 2020-01-01T00:00:00Z
"""
SOME = POLICY.replace(READER, "[identity.reader]\n") + RULES
NOW = 1_780_000_000_000_000_000
READERS = Extent(frozenset({"XEL", "BRK%2EB"}))


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    cluster, path = write_settings(tmp_path, BOTH, SOME)
    return load_policy(path, load_cluster(cluster))


def _is_allowed(policy: Policy, identity: str, topic: str) -> bool:
    return policy.decide(identity, Action.SUBSCRIBE, topic, NOW).is_allowed


def test_an_identity_gets_the_symbols_that_are_granted_now(policy: Policy) -> None:
    assert policy.extent("reader", "equities.ticks", NOW) == READERS
    assert policy.extent("reader", "delayed.equities.ticks", NOW) == NOTHING
    assert _is_allowed(policy, "reader", "equities.ticks.XEL")
    assert not _is_allowed(policy, "reader", "equities.ticks.XELX")
    assert not _is_allowed(policy, "reader", "equities.ticks.OLD")
    assert not _is_allowed(policy, "reader", "equities.ticks")


def test_the_right_to_a_channel_contains_its_symbols(policy: Policy) -> None:
    assert policy.extent("stranger", "delayed.equities.ticks", NOW) == WHOLE
    assert _is_allowed(policy, "stranger", "delayed.equities.ticks.XEL")


def test_a_rule_with_a_minimum_age_grants_delayed_data_only(policy: Policy) -> None:
    assert policy.extent("stranger", "equities.ticks", NOW) == NOTHING
    assert not _is_allowed(policy, "stranger", "equities.ticks.XEL")


def test_a_feed_that_is_delayed_less_is_not_granted(tmp_path: Path) -> None:
    cluster, path = write_settings(tmp_path, BOTH.replace("delay_s = 900", "delay_s = 899.9"), SOME)
    policy = load_policy(path, load_cluster(cluster))
    assert policy.extent("stranger", "delayed.equities.ticks", NOW) == NOTHING


@pytest.mark.parametrize(
    ("topic", "granted"),
    [
        ("equities.ticks.*", {"*"}),
        ("equities.*.XEL", {"XEL"}),
        ("#.XEL", {"XEL"}),
        ("*.ticks.XEL.#", {"XEL"}),
        ("equities.ticks.#", None),
        ("equities.#", None),
        ("*.*.*.*", set()),
    ],
)
def test_patterns_may_continue_below_a_channel_by_one_word(
    tmp_path: Path, topic: str, granted: set[str] | None
) -> None:
    text = SOME.replace('"*.ticks.XEL", "*.ticks.BRK%2EB"', f'"{topic}"')
    cluster, path = write_settings(tmp_path, BOTH, text)
    extent = load_policy(path, load_cluster(cluster)).extent("reader", "equities.ticks", NOW)
    assert extent.symbols == (None if granted is None else frozenset(granted))


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        ("equities.ticks.BRK.B", "which has several words below the channel; a symbol is one word"),
        ("equities.ticks.brk%2eb", "written as % and two hexadecimal digits in upper case"),
        ("equities.ticks.%41", "'%41' is not the word of its symbol, which is 'A'"),
    ],
)
def test_a_pattern_that_no_symbol_has_is_refused(tmp_path: Path, topic: str, error: str) -> None:
    cluster, path = write_settings(tmp_path, BOTH, SOME.replace("*.ticks.XEL", topic))
    named = f', line 20: rule[0].topics[0] is "{topic}", below the channel "equities.ticks": '
    with pytest.raises(SettingsError, match=re.escape(named) + ".*" + re.escape(error)):
        load_policy(path, load_cluster(cluster))


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('delayed_from = "equities"\n', "", "feed[1].delayed_from is missing; a feed with delay_s needs it"),
        ("delay_s = 900\n", "", "feed[1].delay_s is missing; a feed with delayed_from needs it"),
        ('from = "equities"', 'from = "bonds"', 'delayed_from is "bonds"; it must be the name of a real-time feed'),
        ('from = "equities"', 'from = "equities-delayed"', "it must be the name of a real-time feed in this file"),
        (
            '"delayed.equities.ticks"',
            '"equities.ticks"',
            'which the feed "equities" has as well; each',
        ),
        ('"delayed.equities.ticks"', '"equities.ticks.X"', 'is also the topic of a symbol of "equities.ticks"'),
        (
            "delay_s = 900",
            "delay_s = 900\ndatagram_size_max = 600",
            "it must be at least 1472, that of ",
        ),
        ('symbol_field = "symbol"', 'symbol_field = "price"', 'feed[0].symbol_field is "price"; it must be a field of'),
    ],
)
def test_an_error_about_delays_and_symbols_names_the_key(tmp_path: Path, old: str, new: str, error: str) -> None:
    assert old in BOTH
    cluster, _ = write_settings(tmp_path, BOTH.replace(old, new, 1))
    with pytest.raises(SettingsError, match=re.escape(error)):
        load_cluster(cluster)


def test_a_delayed_feed_repeats_the_same_source_streams(tmp_path: Path) -> None:
    less = DELAYED.replace("source_stream_ids = [1, 2]", "source_stream_ids = [1]")
    first, second = less.index("[[feed.source_stream]]\nsource_stream_id = 2"), less.index("[[feed.adapter]]")
    cluster, _ = write_settings(tmp_path, SYMBOLS + less[:first] + less[second:])
    with pytest.raises(SettingsError, match=r'streams of the feed "equities", \[1, 2\]; it has \[1\]'):
        load_cluster(cluster)


def test_a_request_gets_what_it_names_if_all_of_it_is_granted(tmp_path: Path) -> None:
    feed = load_cluster(write_settings(tmp_path, BOTH)[0])["equities"]
    granted = {"equities.ticks": READERS}
    assert requested_extents(granted, (), feed) == {1: READERS}
    assert requested_extents(granted, ["equities.ticks.XEL"], feed) == {1: Extent(frozenset({"XEL"}))}
    both = requested_extents(granted, ["equities.ticks.XEL", "equities.ticks.BRK%2EB"], feed)
    assert both == {1: READERS}
    whole = {"equities.ticks": WHOLE}
    assert requested_extents(whole, ["equities.ticks.XEL", "equities.ticks"], feed) == {1: WHOLE}
    assert requested_extents(whole, ["equities.ticks.*"], feed) == {1: Extent(frozenset({"*"}))}
    for topic in ("equities.ticks", "equities.ticks.*", "equities.ticks.IBM", "equities.ticks.%41", "bonds.XEL"):
        with pytest.raises(NotGranted):
            requested_extents(granted, [topic], feed)


def test_check_warns_of_what_has_no_effect_and_of_what_only_the_middleware_filters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = """
[group.idle]
members = ["reader"]
[[rule]]
to = ["operator"]
actions = ["observe"]
feeds = ["equities", "bonds"]
[[rule]]
to = ["operator"]
actions = ["subscribe"]
topics = ["#"]
minimum_age_s = 1000
[identity.nothing]
"""
    cluster, path = write_settings(tmp_path, BOTH, SOME + rules)
    assert check_policy(["policy", "check", str(path), "--cluster", str(cluster)]) == 0
    count, *warnings = capsys.readouterr().out.splitlines()
    assert count == f"{path}: 8 identities, 1 groups, 7 rules"
    assert warnings == [
        "warning: line 26: rule[2] has ended, at 2020-01-01 00:00Z; remove it",
        "warning: group.idle is named by no rule, so it grants its members nothing",
        "warning: identity.nothing has no role, and no rule names it or a group of it, so it may do nothing",
        'warning: line 11: identity.stranger.subscribe: "futures.*" matches no channel of the cluster file',
        'warning: line 34: rule[3]: "bonds" matches no feed of the cluster file',
        "warning: line 38: rule[4] grants nothing: no feed that it matches is delayed by at least 1000 s",
        *[
            f'warning: line {line}: {rule} grants single symbols of "equities.ticks", which only the middleware of a '
            "client filters: the channel's key opens all of it; to protect them, use a channel of their own"
            for line, rule in ((17, "rule[0]"), (26, "rule[2]"))
        ],
    ]


def test_a_policy_without_a_doubt_has_no_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster, path = write_settings(tmp_path, BOTH, POLICY.replace("futures.*", "delayed.#"))
    assert check_policy(["policy", "check", str(path), "--cluster", str(cluster)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


# ---- a server ----


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdminServer]:
    with running_server(tmp_path, cluster_text=BOTH, policy_text=SOME) as running:
        yield running


def symbols_of(grant: admin_pb2.Grant) -> list[str]:
    (channel,) = grant.feed.channels
    return list(channel.symbols)


def test_a_grant_names_the_symbols_and_their_field(server: AdminServer) -> None:
    with channel_as(server, "reader") as channel:
        grant = next(grants(channel))
        (ticks,) = grant.feed.channels
        assert (ticks.topic, ticks.symbol_field) == ("equities.ticks", "symbol")
        assert symbols_of(grant) == ["BRK%2EB", "XEL"]
        assert {key.channel_id for key in keys_of(grant)} == {1}
        assert symbols_of(next(grants(channel, "equities.ticks.XEL"))) == ["XEL"]
        assert symbols_of(next(grants(channel, "equities.#"))) == ["BRK%2EB", "XEL"], "a pattern gets what is granted"
        refusal = r"you: equities\.ticks\.BRK%2EB, equities\.ticks\.XEL"
        for topic in ("equities.ticks.IBM", "equities.ticks", "equities.ticks.*"):
            with pytest.raises(RefusedRequest, match=refusal) as refused:
                next(grants(channel, topic))
            assert refused.value.kind == admin_pb2.REFUSAL_KIND_NOT_GRANTED


def test_a_client_of_the_delayed_feed_cannot_open_the_real_time_one(server: AdminServer) -> None:
    with channel_as(server, "stranger") as channel:
        with pytest.raises(RefusedRequest, match="available to you: equities-delayed") as refused:
            next(grants(channel))
        assert refused.value.kind == admin_pb2.REFUSAL_KIND_NOT_GRANTED


def test_symbols_are_added_to_and_left_out_of_a_subscription(server: AdminServer) -> None:
    with channel_as(server, "reader") as channel:
        call = SubscriberCall(channel)
        assert symbols_of(call.subscribe("equities.ticks.XEL")) == ["XEL"]
        assert symbols_of(call.modify("equities.ticks.BRK%2EB")) == ["BRK%2EB", "XEL"]
        assert symbols_of(call.modify(TopicEntry("equities.ticks.XEL", is_removed=True))) == ["BRK%2EB"]
        call.subscribe(subscription_id=2)
        with pytest.raises(
            RefusedRequest, match=r"cannot be left out of all symbols of 'equities\.ticks'; add symbols"
        ):
            call.modify(TopicEntry("equities.ticks.XEL", is_removed=True), subscription_id=2)
        call.close()


def test_a_subscription_that_loses_a_symbol_continues_with_the_others(server: AdminServer) -> None:
    with channel_as(server, "reader") as channel:
        call = SubscriberCall(channel)
        call.subscribe()
        call.subscribe("equities.ticks.BRK%2EB", subscription_id=2)
        write_policy(server, SOME.replace(', "*.ticks.BRK%2EB"', ""))
        updates = [call.next() for _ in range(3)]
        revoked = {each.subscription_id: each.revoked for each in updates if each.HasField("revoked")}
        assert {each: list(lost.topics) for each, lost in revoked.items()} == {
            1: ["equities.ticks.BRK%2EB"],
            2: ["equities.ticks"],
        }
        assert (revoked[1].is_last, revoked[2].is_last) == (False, True)
        (grant,) = [each.grant for each in updates if each.HasField("grant")]
        assert symbols_of(grant) == ["XEL"]
        assert "keys replaced" not in {str(line["event"]) for line in audit_of(server)}  # the channel is still granted
        call.close()


def test_explain_says_why_a_topic_is_not_granted(server: AdminServer, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, expected in (
        (("reader", "equities.ticks.XEL"), f"{server.policy.path}, line 17: rule[0]"),
        (("reader", "equities.ticks"), "as a whole: granted are its symbols BRK%2EB, XEL"),
        (
            ("stranger", "equities.ticks.XEL"),
            "line 21: rule[1] grants only data that are at least 900 s old, and the feed of this topic is not delayed",
        ),
        (("stranger", "delayed.equities.ticks"), f"{server.policy.path}, line 21: rule[1]"),
    ):
        run(server, "explain", *arguments)
        assert expected in capsys.readouterr().out.replace("\n", "")


def test_a_listed_feed_has_its_delay(server: AdminServer) -> None:
    with channel_as(server, "stranger") as channel:
        (feed,) = admin_pb2_grpc.StreamAdministrationStub(channel).ListFeeds(admin_pb2.ListFeedsRequest()).feeds
        assert (feed.name, feed.delay_ns) == ("equities-delayed", 900_000_000_000)
        assert feed.delayed_from == ""  # a feed of which the caller may know nothing
