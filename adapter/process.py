"""One adapter process put together: documents, registration, engine, services, loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client.core import Metric

from tandemfeed.adapter.conversion import CompiledConverter, load_converter
from tandemfeed.adapter.documents import ConversionFiles, claimed_conversions, conversion_files, own_conversion
from tandemfeed.adapter.feed_settings import engine_config
from tandemfeed.adapter.loop import AdapterLoop, SourceLine
from tandemfeed.adapter.mailbox import Mailbox
from tandemfeed.adapter.peers.epoch_knowledge import EpochKnowledge
from tandemfeed.adapter.peers.peer_calls import PeerCalls, ServerAddress
from tandemfeed.adapter.peers.peer_input import PeerInput
from tandemfeed.adapter.peers.services import ROLES_BY_SERVICE, AdapterSyncService
from tandemfeed.adapter.records.dead_letter_journal import DeadLetterJournal
from tandemfeed.adapter.records.last_values.keeper import LastValueKeeper
from tandemfeed.adapter.records.output_journal import OutputJournal
from tandemfeed.adapter.records.replay_service import ReplayService
from tandemfeed.adapter.reporting.client_metrics import client_metrics
from tandemfeed.adapter.reporting.fitness import Fitness
from tandemfeed.adapter.reporting.grant_inbox import GrantInbox, open_grant_notices
from tandemfeed.adapter.reporting.lifeline import Lifeline, LifelineUnavailable
from tandemfeed.adapter.reporting.orders import makes_urgent, role_event
from tandemfeed.adapter.reporting.registry import AnotherProcessRuns, Registry, own_start
from tandemfeed.adapter.reporting.report_sender import ReportSender, ReportStream
from tandemfeed.adapter.reporting.reports import Reporter
from tandemfeed.adapter.reporting.stream_keys import StreamKeys
from tandemfeed.adapter.sealed_source import SealedLine
from tandemfeed.adapter.subscribers import Subscribers
from tandemfeed.adapter.venue_source import VenueLines, VenueSource
from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.documents.message_model import load_message_model
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.replica.effects import (
    AcceptOffer,
    AdapterEffect,
    ReleaseLease,
    RenewLease,
    RequestEpoch,
    RequestHandOver,
    RequestToFail,
    ServerRequest,
)
from tandemfeed.feedcore.replica.engine import AdapterEngine
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.runtime.zeromq import Context
from tandemfeed.transport.calls.server_names import adapter_server, check_certificate, source_gateway
from tandemfeed.transport.calls.serving.authorization import Authorization
from tandemfeed.transport.calls.serving.server import RpcServer, serve
from tandemfeed.transport.calls.token_source import TokenSource
from tandemfeed.transport.calls.tokens import TokenVerifier
from tandemfeed.transport.metrics import CounterCollector, serve_metrics
from tandemfeed.transport.process_shell import Connection, StopSignal, announce_ready
from tandemfeed.transport.scheduling import call_in_background, keep_objects, tune_for_low_latency
from tandemfeed.transport.sealing.announced_starts import AnnouncedStart, announced_starts
from tandemfeed.transport.sealing.opening import Opener
from tandemfeed.transport.sealing.sealing import Sealer
from tandemfeed.transport.sealing.source_sealing import SourceOpener
from tandemfeed.v1 import admin_pb2, common_pb2, replay_pb2_grpc, sync_pb2_grpc

LOG = logging.getLogger("tandemfeed.adapter.process")


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """The command line's options.

    Attributes:
        own_files: by which to convert all channels; None: by the documents of the feed's definition.
        dead_letters: folder of the dead-letter journal; None: next to the output journal.
        venue: the source streams are a venue's own lines; None: the feed's source sends them.
        replace: replace the process that runs as this adapter.
        reflection: describe the services to administrators.
    """

    feed: str
    name: str
    own_files: ConversionFiles | None
    journal: Path
    rpc_listen: str
    tls_certificate: bytes
    tls_key: bytes = field(repr=False)
    metrics_port: int
    venue: VenueLines | None = None
    dead_letters: Path | None = None
    replace: bool = False
    reflection: bool = False

    @property
    def dead_letter_folder(self) -> Path:
        """The dead-letter journal's folder."""
        return self.dead_letters or Path(f"{self.journal.resolve()}-dead-letters")

    @property
    def document_folder(self) -> Path:
        """Where the documents that the admin server sent are written."""
        return Path(f"{self.journal.resolve()}-documents")


class AdapterProcess:
    """A running adapter."""

    def __init__(self, options: AdapterOptions, connection: Connection, stop: StopSignal) -> None:
        self._options, self._connection, self._stop = options, connection, stop
        self._verifier = TokenVerifier(adapter_server(options.feed, options.name))
        self._mailbox = Mailbox()
        self._counters = CounterSet()
        self._context = Context()
        self._heard: set[str] = set()
        self._fitness = Fitness()
        self._journal = OutputJournal(options.journal, on_failed=self._on_journal_failed)
        self._dead_letters: DeadLetterJournal | None = None
        self._last_values: LastValueKeeper | None = None
        self._sealer: Sealer | None = None
        self._private_key = Ed25519PrivateKey.generate()  # for this start only, and never stored
        self._subscribers = Subscribers()
        self._protocol = b""
        self._replaced_by = ""  # the process that replaced this one
        self._tokens = TokenSource(connection.admin, connection.ca_pem, connection.identity, connection.credential)
        self._reports = ReportSender(self._next_counters, lambda: self._subscribers.unicast_endpoint)

    def run(self) -> None:
        """Serve until the stop signal.

        Raises:
            AnotherProcessRuns: another process runs as this adapter, or has replaced this one.
        """
        options = self._options
        own = own_conversion(options.own_files)
        rpc = self._start_services()
        self._request = request = admin_pb2.RegisterRequest(
            feed=options.feed,
            adapter=options.name,
            rpc_endpoint=rpc.endpoint,
            public_key=self._private_key.public_key().public_bytes_raw(),
            replace=options.replace,
            conversions=own,
            unicast_server_key=self._subscribers.server_key,
        )
        connection = self._connection
        self._registry = Registry(
            connection.admin,
            connection.ca_pem,
            self._tokens,
            request,
            on_order=self._on_order,
            on_registered=self._on_registered,
            on_begun=self._on_stream_begun,
            on_lost=self._on_stream_lost,
            on_replaced=self._on_replaced,
            next_counters=self._next_counters,
            unicast_endpoint=lambda: self._subscribers.unicast_endpoint,
        )
        self._grant_notices = open_grant_notices(rpc.endpoint)
        self._lifeline = self._begin_lifeline()
        with ExitStack() as ending:
            self._end_in_order(ending, rpc)
            registered = self._registry.register(self._stop)
            if registered is not None:
                self._build(registered)
                self._serve(registered, rpc)
        if self._replaced_by:
            raise AnotherProcessRuns(self._replaced_by)

    def _end_in_order(self, ending: ExitStack, rpc: RpcServer) -> None:
        """Register what ends this process, the last step first. Each step is taken even if another one fails: a start
        may have failed half-way, and the disk may refuse the last flush."""
        ending.callback(self._context.close)
        ending.callback(self._subscribers.close)
        ending.callback(self._journal.close)
        ending.callback(self._close_records)
        if self._grant_notices is not None:
            ending.callback(self._grant_notices.close)
        ending.callback(rpc.stop, 0.2)
        if self._lifeline is not None:
            ending.callback(self._lifeline.close)
        ending.callback(self._registry.stop)

    def _close_records(self) -> None:
        if self._last_values is not None:
            self._last_values.close()
        if self._dead_letters is not None:
            self._dead_letters.close()

    def _begin_lifeline(self) -> Lifeline | None:
        try:
            return Lifeline(self._connection)
        except LifelineUnavailable as unavailable:
            LOG.warning("no lifeline; a kill of this process will be noticed later", extra={"why": str(unavailable)})
            return None

    def _serve(self, registered: admin_pb2.RegisterReply, rpc: RpcServer) -> None:
        serve_metrics(self._options.metrics_port, CounterCollector(self._counters, self._gauges))
        self._tokens.adopt_trust(registered, self._verifier)  # from now on calls are accepted
        self._registry.start()
        announce_ready(rpc=rpc.endpoint, adapter=self._options.name)
        tune_for_low_latency()
        try:
            if _is_served_by_another(registered):
                call_in_background(self._loop.join)
            self._loop.run()
        finally:
            self._mailbox.close()
            self._registry.stop()
            self._peers.stop()
            self._loop.close()

    def _on_journal_failed(self, reason: str) -> None:
        self._fitness.lose("output journal", f"its output journal failed: {reason}")

    def _next_counters(self) -> Mapping[int, int]:
        """Each channel's first unused packet counter. May be called from any thread."""
        return {} if self._sealer is None else self._sealer.next_counters()

    def _gauges(self) -> Iterator[Metric]:
        yield from self._reporter.gauges()
        yield from client_metrics(self._subscribers.unicast_connection_count, self._replay_service.pace)

    # ---- start-up ----

    def _start_services(self) -> RpcServer:
        """Bind before registering, because the registration carries the address. Calls are refused until registered."""
        options = self._options
        self._sync_service, self._replay_service = AdapterSyncService(self._mailbox), ReplayService(self._journal)
        check_certificate(options.tls_certificate, adapter_server(options.feed, options.name))
        interceptor = Authorization(self._verifier, ROLES_BY_SERVICE)
        return serve(
            [
                lambda server: sync_pb2_grpc.add_AdapterSyncServicer_to_server(self._sync_service, server),
                lambda server: replay_pb2_grpc.add_ReplayServicer_to_server(self._replay_service, server),
            ],
            list(ROLES_BY_SERVICE),
            options.rpc_listen,
            options.tls_certificate,
            options.tls_key,
            [interceptor],
            offers_reflection=options.reflection,
        )

    def _build(self, registered: admin_pb2.RegisterReply) -> None:
        feed = registered.feed
        session = max(feed.session, self._journal.newest_session)  # the last report may not have reached the server
        past = self._journal.resumable(feed.feed_id, session)
        # Even if the journal shows no earlier process: it may have ended before it saved a state.
        config = engine_config(registered, session=session, previous_process_ended_ns=self._journal.held_since_ns)
        files = conversion_files(registered, self._options.own_files, self._options.document_folder)
        converters = call_in_background(lambda: _load_converters(files, registered))
        self._journal.start_upkeep()  # by this thread, because the loop may begin in one with a lower priority
        self._engine = engine = AdapterEngine(config, converters, self._counters, time.monotonic_ns())
        for snapshot, runs in past:
            if snapshot.channel_id in converters:
                engine.resume_from(snapshot, runs, time.monotonic_ns())
        engine.resume_final_heartbeats(self._journal.final_heartbeats(feed.feed_id, session), time.monotonic_ns())
        own = own_start(registered)
        self._sealer = Sealer(feed.feed_id, own, self._private_key, datagram_size_max=feed.datagram_size_max)
        self._opener = Opener(feed.feed_id)
        self._opener.announce(announced_starts(registered.adapters))
        self._source_opener = SourceOpener(feed.feed_id)
        self._keys = StreamKeys(self._sealer, self._opener, self._source_opener)
        self._keys.adopt(registered)
        self._dead_letters = DeadLetterJournal(self._options.dead_letter_folder, feed.feed_id, converters)
        self._epochs = EpochKnowledge(engine, self._counters, registered.token_keys)
        self._reporter = Reporter(
            engine,
            self._counters,
            self._journal,
            self._sealer,
            converters=converters,
            dead_letters=self._dead_letters,
            fitness=self._fitness,
            has_lifeline=lambda: self._lifeline is not None and self._lifeline.check(),
            epoch_proof=lambda: self._epochs.newest,
        )
        streams = {each.channel_id: frozenset(each.source_stream_ids) for each in feed.channels}
        peer_input = PeerInput(streams, self._counters, self._mailbox.post)
        ca_pem = self._connection.ca_pem
        sources = {
            each.source_stream_id: [
                ServerAddress(endpoint, source_gateway(feed.name))
                for endpoint in each.contribution_endpoints or [feed.source_replay_endpoint]
            ]
            for each in feed.source_streams
        }
        self._peers = PeerCalls(
            engine,
            self._mailbox,
            peer_input,
            ca_pem,
            self._tokens,
            sources,
            self._fitness.on_thread_failed,
            self._epochs,
        )
        self._sync_service.serve_for(engine, feed.name, self._reporter.state, registered.sync_interval_ns)
        self._replay_service.feed = feed.name
        model = load_message_model(registered.message_model)
        self._last_values = LastValueKeeper(self._journal, feed.feed_id, converters, model)
        self._replay_service.last_values = self._last_values
        self._replay_service.topics = {each.channel_id: each.topic for each in feed.channels}
        self._subscribers.begin(registered, lambda channel_id: engine.replicas[channel_id].state)
        venue = self._venue_source(feed, files)
        lines: Sequence[SourceLine] = (
            venue.lines
            if venue is not None
            else [self._source_line(feed, stream.group) for stream in feed.source_streams]
        )
        self._loop = AdapterLoop(
            engine,
            self._counters,
            sources=lines,
            sender=self._connection.multicast.sender(self._context, datagram_size_max=feed.datagram_size_max),
            groups=dict(registered.self.groups),
            sealer=self._sealer,
            opener=self._opener,
            journal=self._journal,
            mailbox=self._mailbox,
            epochs=self._epochs,
            grants=self._grant_inbox(),
            peers=self._peers,
            stop=self._stop,
            ask_server=self._ask_server,
            on_report_due=self._report,
            report_interval_ns=registered.sync_interval_ns,
            ask_source=venue.request if venue is not None else None,
            collect_refused=self._dead_letters.collect,
            forged=self._reporter.forged,
            unicast=self._subscribers.unicast,
            idle_channels=self._subscribers.idle_channels,
        )
        self._meet(list(registered.adapters))

    def _grant_inbox(self) -> GrantInbox | None:
        notices = self._grant_notices
        if notices is None:
            return None
        return GrantInbox(notices, self._engine, self._reports.until_ns, self._epochs)

    def _source_line(self, feed: common_pb2.FeedDescription, group: str) -> SourceLine:
        heard = self._connection.multicast.receiver(self._context, group)
        return SealedLine(heard, self._source_opener, self._counters) if feed.source_is_sealed else heard

    def _venue_source(
        self, feed: common_pb2.FeedDescription, files: Mapping[int, ConversionFiles]
    ) -> VenueSource | None:
        if self._options.venue is None:
            return None
        formats = {
            stream: load_source_format(files[channel.channel_id].source_format)
            for channel in feed.channels
            for stream in channel.source_stream_ids
        }
        return VenueSource(self._context, self._connection.multicast, feed, formats, self._options.venue)

    # ---- the admin server's orders; in the registry's thread ----

    def _on_registered(self, registered: admin_pb2.RegisterReply) -> None:
        incarnation, key = registered.self.incarnation, registered.notice_key
        if self._lifeline is not None:
            self._lifeline.use_incarnation(incarnation, key)
        if self._grant_notices is not None:
            self._grant_notices.follow(self._registry.server, incarnation, key)
        protocol = registered.protocol.SerializeToString(deterministic=True)
        if self._sealer is None:
            self._protocol = protocol
            claimed = claimed_conversions(registered, list(self._request.conversions))
            del self._request.conversions[:]
            self._request.conversions.extend(claimed)
            return
        if protocol != self._protocol:
            LOG.warning("the feed's protocol settings changed; restart this adapter to apply them")
        self._tokens.adopt_trust(registered, self._verifier)
        start = own_start(registered)
        self._mailbox.post(lambda _now_ns: self._adopt(start, registered))

    def _on_replaced(self, by: str) -> None:
        self._replaced_by = by
        self._stop.set()

    def _on_stream_begun(self, stream: ReportStream) -> None:
        self._mailbox.post(lambda _now_ns: self._begin_reports(stream))

    def _on_stream_lost(self, stream: ReportStream) -> None:
        self._loop.hurry()  # backups may soon have to go on by themselves
        self._mailbox.post(lambda now_ns: self._end_reports(stream, now_ns))

    def _on_order(self, order: admin_pb2.AdapterOrder) -> None:
        post = self._mailbox.post
        if makes_urgent(order):
            self._loop.hurry()
        post(self._engine.on_admin_message)  # any order shows that the server receives our reports
        if (event := role_event(order, self._engine, self._reports, self._epochs)) is not None:
            post(event)
            return
        match order.WhichOneof("order"):
            case "replay_limited":
                self._replay_service.pace.limit(order.replay_limited.bytes_per_s)
            case "cluster_changed":
                self._tokens.adopt_trust(order.cluster_changed, self._verifier)
                post(lambda now_ns: self._on_cluster_changed(order.cluster_changed, now_ns))
            case "subscriptions_changed":
                post(lambda now_ns: self._on_subscriptions_changed(order.subscriptions_changed, now_ns))

    # ---- in the loop's thread ----

    def _report(self) -> None:
        if reason := self._fitness.reason:
            self._mailbox.post(lambda now_ns: self._engine.on_unfit(reason, now_ns))
        self._reports.send(admin_pb2.AdapterReport(state=self._reporter.state()))

    def _begin_reports(self, stream: ReportStream) -> list[AdapterEffect]:
        self._reports.begin(stream, self._engine.lease.epoch)
        return []

    def _end_reports(self, stream: ReportStream, now_ns: int) -> list[AdapterEffect]:
        self._reports.end(stream)
        return self._engine.on_admin_disconnected(now_ns)

    def _on_cluster_changed(self, changed: admin_pb2.ClusterChanged, now_ns: int) -> list[AdapterEffect]:
        self._opener.announce(announced_starts(changed.adapters))
        self._keys.adopt(changed)
        self._epochs.trust(changed.token_keys)
        self._epochs.keep(changed.epoch_proof)
        others = self._meet(list(changed.adapters))
        active = changed.active_adapter_id, changed.epoch
        return self._engine.on_cluster_changed(*active, now_ns, others, changed.session)

    def _on_subscriptions_changed(self, changed: admin_pb2.SubscriptionsChanged, now_ns: int) -> list[AdapterEffect]:
        self._subscribers.change(changed, now_ns)
        return []

    def _adopt(self, start: AnnouncedStart, registered: admin_pb2.RegisterReply) -> list[AdapterEffect]:
        assert self._sealer is not None
        self._sealer.adopt_start(start)
        self._opener.announce(announced_starts(registered.adapters))
        self._keys.adopt(registered)
        self._epochs.trust(registered.token_keys)
        return []

    def _ask_server(self, request: ServerRequest) -> None:
        """Send an engine's request to the lease store."""
        match request:
            case RenewLease(epoch):
                report = admin_pb2.AdapterReport(renew_epoch=epoch)
            case AcceptOffer(epoch):
                report = admin_pb2.AdapterReport(accepted_epoch=epoch)
            case ReleaseLease(epoch):
                report = admin_pb2.AdapterReport(released_epoch=epoch)
            case RequestEpoch(epoch):
                report = admin_pb2.AdapterReport(next_epoch_after=epoch)
            case RequestHandOver(epoch, heir, reason):
                LOG.warning("requesting a hand-over", extra={"why": reason})
                report = admin_pb2.AdapterReport(hand_over_epoch=epoch, hand_over_heir=heir)
            case RequestToFail(reason):
                LOG.warning("requesting to be failed", extra={"why": reason})
                report = admin_pb2.AdapterReport(fail_reason=reason)
        self._reports.send(report)

    def _meet(self, adapters: list[common_pb2.AdapterDescription]) -> list[int]:
        """Receive the other adapters' groups and follow the other adapters; returns their ids."""
        others = [each for each in adapters if each.adapter_id != self._engine.config.adapter_id]
        self._engine.on_starts_announced({each.adapter_id: each.incarnation for each in others})
        fresh = [group for each in others for group in each.groups.values() if group not in self._heard]
        self._heard.update(fresh)
        self._loop.receive_outputs_from([self._connection.multicast.receiver(self._context, group) for group in fresh])
        feed = self._options.feed
        self._peers.set_peers(
            {each.adapter_id: ServerAddress(each.rpc_endpoint, adapter_server(feed, each.name)) for each in others}
        )
        return [each.adapter_id for each in others]


def _is_served_by_another(registered: admin_pb2.RegisterReply) -> bool:
    """True if another adapter is active. Otherwise this one may be granted the lease at once."""
    own = registered.self.adapter_id
    return any(
        each.adapter_id != own and each.replica_state == ReplicaState.ACTIVE.value for each in registered.adapters
    )


def _load_converters(
    files: Mapping[int, ConversionFiles], registered: admin_pb2.RegisterReply
) -> dict[int, CompiledConverter]:
    """The last long step of a start; to be called in the background, because it must not delay a running stream."""
    converters = {
        channel_id: load_converter(*each, registered.message_model, registered.feed.datagram_size_max)
        for channel_id, each in files.items()
    }
    keep_objects()
    return converters
