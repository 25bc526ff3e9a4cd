"""The service of feed adapters and feed sources."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing

import grpc

from tandemfeed.admin_server.audit.log import AuditLog
from tandemfeed.admin_server.feed.broker import FeedBroker
from tandemfeed.admin_server.feed.contributions.contribution_gateways import WrongReport
from tandemfeed.admin_server.feed.conversions import OtherConversion
from tandemfeed.admin_server.feed.descriptions import describe_protocol
from tandemfeed.admin_server.feed.documents import table_documents, wire_conversions
from tandemfeed.admin_server.feed.keys.key_ring import SOURCE
from tandemfeed.admin_server.feed.members.registrations import (
    ENDPOINT_LENGTH_MAX,
    HOST_LENGTH_MAX,
    NONCE_SIZE,
    REASON_LENGTH_MAX,
    AnotherProcess,
    ProcessStart,
    ReturnAwaited,
)
from tandemfeed.admin_server.feed.streams import Attendance
from tandemfeed.admin_server.records.lease_records import RecordsUnavailable
from tandemfeed.admin_server.services.shared import find_adapter, find_feed
from tandemfeed.admin_server.settings import AdapterSettings
from tandemfeed.transport.calls.serving.call_context import caller_of, in_thread, send_initial_metadata
from tandemfeed.transport.calls.serving.open_streams import OpenStreams
from tandemfeed.transport.calls.tokens import Caller
from tandemfeed.transport.sealing.announced_starts import PUBLIC_KEY_SIZE
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc, common_pb2

# Attend and Guard: two of each adapter of an identity, and as many while it connects again. A stream takes memory, even
# if nothing is ever sent on it.
OPEN_STREAMS_MAX, OPEN_STREAMS_OF_ONE_MAX = 4_096, 512


class AdapterRegistryService(admin_pb2_grpc.AdapterRegistryServicer):
    """For feed adapters and feed sources."""

    def __init__(
        self,
        brokers: Mapping[str, FeedBroker],
        token_keys: Callable[[], list[common_pb2.TokenKey]],
        audit: AuditLog,
        notice_key: Callable[[int], bytes],
        roles_of: Callable[[str], frozenset[str]],
    ) -> None:
        self._brokers, self._token_keys, self._audit = brokers, token_keys, audit
        self._roles_of = roles_of  # by the policy in force; a token states those of its time
        self._notice_key = notice_key
        self._streams = OpenStreams(OPEN_STREAMS_MAX, OPEN_STREAMS_OF_ONE_MAX)

    def Register(  # noqa: N802
        self, request: admin_pb2.RegisterRequest, context: grpc.ServicerContext
    ) -> admin_pb2.RegisterReply:
        """Register a start of an adapter, unless another process attends as that adapter."""
        broker = find_feed(self._brokers, request.feed, context)
        adapter = self._own_adapter(broker, context, request.adapter)
        own = self._register(broker, adapter, request, context)
        reply = self._registered_as(own, broker, adapter)
        if "adapter" not in self._roles_of(adapter.identity):  # again, after the keys were read (`_source_keys`)
            text = f"{adapter.identity} is disabled, or no longer in the policy"
            self._refuse(context, broker, text, "registration refused")
        return reply

    def _registered_as(
        self, own: common_pb2.AdapterDescription, broker: FeedBroker, adapter: AdapterSettings
    ) -> admin_pb2.RegisterReply:
        return admin_pb2.RegisterReply(
            feed=broker.describe(),
            self=own,
            adapters=broker.adapters(),
            keys=broker.key_ring.keys(channel.channel_id for channel in broker.feed.channels),
            token_keys=self._token_keys(),
            lease_ttl_ns=broker.feed.lease_ttl_ns,
            sync_interval_ns=broker.feed.sync_interval_ns,
            message_model=broker.feed.message_model.content,
            conversions=wire_conversions(broker.feed),
            documents=table_documents(broker.feed),
            protocol=describe_protocol(broker.feed),
            notice_key=self._notice_key(own.incarnation),
            decision_keys=broker.key_ring.decision_keys(),
            source_keys=broker.key_ring.source_keys(),
            ended_source_starts=broker.gateways.ended_starts(),
            revoked_tokens=broker.rights.revoked.messages(),
            unicast_listen=adapter.unicast or "",
            start_proof=broker.start_proof(adapter, own.incarnation),
        )

    async def Attend(  # noqa: N802
        self, requests: AsyncIterator[admin_pb2.AdapterReport], context: grpc.ServicerContext
    ) -> AsyncIterator[admin_pb2.AdapterOrder]:
        """Receive reports and send orders while the adapter's process runs."""
        with self._streams.one_more(caller_of(context).identity, context):
            async with aclosing(self._attend(requests, context)) as orders:
                async for order in orders:
                    yield order

    async def _attend(
        self, requests: AsyncIterator[admin_pb2.AdapterReport], context: grpc.ServicerContext
    ) -> AsyncGenerator[admin_pb2.AdapterOrder, None]:
        first = await anext(requests, None)
        if first is None:
            return
        broker, adapter = self._registered(first.incarnation, caller_of(context).identity, context)
        attendance = await in_thread(context, broker.attend, adapter, first.incarnation, first.report_id)
        try:
            await self._take(broker, attendance, first, context)
            reading = asyncio.create_task(self._read_reports(broker, attendance, requests, context))
            async for order in attendance.orders.drain():
                yield order
            if reading.done():
                await reading  # raises why it ended, if it failed
        finally:
            await in_thread(context, broker.leave, attendance)

    async def Guard(  # noqa: N802
        self, requests: AsyncIterator[admin_pb2.AdapterEnded], context: grpc.ServicerContext
    ) -> admin_pb2.GuardReply:
        """Wait for the message that an adapter's process has ended."""
        with self._streams.one_more(caller_of(context).identity, context):
            await send_initial_metadata(context)
            async for ended in requests:
                broker, _ = self._registered(ended.incarnation, caller_of(context).identity, context)
                finish = broker.end(ended.incarnation)
                await in_thread(context, finish)
        return admin_pb2.GuardReply()

    def DescribeFeed(  # noqa: N802
        self, request: admin_pb2.DescribeFeedRequest, context: grpc.ServicerContext
    ) -> common_pb2.FeedDescription:
        """The feed's description, which contains no secrets."""
        broker = find_feed(self._brokers, request.feed, context)
        description = broker.describe()
        description.token_keys.extend(self._token_keys())
        return description

    def GetSourceKeys(  # noqa: N802
        self, request: admin_pb2.SourceKeysRequest, context: grpc.ServicerContext
    ) -> admin_pb2.SourceKeysReply:
        """The keys that the feed's source seals with."""
        broker = find_feed(self._brokers, request.feed, context)
        caller = caller_of(context)
        if not self._is_source(broker, caller):
            detail = f"{caller.identity} is not the source of feed {broker.feed.name!r}"
            self._refuse(context, broker, detail, "source keys refused")
        if not broker.feed.source_is_sealed:
            detail = f"the source packets of feed {broker.feed.name!r} are not sealed (source_lines = 'open')"
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, detail)
        keys = self._source_keys(broker, caller)
        if not keys:
            self._refuse(
                context, broker, f"{caller.identity} has just lost the right to the keys", "source keys refused"
            )
        return admin_pb2.SourceKeysReply(keys=keys)

    def ReportSource(  # noqa: N802
        self, request: admin_pb2.SourceReport, context: grpc.ServicerContext
    ) -> admin_pb2.SourceReported:
        """Keep what a process of the feed's source reports about itself."""
        broker = find_feed(self._brokers, request.feed, context)
        caller = caller_of(context)
        if "source" not in caller.roles & self._roles_of(caller.identity):
            detail = f'{caller.identity} lacks the role "source", which is required to report as one'
            self._refuse(context, broker, detail, "source report refused")
        known = {stream.source_stream_id for stream in broker.feed.source_streams}
        if len(request.process_nonce) != NONCE_SIZE or not known.issuperset(request.next_source_seqs):
            detail = f"process_nonce must have {NONCE_SIZE} bytes, and next_source_seqs only the feed's source streams"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, detail)
        request.host = request.host[:HOST_LENGTH_MAX]
        request.waiting_reason = request.waiting_reason[:REASON_LENGTH_MAX]
        broker.report_source(caller.identity, request, is_feeds_own=self._is_source(broker, caller))
        reported = admin_pb2.SourceReported(
            token_keys=self._token_keys(),
            revoked_tokens=broker.rights.revoked.messages(),
            feed_session=broker.session,
        )
        if request.HasField("gateway") and self._is_source(broker, caller):
            self._assign(broker, request, reported, context)
        if broker.feed.source_is_sealed and self._is_source(broker, caller):
            reported.source_keys.extend(self._source_keys(broker, caller))
        return reported

    def _is_source(self, broker: FeedBroker, caller: Caller) -> bool:
        """Whether the caller is a source of the feed, by its token and by the policy in force."""
        return broker.feed.has_source(caller.identity, caller.roles & self._roles_of(caller.identity))

    def _source_keys(self, broker: FeedBroker, caller: Caller) -> list[common_pb2.StreamKey]:
        """The source's keys; none if the caller has lost the right to them meanwhile.

        The policy is asked again after they were read: it changes before keys are replaced, so keys that were made
        after a revocation are seen together with it.
        """
        broker.rights.note(caller.identity, (SOURCE,))
        keys = broker.key_ring.source_keys()
        return keys if self._is_source(broker, caller) else []

    @staticmethod
    def _assign(
        broker: FeedBroker,
        request: admin_pb2.SourceReport,
        reported: admin_pb2.SourceReported,
        context: grpc.ServicerContext,
    ) -> None:
        """Answer which part a contribution gateway has."""
        try:
            reported.gateway.CopyFrom(broker.gateways.report(request))
        except WrongReport as wrong:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(wrong))
        except RecordsUnavailable as away:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(away))

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
        endpoints = {"rpc_endpoint": request.rpc_endpoint, "unicast_endpoint": request.unicast_endpoint}
        for name, endpoint in endpoints.items():
            if len(endpoint) > ENDPOINT_LENGTH_MAX:
                text = f"{name} has {len(endpoint)} characters; at most {ENDPOINT_LENGTH_MAX} are allowed"
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
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
        except OtherConversion as refused:
            self._audit.refuse(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                str(refused),
                "registration refused",
                feed=broker.feed.name,
                adapter=adapter.name,
                why=str(refused),
            )
        except ReturnAwaited as awaited:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(awaited))  # the adapter retries on this status

    async def _read_reports(
        self,
        broker: FeedBroker,
        attendance: Attendance,
        reports: AsyncIterator[admin_pb2.AdapterReport],
        context: grpc.ServicerContext,
    ) -> None:
        try:
            async for report in reports:
                await self._take(broker, attendance, report, context)
        finally:
            attendance.end()

    @staticmethod
    async def _take(
        broker: FeedBroker, attendance: Attendance, report: admin_pb2.AdapterReport, context: grpc.ServicerContext
    ) -> None:
        """Process a report: on the loop, unless something must be recorded first."""
        if report.fail_reason:
            await in_thread(context, broker.report, attendance, report)
        else:
            broker.report(attendance, report)

    def _own_adapter(self, broker: FeedBroker, context: grpc.ServicerContext, name: str) -> AdapterSettings:
        caller = caller_of(context)
        adapter = find_adapter(broker, name, context)
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
