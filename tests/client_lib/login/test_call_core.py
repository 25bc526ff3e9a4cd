"""What a client requests of the administration server, over broken calls and revocations."""

from __future__ import annotations

import pytest

from tandemfeed.client_lib.errors import AdminUnavailable, AuthorizationRefused, LimitReached
from tandemfeed.client_lib.login.call_core import Answered, CallAgain, CallCore, Granted, Lost
from tandemfeed.feedcore.topics import TopicEntry
from tandemfeed.v1 import admin_pb2, common_pb2

MODEL = admin_pb2.DocumentVersion(kind=admin_pb2.DOCUMENT_KIND_MESSAGE_MODEL, id="model", version="1")
FEED = common_pb2.FeedDescription(feed_id=1, name="equities", session=20261121)
TOPICS = ["e.ticks", "e.books", "e.trades"]


def grant(*topics: str, has_model: bool = True) -> admin_pb2.Grant:
    return admin_pb2.Grant(
        feed=FEED,
        channels=[
            admin_pb2.ChannelGrant(channel_id=1 + TOPICS.index(topic), topic=topic, message_model=MODEL)
            for topic in topics
        ],
        documents=[admin_pb2.Document(version=MODEL, content=b"<model/>")] if has_model else [],
    )


def granted_core(*topics: str) -> tuple[CallCore, int]:
    """A core with one subscription that was granted these topics."""
    core = CallCore()
    core.on_call()
    subscription_id, request = core.subscribe("equities", [])
    update = admin_pb2.SubscriptionUpdate(
        request_id=request.request_id, subscription_id=subscription_id, grant=grant(*topics)
    )
    granted, answered = core.on_update(update)
    assert isinstance(granted, Granted)
    assert granted.grant.topics == set(topics)
    assert answered == Answered(request.request_id)
    return core, subscription_id


def refusal(request: admin_pb2.SubscriptionRequest, kind: admin_pb2.RefusalKind) -> admin_pb2.SubscriptionUpdate:
    refused = admin_pb2.RequestRefused(kind=kind, reason="no")
    return admin_pb2.SubscriptionUpdate(request_id=request.request_id, refused=refused)


def test_a_new_call_continues_every_subscription_with_what_the_application_asked_for() -> None:
    core, first = granted_core("e.ticks", "e.books")
    modify = core.modify(first, [TopicEntry("e.books", is_removed=True)])
    core.on_update(
        admin_pb2.SubscriptionUpdate(request_id=modify.request_id, subscription_id=first, grant=grant("e.ticks"))
    )
    second, _ = core.subscribe("equities", [TopicEntry("e.trades")])
    again = {each.subscribe.subscription_id: each.subscribe for each in core.on_call()}
    assert [(each.pattern, each.is_removed) for each in again[first].topics] == [("#", False), ("e.books", True)]
    assert again[first].is_continued
    assert [each.pattern for each in again[second].topics] == ["e.trades"]
    assert not again[second].is_continued, "it has not been granted yet, so a refusal is the application's"


def test_a_change_that_was_not_accepted_is_forgotten() -> None:
    core, first = granted_core("e.ticks")
    modify = core.modify(first, [TopicEntry("e.books")])
    (answered,) = core.on_update(refusal(modify, admin_pb2.REFUSAL_KIND_NOT_GRANTED))
    assert isinstance(answered, Answered)
    assert isinstance(answered.error, AuthorizationRefused)
    core.modify(first, [TopicEntry("e.trades")])  # sent, but the call breaks before the answer
    (again,) = core.on_call()
    assert list(again.subscribe.topics) == []


def test_what_was_lost_between_two_calls_is_reported() -> None:
    core, first = granted_core("e.ticks", "e.books")
    (again,) = core.on_call()
    lost, granted = core.on_update(
        admin_pb2.SubscriptionUpdate(request_id=again.request_id, subscription_id=first, grant=grant("e.ticks"))
    )[:2]
    assert isinstance(lost, Lost)
    assert (lost.revoked.topics, lost.revoked.is_last) == (("e.books",), False)
    assert isinstance(granted, Granted)


def test_a_continued_subscription_of_which_nothing_is_left_is_over() -> None:
    core, _ = granted_core("e.ticks")
    (again,) = core.on_call()
    _, lost = core.on_update(refusal(again, admin_pb2.REFUSAL_KIND_NOT_GRANTED))
    assert isinstance(lost, Lost)
    assert lost.revoked.is_last
    assert core.on_call() == []


def test_a_limit_that_the_former_call_still_uses_up_ends_no_subscription() -> None:
    core, _ = granted_core("e.ticks")
    (again,) = core.on_call()
    (call_again,) = core.on_update(refusal(again, admin_pb2.REFUSAL_KIND_LIMIT))
    assert isinstance(call_again, CallAgain)
    assert isinstance(call_again.error, LimitReached)
    assert len(core.on_call()) == 1


def test_a_document_that_the_call_has_received_is_not_needed_again_and_a_new_call_sends_it_anew() -> None:
    core, first = granted_core("e.ticks")
    update = admin_pb2.SubscriptionUpdate(subscription_id=first, grant=grant("e.ticks", has_model=False))
    (granted,) = core.on_update(update)
    assert isinstance(granted, Granted)
    assert granted.grant.message_model == b"<model/>"
    core.on_call()
    with pytest.raises(KeyError):
        core.on_update(update)


def test_updates_of_a_cancelled_subscription_are_ignored() -> None:
    core, first = granted_core("e.ticks")
    assert core.cancel(first) is not None
    assert core.cancel(first) is None
    assert core.on_update(admin_pb2.SubscriptionUpdate(subscription_id=first, grant=grant("e.ticks"))) == []


def test_a_partial_revocation_keeps_the_subscription_and_the_last_one_ends_it() -> None:
    core, first = granted_core("e.ticks", "e.books")
    for topics, is_last in ((["e.books"], False), (["e.ticks"], True)):
        revoked = admin_pb2.TopicsRevoked(topics=topics, reason="policy", is_last=is_last)
        (lost,) = core.on_update(admin_pb2.SubscriptionUpdate(subscription_id=first, revoked=revoked))
        assert isinstance(lost, Lost)
        assert lost.revoked.topics == tuple(topics)
        assert (first in core.requests) is not is_last
    assert core.on_rejected(first, AdminUnavailable("")) == []
