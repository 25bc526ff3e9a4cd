"""The service of subscribing applications."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import NoReturn

import grpc

from tandemfeed.admin_server.audit.log import AuditLog
from tandemfeed.admin_server.feed.broker import FeedBroker
from tandemfeed.admin_server.feed.streams import Subscriber
from tandemfeed.admin_server.policy.limits import OpenSubscriptions
from tandemfeed.admin_server.policy.policy_keeper import PolicyKeeper
from tandemfeed.admin_server.policy.rules import Action, Extent
from tandemfeed.admin_server.policy.subscription_rights import (
    NotGranted,
    granted_extents,
    requested_extents,
    shown_topics,
    topics_of,
)
from tandemfeed.admin_server.services.shared import listed
from tandemfeed.transport.calls.serving.call_context import caller_of, in_thread
from tandemfeed.transport.unicast.wire import CURVE_KEY_SIZE
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc


class StreamAdministrationService(admin_pb2_grpc.StreamAdministrationServicer):
    """For subscribing applications. A refusal is the same for what does not exist and for what is not granted."""

    def __init__(
        self, brokers: Mapping[str, FeedBroker], policy: PolicyKeeper, audit: AuditLog, subscriber_count_max: int
    ) -> None:
        self._brokers, self._policy, self._audit = brokers, policy, audit
        self._subscriber_count_max = subscriber_count_max
        self._open, self._open_lock = OpenSubscriptions(), threading.Lock()

    async def Subscribe(  # noqa: N802
        self, request: admin_pb2.SubscribeRequest, context: grpc.ServicerContext
    ) -> AsyncIterator[admin_pb2.SubscriptionUpdate]:
        """Send the grant, then an update whenever it changes, until the client leaves or the grant is revoked."""
        broker, channels = await in_thread(context, self._granted, request, context)
        await in_thread(context, self._take_seat, request, context)
        try:
            subscriber = await in_thread(context, self._begin, broker, channels, request, context)
            try:
                is_first = True
                async for _ in subscriber.updates.drain():
                    update = broker.update_for(channels, is_first=is_first)
                    if subscriber.has_ended:  # checked last: keys made after a revocation must not be sent
                        break
                    yield update
                    is_first = False
                if subscriber.end_reason:
                    context.abort(grpc.StatusCode.PERMISSION_DENIED, subscriber.end_reason)
            finally:
                broker.unsubscribe(subscriber)
        finally:
            self._leave_seat(context)

    def _begin(
        self,
        broker: FeedBroker,
        channels: Mapping[int, Extent],
        request: admin_pb2.SubscribeRequest,
        context: grpc.ServicerContext,
    ) -> Subscriber:
        """Record the grant, then begin it."""
        unicast_key = _unicast_key(request, context)
        identity, feed = caller_of(context).identity, broker.feed
        topics = topics_of(channels, feed)
        decisions = [self._policy.decide(identity, Action.SUBSCRIBE, topic) for topic in topics]
        rules = sorted({decision.rule.name for decision in decisions if decision.rule is not None})
        broker.rights.note(identity, channels)
        known = {"identity": identity, "peer": context.peer(), "channels": sorted(channels), "rules": rules}
        self._audit.write("subscribed", feed=feed.name, **known)
        subscriber = broker.subscribe(identity, channels, context.peer(), unicast_key)
        broker.end_ungranted(self._policy)  # the policy may have changed before the broker knew of the subscriber
        return subscriber

    def _granted(
        self, request: admin_pb2.SubscribeRequest, context: grpc.ServicerContext
    ) -> tuple[FeedBroker, dict[int, Extent]]:
        """The feed, and how much of its channels is requested, if it is granted; without a request, all that is."""
        broker = self._brokers.get(request.feed)
        granted = {} if broker is None else self._granted_extents(broker, context)
        if broker is None or not granted:
            seen = [name for name, each in self._brokers.items() if self._granted_extents(each, context)]
            self._refuse(request, context, f"the feed {request.feed!r}", seen)
        try:
            return broker, requested_extents(granted, request.topics, broker.feed)
        except NotGranted as refused:
            what = f"the topic {refused.topic!r} in feed {request.feed!r}"
            self._refuse(request, context, what, shown_topics(granted), topic=refused.topic)

    def _granted_extents(self, broker: FeedBroker, context: grpc.ServicerContext) -> dict[str, Extent]:
        """What the caller may receive of each channel, by topic."""
        return granted_extents(self._policy, caller_of(context).identity, broker.feed)

    def _refuse(
        self,
        request: admin_pb2.SubscribeRequest,
        context: grpc.ServicerContext,
        what: str,
        available: Iterable[str],
        **fields: str,
    ) -> NoReturn:
        identity = caller_of(context).identity
        self._audit.refuse(
            context,
            grpc.StatusCode.PERMISSION_DENIED,
            f"{what} does not exist or is not granted to {identity}; available to you: {listed(available)}",
            "subscription refused",
            identity=identity,
            feed=request.feed,
            **fields,
        )

    def _take_seat(self, request: admin_pb2.SubscribeRequest, context: grpc.ServicerContext) -> None:
        """Count a subscription, or refuse it."""
        identity = caller_of(context).identity
        known = self._policy.policy.identities.get(identity)
        limit = None if known is None else known.subscription_count_max
        with self._open_lock:
            if self._open.total >= self._subscriber_count_max:
                text = (
                    f"{self._subscriber_count_max} subscribers are connected, which is the limit; try again later, or "
                    "raise --subscriber-count-max at the admin server"
                )
            elif self._open.begin(identity, limit):
                return
            else:
                text = (
                    f"{identity} has {limit} subscriptions open, which is subscription_count_max in the policy; "
                    "end one first"
                )
        self._refuse_one_more(request, context, text)

    def _leave_seat(self, context: grpc.ServicerContext) -> None:
        with self._open_lock:
            self._open.end(caller_of(context).identity)

    def _refuse_one_more(
        self, request: admin_pb2.SubscribeRequest, context: grpc.ServicerContext, text: str
    ) -> NoReturn:
        code, identity = grpc.StatusCode.RESOURCE_EXHAUSTED, caller_of(context).identity
        self._audit.refuse(context, code, text, "subscription refused", identity=identity, feed=request.feed)

    def ListFeeds(  # noqa: N802
        self, request: admin_pb2.ListFeedsRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ListFeedsReply:
        """The feeds that have a channel to which the caller may subscribe."""
        reply = admin_pb2.ListFeedsReply()
        for broker in self._brokers.values():
            if granted := self._granted_extents(broker, context):
                reply.feeds.append(broker.describe(requested_extents(granted, (), broker.feed)))
        return reply


def _unicast_key(request: admin_pb2.SubscribeRequest, context: grpc.ServicerContext) -> bytes:
    key = request.unicast_client_key
    if len(key) not in (0, CURVE_KEY_SIZE):
        text = f"unicast_client_key has {len(key)} bytes, expected {CURVE_KEY_SIZE}, or none"
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
    return key
