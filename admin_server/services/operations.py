"""The service of administrators."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import grpc

from tandemfeed.admin_server.audit.log import AuditLog
from tandemfeed.admin_server.feed.broker import FeedBroker
from tandemfeed.admin_server.feed.contributions.contribution_gateways import WrongReport
from tandemfeed.admin_server.feed.members.replay_limits import BYTES_PER_S_MAX, BYTES_PER_S_MIN
from tandemfeed.admin_server.policy.policy_keeper import PolicyKeeper
from tandemfeed.admin_server.policy.rules import Action
from tandemfeed.admin_server.policy.subscription_rights import granted_extents, shown_topics
from tandemfeed.admin_server.services.shared import abort_unknown_feed, find_adapter, listed, refusing
from tandemfeed.transport.calls.serving.call_context import caller_of
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc

OBSERVING = (Action.OBSERVE, Action.ADMINISTER)  # each lets its holder see a feed's status


class OperationsService(admin_pb2_grpc.OperationsServicer):
    """For admins. To a caller, a feed that it may neither observe nor administer does not exist."""

    def __init__(
        self,
        brokers: Mapping[str, FeedBroker],
        policy: PolicyKeeper,
        audit: AuditLog,
        token_keys: Callable[[], list[admin_pb2.TokenKeyStatus]],
    ) -> None:
        self._brokers, self._policy, self._audit, self._token_keys = brokers, policy, audit, token_keys

    def _observed(self, context: grpc.ServicerContext) -> dict[str, FeedBroker]:
        """The feeds that the caller may observe or administer."""
        identity = caller_of(context).identity
        return {
            name: broker
            for name, broker in self._brokers.items()
            if any(self._policy.decide(identity, action, name).is_allowed for action in OBSERVING)
        }

    def _observed_feed(self, name: str, context: grpc.ServicerContext) -> FeedBroker:
        observed = self._observed(context)
        if name not in observed:
            abort_unknown_feed(name, observed, context)
        return observed[name]

    def _administered_feed(self, name: str, context: grpc.ServicerContext) -> FeedBroker:
        broker, identity = self._observed_feed(name, context), caller_of(context).identity
        if not self._policy.decide(identity, Action.ADMINISTER, name).is_allowed:
            code, text = grpc.StatusCode.PERMISSION_DENIED, f"{identity} may observe feed {name!r}, not administer it"
            self._audit.refuse(context, code, text, "operation refused", identity=identity, feed=name)
        return broker

    def _administered(self, context: grpc.ServicerContext) -> list[FeedBroker]:
        identity = caller_of(context).identity
        return [
            broker
            for name, broker in self._brokers.items()
            if self._policy.decide(identity, Action.ADMINISTER, name).is_allowed
        ]

    def _chosen(self, feed: str, context: grpc.ServicerContext) -> list[FeedBroker]:
        """The feed that a request names, or every feed that the caller may observe."""
        return [self._observed_feed(feed, context)] if feed else list(self._observed(context).values())

    def GetStatus(  # noqa: N802
        self, request: admin_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> admin_pb2.GetStatusReply:
        """The status of the feeds."""
        return admin_pb2.GetStatusReply(feeds=[broker.status() for broker in self._chosen(request.feed, context)])

    def Failover(  # noqa: N802
        self, request: admin_pb2.FailoverRequest, context: grpc.ServicerContext
    ) -> admin_pb2.FailoverReply:
        """Hand over to another adapter; reply when the heir holds the new epoch."""
        broker = self._administered_feed(request.feed, context)
        heir = find_adapter(broker, request.to, context) if request.to else None
        with refusing(context):
            epoch, active = broker.operations.hand_over(heir, caller_of(context).identity)
        return admin_pb2.FailoverReply(epoch=epoch, active=active)

    def FailAdapter(  # noqa: N802
        self, request: admin_pb2.FailAdapterRequest, context: grpc.ServicerContext
    ) -> admin_pb2.FailAdapterReply:
        """Take an adapter out of its feed."""
        broker = self._administered_feed(request.feed, context)
        adapter = find_adapter(broker, request.adapter, context)
        _require_reason(request.reason, context)
        with refusing(context):
            broker.operations.fail(adapter, request.reason, caller_of(context).identity, is_forced=request.force)
        return admin_pb2.FailAdapterReply()

    def ReadmitAdapter(  # noqa: N802
        self, request: admin_pb2.ReadmitAdapterRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ReadmitAdapterReply:
        """Return a failed adapter to its feed."""
        broker = self._administered_feed(request.feed, context)
        adapter = find_adapter(broker, request.adapter, context)
        with refusing(context):
            broker.operations.readmit(adapter, caller_of(context).identity)
        return admin_pb2.ReadmitAdapterReply()

    def DrainAdapter(  # noqa: N802
        self, request: admin_pb2.DrainAdapterRequest, context: grpc.ServicerContext
    ) -> admin_pb2.DrainAdapterReply:
        """Keep an adapter out of leases for planned maintenance."""
        broker = self._administered_feed(request.feed, context)
        adapter = find_adapter(broker, request.adapter, context)
        _require_reason(request.reason, context)
        with refusing(context):
            broker.operations.drain(adapter, request.reason, caller_of(context).identity, is_forced=request.force)
        return admin_pb2.DrainAdapterReply()

    def UndrainAdapter(  # noqa: N802
        self, request: admin_pb2.UndrainAdapterRequest, context: grpc.ServicerContext
    ) -> admin_pb2.UndrainAdapterReply:
        """Let a drained adapter become active again."""
        broker = self._administered_feed(request.feed, context)
        adapter = find_adapter(broker, request.adapter, context)
        with refusing(context):
            broker.operations.undrain(adapter, caller_of(context).identity)
        return admin_pb2.UndrainAdapterReply()

    def ThrottleAdapter(  # noqa: N802
        self, request: admin_pb2.ThrottleAdapterRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ThrottleAdapterReply:
        """Limit what one adapter, or every adapter of a feed, spends on replays."""
        broker, limit = self._administered_feed(request.feed, context), request.replay_bytes_per_s
        adapters = [find_adapter(broker, request.adapter, context)] if request.adapter else list(broker.feed.adapters)
        if limit and not BYTES_PER_S_MIN <= limit <= BYTES_PER_S_MAX:
            lowest, highest = BYTES_PER_S_MIN / 1e6, BYTES_PER_S_MAX / 1e6
            detail = (
                f"the limit is {limit / 1e6:g} MB/s; it must be between {lowest:g} and {highest:,.0f}, or 0 for none"
            )
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, detail)
        with refusing(context):
            broker.operations.throttle(adapters, limit, caller_of(context).identity)
        return admin_pb2.ThrottleAdapterReply(adapters=[adapter.name for adapter in adapters])

    def GrantContributions(  # noqa: N802
        self, request: admin_pb2.GrantContributionsRequest, context: grpc.ServicerContext
    ) -> admin_pb2.GrantContributionsReply:
        """Let a contribution gateway begin the next session, whatever its copy of this one lacks."""
        broker = self._administered_feed(request.feed, context)
        _require_reason(request.reason, context)
        try:
            broker.gateways.accept_loss(request.gateway, request.reason, caller_of(context).identity)
        except WrongReport as wrong:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(wrong))
        return admin_pb2.GrantContributionsReply()

    def ListClients(  # noqa: N802
        self, request: admin_pb2.ListClientsRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ListClientsReply:
        """The clients that are connected."""
        chosen = self._chosen(request.feed, context)
        return admin_pb2.ListClientsReply(clients=[client for broker in chosen for client in broker.clients()])

    def KickClient(  # noqa: N802
        self, request: admin_pb2.KickClientRequest, context: grpc.ServicerContext
    ) -> admin_pb2.KickClientReply:
        """End streams of a client, in the feeds that the caller may administer."""
        if bool(request.identity) == bool(request.client_id):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "name either an identity or the id of a client's stream")
        _require_reason(request.reason, context)
        by = caller_of(context).identity
        reply = admin_pb2.KickClientReply()
        for broker in self._administered(context):
            reply.kicked.extend(broker.kick(request.identity, request.client_id, request.reason, by))
        if not reply.kicked:
            what = f"identity {request.identity!r}" if request.identity else f"id {request.client_id}"
            detail = f"no client with {what} is connected to a feed that {by} may administer"
            context.abort(grpc.StatusCode.NOT_FOUND, detail)
        return reply

    def ListGrants(  # noqa: N802
        self, request: admin_pb2.ListGrantsRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ListGrantsReply:
        """What each identity may do now in the feeds that the caller may observe."""
        chosen = self._observed(context).values()
        names = sorted(self._policy.policy.identities)
        if request.identity:
            names = [name for name in names if name == request.identity]
            if not names:
                context.abort(grpc.StatusCode.NOT_FOUND, f"the policy has no identity {request.identity!r}")
        found = (self._grants_of(name, broker) for name in names for broker in chosen)
        return admin_pb2.ListGrantsReply(grants=[each for each in found if each is not None])

    def _grants_of(self, identity: str, broker: FeedBroker) -> admin_pb2.IdentityGrants | None:
        """What an identity may do in a feed; None if nothing."""

        def may(action: Action, topic: str) -> bool:
            return self._policy.decide(identity, action, topic).is_allowed

        feed = broker.feed
        grants = admin_pb2.IdentityGrants(
            identity=identity,
            roles=sorted(self._policy.policy.roles_of(self._policy.policy.identities[identity])),
            feed=feed.name,
            topics=shown_topics(granted_extents(self._policy, identity, feed)),
            contribute_topics=[each.topic for each in feed.contributed_channels if may(Action.CONTRIBUTE, each.topic)],
            may_observe=any(may(action, feed.name) for action in OBSERVING),
            may_administer=may(Action.ADMINISTER, feed.name),
            client_count=sum(client.identity == identity for client in broker.clients()),
        )
        has_any = grants.topics or grants.contribute_topics or grants.may_observe or grants.client_count
        return grants if has_any else None

    def ListKeys(  # noqa: N802
        self, request: admin_pb2.ListKeysRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ListKeysReply:
        """The keys' ids and times; never the keys."""
        chosen = self._chosen(request.feed, context)
        return admin_pb2.ListKeysReply(
            keys=[key for broker in chosen for key in broker.key_statuses()],
            token_keys=() if request.feed else self._token_keys(),
        )

    def RotateKeys(  # noqa: N802
        self, request: admin_pb2.RotateKeysRequest, context: grpc.ServicerContext
    ) -> admin_pb2.RotateKeysReply:
        """Replace keys now, as after a revocation."""
        broker = self._administered_feed(request.feed, context)
        topics = {channel.topic: channel.channel_id for channel in broker.feed.channels}
        if request.topic and request.topic not in topics:
            detail = f"feed {request.feed!r} has no channel {request.topic!r}; it has {listed(topics)}"
            context.abort(grpc.StatusCode.NOT_FOUND, detail)
        chosen = [topics[request.topic]] if request.topic else list(broker.key_ring.channel_ids)
        with refusing(context):
            broker.rotate_keys(chosen, caller_of(context).identity)
        return admin_pb2.RotateKeysReply(keys=[key for key in broker.key_statuses() if key.channel_id in chosen])

    def GetHistory(  # noqa: N802
        self, request: admin_pb2.GetHistoryRequest, context: grpc.ServicerContext
    ) -> admin_pb2.GetHistoryReply:
        """What happened to a feed's roles."""
        events = self._observed_feed(request.feed, context).history()
        return admin_pb2.GetHistoryReply(events=events[-request.count_max :] if request.count_max else events)


def _require_reason(reason: str, context: grpc.ServicerContext) -> None:
    if not reason:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a reason is required; it is recorded and shown by status")
