"""The service of administrators."""

from __future__ import annotations

from collections.abc import Mapping

import grpc

from tandemfeed.admin_server.feed.broker import FeedBroker
from tandemfeed.admin_server.policy.policy_keeper import PolicyKeeper
from tandemfeed.admin_server.policy.rules import Action
from tandemfeed.admin_server.records.audit import AuditLog
from tandemfeed.admin_server.services.shared import abort_unknown_feed, find_adapter, refusing
from tandemfeed.transport.calls.serving.call_context import caller_of
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc

OBSERVING = (Action.OBSERVE, Action.ADMINISTER)  # each lets its holder see a feed's status


class OperationsService(admin_pb2_grpc.OperationsServicer):
    """For admins. To a caller, a feed that it may neither observe nor administer does not exist."""

    def __init__(self, brokers: Mapping[str, FeedBroker], policy: PolicyKeeper, audit: AuditLog) -> None:
        self._brokers, self._policy, self._audit = brokers, policy, audit

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

    def GetStatus(  # noqa: N802
        self, request: admin_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> admin_pb2.GetStatusReply:
        """The status of the feeds."""
        observed = self._observed(context).values()
        chosen = [self._observed_feed(request.feed, context)] if request.feed else list(observed)
        return admin_pb2.GetStatusReply(feeds=[broker.status() for broker in chosen])

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
        if not request.reason:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a reason is required; it is recorded and shown by status")
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
