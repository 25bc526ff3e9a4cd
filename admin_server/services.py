"""The gRPC services: each method checks the caller's rights, then calls the broker. Decides nothing else."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn, TypeVar

import grpc

from tandemfeed.admin_server.feed.broker import FeedBroker
from tandemfeed.admin_server.feed.descriptions import describe_protocol
from tandemfeed.admin_server.feed.feed_state import OperationRefused
from tandemfeed.admin_server.feed.registrations import (
    HOST_LENGTH_MAX,
    NONCE_SIZE,
    AnotherProcess,
    ProcessStart,
    ReturnAwaited,
)
from tandemfeed.admin_server.feed.streams import Attendance
from tandemfeed.admin_server.policy.limits import OpenSubscriptions
from tandemfeed.admin_server.policy.policy_keeper import PolicyKeeper
from tandemfeed.admin_server.policy.rules import Action
from tandemfeed.admin_server.records.audit import AuditLog
from tandemfeed.admin_server.records.lease_records import RecordsUnavailable
from tandemfeed.admin_server.settings import AdapterSettings
from tandemfeed.transport.calls.rpc import caller_of
from tandemfeed.transport.sealing.announced_starts import PUBLIC_KEY_SIZE
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc, common_pb2

LOG = logging.getLogger("tandemfeed.admin_server.services")
ROLES_BY_SERVICE = {
    "tandemfeed.v1.StreamAdministration": frozenset({"client", "admin"}),
    "tandemfeed.v1.AdapterRegistry": frozenset({"adapter", "source"}),
    "tandemfeed.v1.Operations": frozenset({"admin"}),
    "tandemfeed.v1.PolicyAdministration": frozenset({"admin"}),
}
PUBLIC_SERVICES = frozenset({"tandemfeed.v1.Authentication"})
OBSERVING = (Action.OBSERVE, Action.ADMINISTER)  # each lets its holder see a feed's status
Item = TypeVar("Item")


def _find(brokers: Mapping[str, FeedBroker], name: str, context: grpc.ServicerContext) -> FeedBroker:
    """The feed that an adapter or a source names. A source sees every feed, an adapter its own."""
    broker = brokers.get(name)
    if broker is None:
        caller = caller_of(context)
        seen = [known for known in brokers if "source" in caller.roles or caller.is_adapter_of(known)]
        _abort_unknown_feed(name, seen, context)
    return broker


def _abort_unknown_feed(name: str, seen: Iterable[str], context: grpc.ServicerContext) -> NoReturn:
    context.abort(grpc.StatusCode.NOT_FOUND, f"no feed {name!r}; available to you: {_listed(seen)}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _find_adapter(broker: FeedBroker, name: str, context: grpc.ServicerContext) -> AdapterSettings:
    adapter = next((adapter for adapter in broker.feed.adapters if adapter.name == name), None)
    if adapter is None:
        names = ", ".join(adapter.name for adapter in broker.feed.adapters)
        context.abort(grpc.StatusCode.NOT_FOUND, f"feed {broker.feed.name!r} has no adapter {name!r}; it has {names}")
    return adapter


@contextmanager
def _refusing(context: grpc.ServicerContext) -> Iterator[None]:
    """Report a refused operation to the caller."""
    try:
        yield
    except OperationRefused as refused:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(refused))
    except RecordsUnavailable as failed:
        context.abort(grpc.StatusCode.UNAVAILABLE, f"not done, because it could not be recorded: {failed}")


def _drain(items: queue.SimpleQueue[Item | None], on_end: Callable[[], None]) -> Iterator[Item]:
    """Yield what is put into the queue, until None or until the call ends."""
    try:
        while (item := items.get()) is not None:
            yield item
    finally:
        on_end()


class StreamAdministrationService(admin_pb2_grpc.StreamAdministrationServicer):
    """For subscribing applications. A refusal is the same for what does not exist and for what is not granted."""

    def __init__(
        self, brokers: Mapping[str, FeedBroker], policy: PolicyKeeper, audit: AuditLog, subscriber_count_max: int
    ) -> None:
        self._brokers, self._policy, self._audit = brokers, policy, audit
        self._subscriber_count_max = subscriber_count_max  # each occupies a thread while its stream is open
        self._seats = threading.BoundedSemaphore(subscriber_count_max)
        self._open, self._open_lock = OpenSubscriptions(), threading.Lock()

    def Subscribe(  # noqa: N802
        self, request: admin_pb2.SubscribeRequest, context: grpc.ServicerContext
    ) -> Iterator[admin_pb2.SubscriptionUpdate]:
        """Send the grant, then an update whenever it changes, until the client leaves or the grant is revoked."""
        identity = caller_of(context).identity
        broker, channels = self._granted(request, context)
        with self._seat(request, context):
            subscriber = broker.subscribe(identity, channels)
            context.add_callback(lambda: broker.unsubscribe(subscriber))
            broker.end_ungranted(self._policy)  # the policy may have changed before the broker knew of the subscriber
            self._audit.write("subscribed", identity=identity, feed=request.feed, channels=sorted(channels))
            is_first = True
            for _ in _drain(subscriber.updates, lambda: broker.unsubscribe(subscriber)):
                update = broker.update_for(channels, is_first=is_first)
                if subscriber.has_ended:  # checked last: keys made after a revocation must not be sent
                    return
                yield update
                is_first = False

    def _granted(
        self, request: admin_pb2.SubscribeRequest, context: grpc.ServicerContext
    ) -> tuple[FeedBroker, frozenset[int]]:
        """The feed, and the requested channels of it if all are granted; without a request, all that are."""
        broker = self._brokers.get(request.feed)
        granted = {} if broker is None else self._granted_topics(broker, context)
        if broker is None or not granted:
            seen = [name for name, each in self._brokers.items() if self._granted_topics(each, context)]
            self._refuse(request, context, f"the feed {request.feed!r}", seen)
        for topic in request.topics:
            if topic not in granted:
                what = f"the topic {topic!r} in feed {request.feed!r}"
                self._refuse(request, context, what, granted, topic=topic)
        return broker, frozenset(granted[topic] for topic in request.topics or granted)

    def _granted_topics(self, broker: FeedBroker, context: grpc.ServicerContext) -> dict[str, int]:
        """The channels that the caller may subscribe to, by topic."""
        identity = caller_of(context).identity
        return {
            channel.topic: channel.channel_id
            for channel in broker.feed.channels
            if self._policy.decide(identity, Action.SUBSCRIBE, channel.topic).is_allowed
        }

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
            f"{what} does not exist or is not granted to {identity}; available to you: {_listed(available)}",
            "subscription refused",
            identity=identity,
            feed=request.feed,
            **fields,
        )

    @contextmanager
    def _seat(self, request: admin_pb2.SubscribeRequest, context: grpc.ServicerContext) -> Iterator[None]:
        """Count a subscription while it is open, or refuse it."""
        identity = caller_of(context).identity
        known = self._policy.policy.identities.get(identity)
        limit = None if known is None else known.subscription_count_max
        with self._open_lock:
            has_begun = self._open.begin(identity, limit)
        try:
            if not has_begun:
                text = f"{identity} has {limit} subscriptions open, which is subscription_count_max in the policy"
                self._refuse_one_more(request, context, f"{text}; end one first")
            if not self._seats.acquire(blocking=False):
                text = (
                    f"{self._subscriber_count_max} subscribers are connected, which is the limit; try again later, or "
                )
                self._refuse_one_more(request, context, text + "raise --subscriber-count-max at the admin server")
            try:
                yield
            finally:
                self._seats.release()
        finally:
            if has_begun:
                with self._open_lock:
                    self._open.end(identity)

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
            if granted := self._granted_topics(broker, context):
                reply.feeds.append(broker.describe(granted.values()))
        return reply


class AdapterRegistryService(admin_pb2_grpc.AdapterRegistryServicer):
    """For feed adapters and feed sources."""

    def __init__(
        self,
        brokers: Mapping[str, FeedBroker],
        token_public_key: bytes,
        audit: AuditLog,
        last_word_key: Callable[[int], bytes],
    ) -> None:
        self._brokers, self._token_public_key, self._audit = brokers, token_public_key, audit
        self._last_word_key = last_word_key

    def Register(  # noqa: N802
        self, request: admin_pb2.RegisterRequest, context: grpc.ServicerContext
    ) -> admin_pb2.RegisterReply:
        """Register a start of an adapter, unless another process attends as that adapter."""
        broker = _find(self._brokers, request.feed, context)
        adapter = self._own_adapter(broker, context, request.adapter)
        own = self._register(broker, adapter, request, context)
        return admin_pb2.RegisterReply(
            feed=broker.describe(),
            self=own,
            adapters=broker.adapters(),
            keys=broker.key_ring.keys(channel.channel_id for channel in broker.feed.channels),
            token_public_key=self._token_public_key,
            lease_ttl_ns=broker.feed.lease_ttl_ns,
            sync_interval_ns=broker.feed.sync_interval_ns,
            message_model=broker.feed.message_model,
            protocol=describe_protocol(broker.feed),
            last_word_key=self._last_word_key(own.incarnation),
            decision_keys=broker.key_ring.decision_keys(),
            source_keys=broker.key_ring.source_keys(),
        )

    def Attend(  # noqa: N802
        self, request_iterator: Iterator[admin_pb2.AdapterReport], context: grpc.ServicerContext
    ) -> Iterator[admin_pb2.AdapterOrder]:
        """Receive reports and send orders while the adapter's process runs."""
        caller = caller_of(context)
        first = next(request_iterator, None)
        if first is None:
            return
        broker, adapter = self._registered(first.incarnation, caller.identity, context)
        attendance = broker.attend(adapter, first.incarnation, first.report_id)
        context.add_callback(lambda: broker.leave(attendance))
        broker.report(attendance, first)
        threading.Thread(
            target=self._read_reports, args=(broker, attendance, request_iterator), name="reports", daemon=True
        ).start()
        yield from _drain(attendance.orders, lambda: broker.leave(attendance))

    def Guard(  # noqa: N802
        self, request_iterator: Iterator[admin_pb2.AdapterEnded], context: grpc.ServicerContext
    ) -> admin_pb2.GuardReply:
        """Wait for the message that an adapter's process has ended."""
        context.send_initial_metadata(())
        for ended in request_iterator:
            broker, _ = self._registered(ended.incarnation, caller_of(context).identity, context)
            broker.end(ended.incarnation)
        return admin_pb2.GuardReply()

    def DescribeFeed(  # noqa: N802
        self, request: admin_pb2.DescribeFeedRequest, context: grpc.ServicerContext
    ) -> common_pb2.FeedDescription:
        """The feed's description, which contains no secrets."""
        broker = _find(self._brokers, request.feed, context)
        caller = caller_of(context)
        if "source" not in caller.roles and not caller.is_adapter_of(broker.feed.name):
            detail = f"{caller.identity} is not an adapter of feed {broker.feed.name!r}"
            self._refuse(context, broker, detail, "description refused")
        description = broker.describe()
        description.token_public_key = self._token_public_key
        return description

    def GetSourceKeys(  # noqa: N802
        self, request: admin_pb2.SourceKeysRequest, context: grpc.ServicerContext
    ) -> admin_pb2.SourceKeysReply:
        """The keys that the feed's source seals with."""
        broker = _find(self._brokers, request.feed, context)
        caller = caller_of(context)
        if "source" not in caller.roles:
            detail = f'{caller.identity} lacks the role "source", which is required for source keys'
            self._refuse(context, broker, detail, "source keys refused")
        if not broker.feed.source_is_sealed:
            detail = f"the source packets of feed {broker.feed.name!r} are not sealed (source_lines = 'open')"
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, detail)
        return admin_pb2.SourceKeysReply(keys=broker.key_ring.source_keys())

    def _refuse(self, context: grpc.ServicerContext, broker: FeedBroker, detail: str, event: str) -> None:
        identity = caller_of(context).identity
        code = grpc.StatusCode.PERMISSION_DENIED
        self._audit.refuse(context, code, detail, event, identity=identity, feed=broker.feed.name)

    def _register(
        self,
        broker: FeedBroker,
        adapter: AdapterSettings,
        request: admin_pb2.RegisterRequest,
        context: grpc.ServicerContext,
    ) -> common_pb2.AdapterDescription:
        for name, value, size in (
            ("public_key", request.public_key, PUBLIC_KEY_SIZE),
            ("process_nonce", request.process_nonce, NONCE_SIZE),
        ):
            if len(value) != size:
                context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"{name} has {len(value)} bytes, expected {size}; run one version of admin server and adapters",
                )
        process = ProcessStart(
            request.process_nonce, request.process_id, request.host[:HOST_LENGTH_MAX], context.peer()
        )
        try:
            return broker.register(adapter, request, process)
        except AnotherProcess as refused:
            self._audit.refuse(
                context,
                grpc.StatusCode.ALREADY_EXISTS,
                str(refused),
                "registration refused",
                feed=broker.feed.name,
                adapter=adapter.name,
                why=str(refused),
            )
        except ReturnAwaited as awaited:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(awaited))  # the adapter retries on this status

    @staticmethod
    def _read_reports(broker: FeedBroker, attendance: Attendance, reports: Iterator[admin_pb2.AdapterReport]) -> None:
        try:
            for report in reports:
                broker.report(attendance, report)
        except grpc.RpcError:
            pass  # the stream ended, and its callback has called leave
        finally:
            broker.leave(attendance)
            attendance.orders.put(None)

    def _own_adapter(self, broker: FeedBroker, context: grpc.ServicerContext, name: str) -> AdapterSettings:
        caller = caller_of(context)
        adapter = _find_adapter(broker, name, context)
        if adapter.identity != caller.identity or not caller.is_adapter_of(broker.feed.name):
            self._audit.refuse(
                context,
                grpc.StatusCode.PERMISSION_DENIED,
                f"{caller.identity} may not register as adapter {name!r}",
                "registration refused",
                identity=caller.identity,
                feed=broker.feed.name,
                adapter=name,
            )
        return adapter

    def _registered(
        self, incarnation: int, identity: str, context: grpc.ServicerContext
    ) -> tuple[FeedBroker, AdapterSettings]:
        for broker in self._brokers.values():
            for known in broker.adapters():
                adapter = next(a for a in broker.feed.adapters if a.adapter_id == known.adapter_id)
                if known.incarnation == incarnation and adapter.identity == identity:
                    return broker, adapter
        detail = f"incarnation {incarnation} is not registered for {identity}; register again"
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, detail)
        raise AssertionError("abort raises")


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
            _abort_unknown_feed(name, observed, context)
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
        heir = _find_adapter(broker, request.to, context) if request.to else None
        with _refusing(context):
            epoch, active = broker.operations.hand_over(heir, caller_of(context).identity)
        return admin_pb2.FailoverReply(epoch=epoch, active=active)

    def FailAdapter(  # noqa: N802
        self, request: admin_pb2.FailAdapterRequest, context: grpc.ServicerContext
    ) -> admin_pb2.FailAdapterReply:
        """Take an adapter out of its feed."""
        broker = self._administered_feed(request.feed, context)
        adapter = _find_adapter(broker, request.adapter, context)
        if not request.reason:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a reason is required; it is recorded and shown by status")
        with _refusing(context):
            broker.operations.fail(adapter, request.reason, caller_of(context).identity, is_forced=request.force)
        return admin_pb2.FailAdapterReply()

    def ReadmitAdapter(  # noqa: N802
        self, request: admin_pb2.ReadmitAdapterRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ReadmitAdapterReply:
        """Return a failed adapter to its feed."""
        broker = self._administered_feed(request.feed, context)
        adapter = _find_adapter(broker, request.adapter, context)
        with _refusing(context):
            broker.operations.readmit(adapter, caller_of(context).identity)
        return admin_pb2.ReadmitAdapterReply()
