"""One client's call: any sequence of requests, changes of rights, keys and adapters, and of sending."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tandemfeed.admin_server.feed.streams import Subscriber
from tandemfeed.admin_server.policy.limits import OpenSubscriptions
from tandemfeed.admin_server.policy.rules import NOTHING, WHOLE, Extent
from tandemfeed.admin_server.subscriptions.client_session import ClientSession, Outgoing
from tandemfeed.admin_server.subscriptions.selection import ENTRY_COUNT_MAX, Selection, SelectionRefused
from tandemfeed.feedcore.topics import TopicEntry, extended, topic_matches
from tandemfeed.transport.calls.tokens import Caller, TokenRefused
from tandemfeed.v1 import admin_pb2, common_pb2

TOPICS = {"equities": {"e.ticks": 1, "e.books": 2}, "bonds": {"b.ticks": 1}}
PATTERNS = ["e.ticks", "e.books", "e.*", "#", "b.ticks", "no.such", "*.ticks"]
ENTRIES = st.lists(st.builds(TopicEntry, st.sampled_from(PATTERNS), st.booleans()), max_size=3)
COUNT_MAX = 3
SUBSCRIPTION_IDS = st.sampled_from([1, 1, 1, 2, 3, 4, 0])  # often the same, so that requests meet
CALLER = Caller("reader", frozenset({"client"}), (), expires_unix_ns=1)


class Feed:
    """A feed whose keys are replaced when a reader loses their channel, as the broker's are."""

    def __init__(self, name: str, topics: dict[str, int]) -> None:
        self._topics = topics
        channels = [SimpleNamespace(topic=topic, channel_id=each) for topic, each in topics.items()]
        self.feed: Any = SimpleNamespace(name=name, channels=channels, symbol_field_of=lambda _channel: "")
        self.key_ids = dict.fromkeys(topics.values(), 1)
        self.epoch = 1
        self.asked = 0
        self.while_granting: deque[str] = deque()  # topics that are revoked while a grant is made

    @property
    def topics(self) -> dict[str, int]:
        return self._topics

    def grant(self, extents: Mapping[int, Extent]) -> admin_pb2.Grant:
        channels = extents.keys()
        model = admin_pb2.DocumentVersion(kind=admin_pb2.DOCUMENT_KIND_MESSAGE_MODEL, id="model", version="1")
        return admin_pb2.Grant(
            channels=[
                admin_pb2.ChannelGrant(
                    channel_id=channel_id,
                    topic=topic,
                    message_model=model,
                    keys=[common_pb2.StreamKey(key_id=self.key_ids[channel_id], channel_id=channel_id)],
                )
                for topic, channel_id in self._topics.items()
                if channel_id in channels
            ],
            active=admin_pb2.ActiveAdapter(epoch=self.epoch),
            documents=[admin_pb2.Document(version=model, content=b"<model/>")],
        )

    def subscribe(self, subscriber: Subscriber) -> None:
        raise AssertionError("only the shell follows feeds")

    unsubscribe = subscribe


def verify(bearer: str) -> Caller:
    if bearer == "bad":
        raise TokenRefused("it has expired")
    return Caller(bearer, frozenset({"client"}), (), expires_unix_ns=2)


class Policy:
    """Which topics are granted; it changes before a lost channel's key is replaced."""

    def __init__(self, feeds: dict[str, Feed]) -> None:
        self._feeds = feeds
        self.granted = {topic for feed in feeds.values() for topic in feed.topics}

    def extent(self, topic: str) -> Extent:
        return WHOLE if topic in self.granted else NOTHING

    def revoke(self, topic: str) -> None:
        self.granted.discard(topic)
        for feed in self._feeds.values():
            if topic in feed.topics:
                feed.key_ids[feed.topics[topic]] += 1


def a_session() -> tuple[ClientSession, dict[str, Feed], Policy, OpenSubscriptions]:
    feeds = {name: Feed(name, topics) for name, topics in TOPICS.items()}
    policy, counts = Policy(feeds), OpenSubscriptions()
    session = ClientSession(CALLER, feeds, policy.extent, counts, lambda: COUNT_MAX, verify)
    return session, feeds, policy, counts


def selections(entries: Iterable[TopicEntry]) -> list[admin_pb2.TopicSelection]:
    return [admin_pb2.TopicSelection(pattern=each.pattern, is_removed=each.is_removed) for each in entries]


def subscribing(
    subscription_id: int, feed: str, entries: Iterable[TopicEntry] = (), **more: bool
) -> admin_pb2.SubscribeRequest:
    return admin_pb2.SubscribeRequest(subscription_id=subscription_id, feed=feed, topics=selections(entries), **more)


def ask(session: ClientSession, **request: object) -> admin_pb2.SubscriptionUpdate:
    """Make a request, and take its answer."""
    session.on_request(admin_pb2.SubscriptionRequest(request_id=7, **request))  # type: ignore[arg-type]  # one of them
    taken = session.take_update()
    assert taken is not None
    assert taken.update.request_id == 7
    return taken.update


def topics_of(update: admin_pb2.SubscriptionUpdate) -> list[str]:
    return [channel.topic for channel in update.grant.channels]


class ClientSessionMachine(RuleBasedStateMachine):
    """Sends whatever is due at any time, as a client does that reads fast or slowly."""

    def __init__(self) -> None:
        super().__init__()
        self.session, self.feeds, self.policy, self.counts = a_session()
        self.request_ids = 0
        self.unanswered: deque[int] = deque()
        self.held: dict[int, set[str]] = {}  # by subscription: the topics that the client was sent and still has
        self.seen_keys: dict[int, dict[int, int]] = {}

    # ---- the client ----

    def request(self, **request: object) -> None:
        if not self.session.is_full:
            self.request_ids += 1
            self.unanswered.append(self.request_ids)
            self.session.on_request(
                admin_pb2.SubscriptionRequest(request_id=self.request_ids, **request)  # type: ignore[arg-type]
            )

    @rule(
        subscription_id=SUBSCRIPTION_IDS,
        feed=st.sampled_from(["equities", "bonds", "no-such"]),
        entries=ENTRIES,
        is_continued=st.booleans(),
    )
    def subscribe(self, subscription_id: int, feed: str, entries: list[TopicEntry], is_continued: bool) -> None:
        self.request(subscribe=subscribing(subscription_id, feed, entries, is_continued=is_continued))

    @rule(subscription_id=SUBSCRIPTION_IDS, entries=ENTRIES)
    def modify(self, subscription_id: int, entries: list[TopicEntry]) -> None:
        self.request(modify=admin_pb2.ModifyRequest(subscription_id=subscription_id, topics=selections(entries)))

    @rule(subscription_id=SUBSCRIPTION_IDS)
    def cancel(self, subscription_id: int) -> None:
        self.request(cancel=admin_pb2.CancelRequest(subscription_id=subscription_id))

    @rule(bearer=st.sampled_from(["reader", "other", "bad"]))
    def renew(self, bearer: str) -> None:
        self.request(renew=admin_pb2.RenewRequest(bearer=bearer))

    # ---- the cluster ----

    def changed(self) -> None:
        for subscription_id in self.session.subscriptions:
            self.session.on_change(subscription_id)

    @rule(topic=st.sampled_from(["e.ticks", "e.books", "b.ticks"]), is_noticed=st.booleans())
    def revoke(self, topic: str, is_noticed: bool) -> None:
        if topic in self.policy.granted:
            self.policy.revoke(topic)
        if is_noticed:
            self.changed()

    @rule(topic=st.sampled_from(["e.ticks", "e.books", "b.ticks"]))
    def grant(self, topic: str) -> None:
        self.policy.granted.add(topic)
        self.changed()

    @rule(feed=st.sampled_from(["equities", "bonds"]))
    def take_over(self, feed: str) -> None:
        self.feeds[feed].epoch += 1
        self.changed()

    # ---- sending ----

    @rule()
    def send(self) -> None:
        taken = self.session.take_update()
        if taken is not None:
            self.check(taken)

    @precondition(lambda self: self.session.subscriptions)
    @rule()
    def send_everything(self) -> None:
        self.changed()
        while (taken := self.session.take_update()) is not None:
            self.check(taken)
        assert not self.unanswered
        for subscription_id, subscription in self.session.subscriptions.items():
            wanted = {
                t for t in subscription.feed.topics if t in self.policy.granted and subscription.selection.extent(t)
            }
            assert self.held[subscription_id] == wanted

    def check(self, taken: Outgoing) -> None:
        update = taken.update
        if update.request_id:
            assert update.request_id == self.unanswered.popleft(), "answers come in the order of the requests"
        kind = update.WhichOneof("update")
        if kind == "grant":
            topics = {channel.topic for channel in update.grant.channels}
            assert topics, "a subscription without a channel has ended"
            assert topics <= self.policy.granted, "no key of a channel that is not granted at this moment"
            lost = self.held.get(update.subscription_id, set()) - topics
            if not update.request_id:
                assert not lost, "a change takes nothing away without a revocation"
            assert lost <= self.policy.granted, "a revocation comes before what was made after it"
            self.held[update.subscription_id] = topics
        elif kind == "revoked":
            assert set(update.revoked.topics) <= self.held[update.subscription_id]
            self.held[update.subscription_id] -= set(update.revoked.topics)
            if update.revoked.is_last:
                assert update.subscription_id not in self.session.subscriptions
                del self.held[update.subscription_id]
        elif kind == "cancelled":
            del self.held[update.subscription_id]
        else:
            assert update.request_id, "refusals and renewals answer requests"

    @invariant()
    def counts_and_waiting_work_are_bounded(self) -> None:
        assert len(self.session.subscriptions) <= COUNT_MAX
        assert self.counts.count_of("reader") == len(self.session.subscriptions)
        assert len(self.session._changed) <= len(self.session.subscriptions)
        assert self.session._changed.keys() <= self.session.subscriptions.keys()

    def teardown(self) -> None:
        self.session.on_end()
        assert self.counts.count_of("reader") == 0


TestClientSession = ClientSessionMachine.TestCase
TestClientSession.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_grant_that_a_revocation_overtakes_is_made_anew() -> None:
    session, feeds, policy, _ = a_session()
    make, calls = feeds["equities"].grant, []

    def revoke_meanwhile(extents: Mapping[int, Extent]) -> admin_pb2.Grant:
        calls.append(1)
        if len(calls) == 1:
            policy.revoke("e.books")
        return make(extents)

    feeds["equities"].grant = revoke_meanwhile  # type: ignore[method-assign]
    assert topics_of(ask(session, subscribe=subscribing(1, "equities"))) == ["e.ticks"]


def test_what_does_not_exist_and_what_is_not_granted_are_refused_with_the_same_bytes() -> None:
    session, _, policy, _ = a_session()
    policy.granted = {"e.ticks"}
    refused = [
        ask(session, subscribe=subscribing(1, "equities", [TopicEntry(topic)])).SerializeToString()
        for topic in ("e.books", "e.looks")
    ]
    assert refused[0] == refused[1].replace(b"e.looks", b"e.books")
    refused = [ask(session, subscribe=subscribing(1, feed)).SerializeToString() for feed in ("bonds", "ponds")]
    assert refused[0] == refused[1].replace(b"ponds", b"bonds")
    ask(session, subscribe=subscribing(1, "equities"))
    refused = [
        ask(
            session, modify=admin_pb2.ModifyRequest(subscription_id=1, topics=selections([TopicEntry(topic)]))
        ).SerializeToString()
        for topic in ("e.books", "e.looks")
    ]
    assert refused[0] == refused[1].replace(b"e.looks", b"e.books")


def test_a_request_that_names_no_feed_gets_the_one_feed_that_has_its_topics() -> None:
    session, _, policy, _ = a_session()
    assert topics_of(ask(session, subscribe=subscribing(1, "", [TopicEntry("b.#")]))) == ["b.ticks"]
    assert "'equities', 'bonds'; name one" in ask(session, subscribe=subscribing(2, "")).refused.reason
    refused = ask(session, subscribe=subscribing(2, "", [TopicEntry("no.such")])).refused
    assert "topic 'no.such' does not exist or is not granted" in refused.reason
    policy.granted = {"e.ticks"}
    assert topics_of(ask(session, subscribe=subscribing(2, "", [TopicEntry("*.ticks")]))) == ["e.ticks"]


def test_a_document_is_sent_once_in_a_call() -> None:
    session, *_ = a_session()
    assert ask(session, subscribe=subscribing(1, "equities")).grant.documents
    assert not ask(session, subscribe=subscribing(2, "bonds")).grant.documents


def test_many_changes_before_the_client_reads_become_one_update() -> None:
    session, feeds, *_ = a_session()
    ask(session, subscribe=subscribing(1, "equities"))
    for _ in range(1_000):
        feeds["equities"].epoch += 1
        session.on_change(1)
    taken = session.take_update()
    assert taken is not None
    assert taken.update.grant.active.epoch == 1_001
    assert session.take_update() is None


def test_a_change_of_nothing_that_the_client_sees_is_not_sent() -> None:
    session, feeds, *_ = a_session()
    ask(session, subscribe=subscribing(1, "equities", [TopicEntry("e.ticks")]))
    feeds["equities"].key_ids[2] += 1
    session.on_change(1)
    assert session.take_update() is None


def test_a_partial_revocation_names_the_lost_topics_and_the_subscription_continues() -> None:
    session, _, policy, _ = a_session()
    ask(session, subscribe=subscribing(1, "equities"))
    policy.revoke("e.books")
    session.on_change(1)
    revoked, rest = session.take_update(), session.take_update()
    assert revoked is not None
    assert list(revoked.update.revoked.topics) == ["e.books"]
    assert not revoked.update.revoked.is_last
    assert rest is not None
    assert topics_of(rest.update) == ["e.ticks"]


def test_a_revocation_that_the_call_has_not_noticed_is_reported_before_a_modification_is_answered() -> None:
    session, _, policy, _ = a_session()
    ask(session, subscribe=subscribing(1, "equities"))
    policy.revoke("e.books")
    modify = admin_pb2.ModifyRequest(subscription_id=1, topics=selections([TopicEntry("e.ticks")]))
    session.on_request(admin_pb2.SubscriptionRequest(request_id=7, modify=modify))
    revoked, answer = session.take_update(), session.take_update()
    assert revoked is not None
    assert list(revoked.update.revoked.topics) == ["e.books"]
    assert answer is not None
    assert (answer.update.request_id, topics_of(answer.update)) == (7, ["e.ticks"])


def test_a_continued_subscription_gets_what_is_left() -> None:
    session, _, policy, _ = a_session()
    policy.granted = {"e.ticks"}
    both = [TopicEntry("e.ticks"), TopicEntry("e.books")]
    assert ask(session, subscribe=subscribing(1, "equities", both)).HasField("refused")
    assert topics_of(ask(session, subscribe=subscribing(1, "equities", both, is_continued=True))) == ["e.ticks"]


def test_a_renewal_by_another_identity_is_refused_and_one_by_the_same_prolongs_the_call() -> None:
    session, *_ = a_session()
    assert "another identity" in ask(session, renew=admin_pb2.RenewRequest(bearer="other")).refused.reason
    assert ask(session, renew=admin_pb2.RenewRequest(bearer="reader")).renewed.expires_unix_ns == 2
    assert session.caller.expires_unix_ns == 2


@pytest.mark.parametrize("pattern", ["", "a..b", "a b", "a." * 16 + "a", "#" * 300, "é"])
def test_what_is_not_a_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(SelectionRefused, match="is not a topic pattern"):
        Selection().extended([TopicEntry(pattern)])


def test_a_selection_is_bounded_and_repeated_changes_do_not_add_up() -> None:
    with pytest.raises(SelectionRefused, match="are more than"):
        Selection().extended(TopicEntry(f"a.{number}") for number in range(ENTRY_COUNT_MAX + 1))
    selection = Selection().extended([TopicEntry("a.#")])
    for _ in range(2 * ENTRY_COUNT_MAX):
        selection = selection.extended([TopicEntry("a.b", is_removed=True)]).extended([TopicEntry("a.b")])
    assert selection.extent("a.b")
    assert len(selection.entries) == 2


class SelectionMachine(RuleBasedStateMachine):
    """A selection compared with its definition: of all entries, the last one that covers a topic decides."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[TopicEntry] = []
        self.selection = Selection()

    @rule(entries=ENTRIES)
    def extend(self, entries: list[TopicEntry]) -> None:
        if not self.selection.entries and entries and entries[0].is_removed:
            self.entries = [TopicEntry("#")]
        self.entries += entries
        self.selection = self.selection.extended(entries)

    @invariant()
    def the_last_entry_decides(self) -> None:
        for topic in ("e.ticks", "e.books", "b.ticks", "other"):
            covering = [each for each in self.entries if topic_matches(each.pattern, topic)]
            assert bool(self.selection.extent(topic)) == (bool(covering) and not covering[-1].is_removed)

    @invariant()
    def a_client_that_continues_it_gets_the_same(self) -> None:
        again = Selection(extended((), self.selection.entries))
        assert [again.extent(t) for t in ("e.ticks", "b.ticks")] == [
            self.selection.extent(t) for t in ("e.ticks", "b.ticks")
        ]


TestSelection = SelectionMachine.TestCase
