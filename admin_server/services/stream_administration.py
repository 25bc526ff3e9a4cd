"""The service of subscribing applications."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from functools import partial

import grpc

from tandemfeed.admin_server.audit.log import AuditLog
from tandemfeed.admin_server.audit.recorded_grants import Asked, RecordedGrants
from tandemfeed.admin_server.feed.broker import FeedBroker
from tandemfeed.admin_server.feed.documents import documents_of, wire_document
from tandemfeed.admin_server.policy.limits import OpenSubscriptions
from tandemfeed.admin_server.policy.policy_gate import PolicyGate
from tandemfeed.admin_server.policy.policy_keeper import PolicyKeeper
from tandemfeed.admin_server.policy.rules import Action, Extent
from tandemfeed.admin_server.policy.subscription_rights import granted_extents, requested_extents
from tandemfeed.admin_server.subscriptions.client_call import ClientCall
from tandemfeed.admin_server.subscriptions.client_session import ClientSession, Outgoing
from tandemfeed.transport.calls.serving.call_context import caller_of, in_thread
from tandemfeed.transport.calls.tokens import TokenVerifier
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc


class StreamAdministrationService(admin_pb2_grpc.StreamAdministrationServicer):
    """For subscribing applications. A refusal is the same for what does not exist and for what is not granted.

    Args:
        gate: limits the rate of requests, as it does that of calls.
        verifier: checks the tokens with which calls are renewed.
        client_count_max: the limit of open calls.
    """

    def __init__(
        self,
        brokers: Mapping[str, FeedBroker],
        policy: PolicyKeeper,
        gate: PolicyGate,
        audit: AuditLog,
        verifier: TokenVerifier,
        client_count_max: int,
    ) -> None:
        self._brokers, self._policy, self._gate = brokers, policy, gate
        self._audit, self._verifier = audit, verifier
        self._client_count_max, self._client_count = client_count_max, 0  # as the subscriptions, only on the loop
        self._open = OpenSubscriptions()
        self._contributions = RecordedGrants()

    async def Subscribe(  # noqa: N802
        self, requests: AsyncIterator[admin_pb2.SubscriptionRequest], context: grpc.ServicerContext
    ) -> AsyncIterator[admin_pb2.SubscriptionUpdate]:
        """Serve one client's subscriptions."""
        caller = caller_of(context)
        if self._client_count >= self._client_count_max:
            await in_thread(context, self._refuse_one_more, context)
        self._client_count += 1
        try:
            session = ClientSession(
                caller,
                self._brokers,
                partial(self._policy.extent, caller.identity),
                self._open,
                partial(self._subscription_count_max, caller.identity),
                self._verifier.verify,
            )
            call = ClientCall(session, context, partial(self._record, context), self._gate)
            async with aclosing(call.updates(requests)) as updates:
                async for update in updates:
                    yield update
        finally:
            self._client_count -= 1

    def ListFeeds(  # noqa: N802
        self, request: admin_pb2.ListFeedsRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ListFeedsReply:
        """The feeds that have a channel to which the caller may subscribe."""
        reply = admin_pb2.ListFeedsReply()
        for broker in self._brokers.values():
            if granted := self._granted(broker, context):
                reply.feeds.append(broker.describe(requested_extents(granted, (), broker.feed)))
        return reply

    def GetDocument(  # noqa: N802
        self, request: admin_pb2.GetDocumentRequest, context: grpc.ServicerContext
    ) -> admin_pb2.Document:
        """A document of the channels to which the caller may subscribe."""
        broker, found = self._brokers.get(request.feed), None
        if broker is not None and (granted := self._granted(broker, context)):
            channels = [each for each in broker.feed.channels if each.topic in granted]
            found = documents_of(broker.feed, channels).get((request.id, request.version))
        if found is None:
            identity = caller_of(context).identity
            self._audit.refuse(
                context,
                grpc.StatusCode.NOT_FOUND,
                f"the document {request.id!r} of version {request.version!r} in feed {request.feed!r} does not exist "
                f"or is not granted to {identity}; grants name the documents and their present versions",
                "document refused",
                identity=identity,
                feed=request.feed,
                document=request.id,
            )
        return wire_document(found)

    def FindContributionGateway(  # noqa: N802
        self, request: admin_pb2.FindContributionGatewayRequest, context: grpc.ServicerContext
    ) -> admin_pb2.FindContributionGatewayReply:
        """Where the caller may contribute to a topic, and what its messages must fit."""
        caller, topic = caller_of(context), request.topic
        identity = caller.identity
        decision = self._policy.decide(identity, Action.CONTRIBUTE, topic)
        places = ((each.feed, channel) for each in self._brokers.values() for channel in each.feed.contributed_channels)
        feed, channel = next((place for place in places if place[1].topic == topic), (None, None))
        if decision.rule is None or feed is None or channel is None:
            self._audit.refuse(
                context,
                grpc.StatusCode.PERMISSION_DENIED,
                f"topic {topic!r} takes no contributions or is not granted to {identity}",
                "contribution refused",
                identity=identity,
                topic=topic,
            )
        table = feed.table_of(channel)
        assert table is not None, "the settings of a channel that takes contributions name a table"
        rule, endpoint = decision.rule.name, self._brokers[feed.name].gateways.endpoint
        asked, grant = Asked(identity, caller.issued_unix_ns, topic), (feed.name, rule, endpoint)
        if not self._contributions.has(asked, grant):  # a contributor asks again whenever a call fails
            fields = {"feed": feed.name, "topic": topic, "rules": [rule], "gateway": endpoint}
            self._audit.write("contribution granted", identity=identity, **fields)
            self._contributions.note(asked, grant)
        return admin_pb2.FindContributionGatewayReply(
            feed=feed.name, endpoint=endpoint, source_format=wire_document(table.source_format)
        )

    def _granted(self, broker: FeedBroker, context: grpc.ServicerContext) -> dict[str, Extent]:
        """What the caller may receive of each channel, by topic."""
        return granted_extents(self._policy, caller_of(context).identity, broker.feed)

    def _subscription_count_max(self, identity: str) -> int | None:
        known = self._policy.policy.identities.get(identity)
        return None if known is None else known.subscription_count_max

    async def _record(self, context: grpc.ServicerContext, outgoing: Outgoing) -> None:
        """What is granted is on record before it is sent."""
        await in_thread(context, self._write, context.peer(), caller_of(context).identity, outgoing)

    def _write(self, peer: str, identity: str, outgoing: Outgoing) -> None:
        fields, grant = outgoing.fields, outgoing.update.grant
        if outgoing.refused is not None:
            refused = outgoing.refused
            known = {"identity": identity, **refused.fields}
            self._audit.note_refusal(peer, refused.code, str(refused), outgoing.event, **known)
            return
        if grant.channels:
            broker = self._brokers[grant.feed.name]
            decisions = [self._policy.decide(identity, Action.SUBSCRIBE, each.topic) for each in grant.channels]
            fields = fields | {"rules": sorted({each.rule.name for each in decisions if each.rule is not None})}
            broker.rights.note(identity, [each.channel_id for each in grant.channels])
            if not all(self._policy.extent(identity, each.topic) for each in grant.channels):
                broker.end_lost_rights(self._policy)  # what was lost since the update was made, and now is noted
        self._audit.write(outgoing.event, **fields, peer=peer)

    def _refuse_one_more(self, context: grpc.ServicerContext) -> None:
        self._audit.refuse(
            context,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"{self._client_count_max} clients are connected, which is the limit; try again later, or raise "
            f"--subscriber-count-max at the admin server",
            "client refused",
            identity=caller_of(context).identity,
        )
