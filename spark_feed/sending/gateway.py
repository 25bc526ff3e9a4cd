"""The source gateway: sends the packets of source journals at a set pace and serves those that adapters missed.

The shell around `spark_feed.sending.send_core`, which says what to send, and `sessions.order`, which says when the next
session begins: it performs effects, and waits for the next deadline or the stop signal. It outlives the Spark driver.
After a crash it resumes at its durable position; a few packets may go out twice, with the same numbers. Never: numbers,
packs or drops a packet, unless asked to.
"""

from __future__ import annotations

import logging
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tandemfeed.feedcore.pause_free_clock import PauseFreeClock
from tandemfeed.journal import JournalError
from tandemfeed.runtime.zeromq import Context
from tandemfeed.spark_feed.journaling.records import SourceJournalError
from tandemfeed.spark_feed.sending.faults import NO_FAULTS, FaultPlan
from tandemfeed.spark_feed.sending.faulty_sender import FaultySender
from tandemfeed.spark_feed.sending.fill_service import (
    CALLER_ROLES,
    SERVICE_NAME,
    PreviousSession,
    SourceReplayService,
)
from tandemfeed.spark_feed.sending.pacing import Pacer
from tandemfeed.spark_feed.sending.publication import Clock, since_boot_ns
from tandemfeed.spark_feed.sending.send_core import AllSent, SendCore, SendEffect, SendPacket, stamped
from tandemfeed.spark_feed.sending.sent_index import SentPacket
from tandemfeed.spark_feed.sending.sessions.journals import JournalPlan, SessionJournals
from tandemfeed.spark_feed.sending.sessions.order import BeginSession, SessionOrder
from tandemfeed.spark_feed.sending.sessions.sent_session import (
    GatewayError,
    SentSession,
    own_stream_ids,
    position_name,
    read_previous,
)
from tandemfeed.spark_feed.sending.source_reports import Progress
from tandemfeed.transport.calls.admin_servers import AdminServers, ask_active
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.server_names import ADMIN_SERVER, check_certificate, source_gateway
from tandemfeed.transport.calls.serving.authorization import Authorization
from tandemfeed.transport.calls.serving.server import RpcServer, serve
from tandemfeed.transport.calls.token_source import TokenSource
from tandemfeed.transport.calls.tokens import TokenVerifier
from tandemfeed.transport.multicast.sockets import Multicast
from tandemfeed.transport.process_shell import Connection, StopSignal, announce, announce_ready
from tandemfeed.transport.scheduling import tune_for_low_latency
from tandemfeed.transport.sealing.source_sealing import SourceSealer
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc, common_pb2, replay_pb2_grpc

LOG = logging.getLogger(__name__)
JOURNAL_POLL_NS = 1_000_000  # how often to look for new records when there are none
LOOK_INTERVAL_NS = 100_000_000  # how often to look for the next session's journal once the present one is sent
LOOK_EARLY_INTERVAL_NS = 1_000_000_000  # the same while the present one only waits for records
PAUSE_NS = 1_000_000_000  # a gateway that does not turn for longer was paused: nothing waited for it meanwhile
STORE_POSITION_NS = 10_000_000  # after a crash at most this much is sent twice
DESCRIBE_TIMEOUT_S = 20.0
ALL_INTERFACES = {"0.0.0.0", "::"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """Options of one run.

    Attributes:
        journal: the source journal of one session; None: `journals` has them.
        journals: a folder with a source journal for each session; the gateway sends one after another.
        wait_for_start: send no packets until the line "start" arrives on standard input.
        session: the session to send, or with `journals` to begin with; 0: the session of the journal, or of the feed if
            the journal is still empty; with `journals` the earliest that is not over.
        former_journal: journal of the session before `journal`, from which adapters fill gaps in that session.
        clock: measures the age of data for a delayed feed.
        group: with which a journal's folder that does not exist yet is shared; None: as its parent.
        clock_ns: monotonic time.
        reflection: describe the services to administrators.
        faults: to make on purpose, so that consumers can be tested.
    """

    feed: str
    journal: Path | None = None
    journals: Path | None = None
    rpc_listen: str
    tls_certificate: bytes
    tls_key: bytes = field(repr=False)
    wait_for_start: bool = False
    session: int = 0
    former_journal: Path | None = None
    clock: Clock = since_boot_ns
    group: str | None = None
    clock_ns: Callable[[], int] = time.monotonic_ns
    reflection: bool = False
    faults: FaultPlan = NO_FAULTS
    fault_seed: int = 1


def describe_feed(connection: Connection, feed: str) -> common_pb2.FeedDescription:
    """Ask the admin server for the feed's description.

    Raises:
        AuthenticationRefused, grpc.RpcError.
    """
    servers = AdminServers(connection.admin)
    tokens = TokenSource(servers, connection.ca_pem, connection.identity, connection.credential)

    def ask(address: str, timeout_s: float) -> common_pb2.FeedDescription:
        with open_channel(address, connection.ca_pem, ADMIN_SERVER, tokens) as channel:
            stub = admin_pb2_grpc.AdapterRegistryStub(channel)
            request = admin_pb2.DescribeFeedRequest(feed=feed)
            return stub.DescribeFeed(request, timeout=timeout_s, wait_for_ready=not servers.are_several)

    return ask_active(servers, ask, DESCRIBE_TIMEOUT_S)


def listen_address(asked: str | None, description: common_pb2.FeedDescription, endpoint: str = "") -> str:
    """Where to serve gap fills: the address at which the feed's adapters ask for them.

    Args:
        asked: --rpc-listen; it may name all interfaces, as 0.0.0.0.
        endpoint: that of the cluster file; "": the feed's source_replay_endpoint.

    Raises:
        GatewayError: adapters would ask at another address.
    """
    key = "contributions" if endpoint else "source_replay_endpoint"
    endpoint = endpoint or description.source_replay_endpoint
    if asked is None or asked == endpoint:
        return endpoint
    host, _, port = asked.rpartition(":")
    expected_host, _, expected_port = endpoint.rpartition(":")
    hosts, expected_hosts = _addresses_of(host), _addresses_of(expected_host)
    if port != expected_port or not (hosts & (expected_hosts | ALL_INTERFACES)):
        raise GatewayError(
            f"--rpc-listen is {asked}, but adapters of feed {description.name} request gap fills at {endpoint}, its "
            f"{key} in the cluster file; leave the option out, or correct the cluster file"
        )
    return asked


def _addresses_of(host: str) -> set[str]:
    try:
        return {str(place[4][0]) for place in socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)}
    except socket.gaierror:
        return {host}


class SourceGateway:
    """A gateway. `run` closes it when it returns.

    Args:
        make_pacer: makes the schedule of a session.
        sealer: seals every packet; None if the feed does not seal its source packets.

    Raises:
        GatewayError, SourceJournalError, JournalError: the journal is not the feed's, or cannot be read.
        OSError: the RPC address cannot be bound, or another gateway sends from the journal.
    """

    def __init__(
        self,
        options: GatewayOptions,
        description: common_pb2.FeedDescription,
        multicast: Multicast,
        make_pacer: Callable[[], Pacer],
        sealer: SourceSealer | None = None,
    ) -> None:
        self._options, self._sealer, self._clock_ns = options, sealer, options.clock_ns
        self._running = PauseFreeClock(self._clock_ns(), pause_ns=PAUSE_NS, moment_ns=0)
        self._description, self._make_pacer = description, make_pacer
        stream_ids = own_stream_ids(description)
        if not stream_ids:
            raise GatewayError(f"all of feed {description.name} is contributed; run tandemfeed contribution-gateway")
        groups = {stream.source_stream_id: stream.group.encode() for stream in description.source_streams}
        self._groups = {stream_id: groups[stream_id] for stream_id in stream_ids}
        self._feed_session = description.session
        self._is_started = False
        self._present: SentSession | None = None
        self._stored_at_ns = self._look_at_ns = 0
        self._opened = ExitStack()
        self.replay = SourceReplayService(stream_ids, description.name)
        self._order: SessionOrder | None = None
        if options.journals is not None:
            self._order = SessionOrder(options.session)
            numbered_as = description.delayed_from or description.name
            name = position_name(description)
            self._journals = SessionJournals(options.journals, numbered_as, stream_ids, name)
        else:
            self._begin_only_session()
        self._context = Context()
        sender = multicast.sender(self._context, datagram_size_max=description.datagram_size_max or 1_472)
        self._sender = FaultySender(sender, options.faults, options.fault_seed) if options.faults else sender
        self._verifier = TokenVerifier(source_gateway(options.feed), description.token_keys)
        self._rpc = self._serve()
        self.packet_count = self.heartbeat_count = 0

    @property
    def core(self) -> SendCore:
        """Of the present session."""
        assert self._present is not None, "no session has begun"
        return self._present.core

    @property
    def session(self) -> int:
        """The present session; 0: none has begun."""
        return 0 if self._present is None else self._present.session

    @property
    def has_sent_all(self) -> bool:
        """True once the present session has been sent to its end."""
        return self._present is not None and self._present.core.all_sent

    @property
    def endpoint(self) -> str:
        """The address that serves SourceReplay."""
        return self._rpc.endpoint

    @property
    def verifier(self) -> TokenVerifier:
        """Knows which tokens the replay service accepts."""
        return self._verifier

    def describe(self, report: admin_pb2.SourceReport) -> Progress:
        """Fill in what this gateway has sent. For any thread."""
        present = self._present
        if self._order is not None and (present is None or present.core.is_starved or present.core.all_sent):
            report.waiting_reason = self._order.waiting_reason
        if present is None:
            return Progress(self.packet_count)
        report.session, report.has_sent_all = present.session, present.core.all_sent
        report.next_source_seqs.update(present.core.next_source_seqs)
        return Progress(self.packet_count, present.core.position, present.journal)

    def on_answer(self, answer: admin_pb2.SourceReported) -> None:
        """The admin server's answer to the last report. For any thread."""
        self._feed_session = max(self._feed_session, answer.feed_session)

    def run(self, stop: StopSignal) -> None:
        """Send until stopped.

        Raises:
            GatewayError, SourceJournalError, JournalError, OSError: as when it is made, for the first session.
        """
        watched: list[Any] = [stop]
        if self._options.wait_for_start:
            watched.append(sys.stdin)
        else:
            self.start()
        announce_ready(rpc=self.endpoint)
        tune_for_low_latency()
        try:
            while not stop.is_set:
                self._turn()
                ready = select.select(watched, [], [], self._wait_s())[0]
                if sys.stdin in ready and sys.stdin.readline().strip() in ("start", ""):  # end of input also starts
                    self.start()
                    watched.remove(sys.stdin)
        finally:
            self.close()

    def start(self) -> None:
        """Send packets from now on; until then only heartbeats are sent."""
        self._is_started = True
        if self._present is not None:
            self._present.core.start()

    def close(self) -> None:
        """Store the position, and release everything."""
        self._rpc.stop()
        self._sender.close()
        self._context.close()
        if self._present is not None:
            self._present.close()
        self._opened.close()

    def _turn(self) -> None:
        present = self._present
        running_ns = self._running.look(self._clock_ns())
        if present is not None:
            present.read()
            now_ns = self._clock_ns()
            for effect in present.core.on_time(now_ns):
                self._perform(effect, present)
            if now_ns - self._stored_at_ns >= STORE_POSITION_NS:
                self._stored_at_ns = now_ns
                present.store_position()
            if not (present.core.is_starved or present.core.all_sent):
                return
        if self._order is not None and (now_ns := self._clock_ns()) >= self._look_at_ns:
            self._look(self._order, now_ns, running_ns)

    def _perform(self, effect: SendEffect, present: SentSession) -> None:
        if isinstance(effect, AllSent):
            per_stream = {str(stream_id): count for stream_id, count in effect.message_counts.items()}
            messages = sum(effect.message_counts.values())
            announce("sent", session=present.session, messages=messages, per_stream=per_stream)
            self._look_at_ns = 0
            return
        sent_at_ns = time.time_ns()
        datagram = stamped(effect.datagram, sent_at_ns)
        if self._sealer is not None:
            datagram = self._sealer.seal(datagram)
        self._sender.send(self._groups[effect.source_stream_id], datagram)
        if isinstance(effect, SendPacket):
            self.packet_count += 1
            packet = SentPacket(effect.first_source_seq, effect.datagram, sent_at_ns)
            present.index.add(effect.source_stream_id, packet, effect.message_count, effect.journal_index)
        else:
            self.heartbeat_count += 1

    def _wait_s(self) -> float:
        now_ns = self._clock_ns()
        if self._present is None:
            return max(self._look_at_ns - now_ns, 0) / 1e9
        core = self._present.core
        deadline_ns = core.next_deadline_ns(now_ns)
        if core.is_starved:
            deadline_ns = min(deadline_ns, now_ns + JOURNAL_POLL_NS)
        return max(deadline_ns - now_ns, 0) / 1e9

    # ---- sessions ----

    def _begin_only_session(self) -> None:
        """Take the session of `--journal`."""
        options, description = self._options, self._description
        assert options.journal is not None
        plan = JournalPlan.read(options.journal)
        session = options.session or (description.session if plan is None else plan.session)
        if session < description.session:
            LOG.warning(
                "the feed has moved on to a later session; sending this one only for adapters that missed parts of it",
                extra={"session": session, "feed_is_in": description.session},
            )
        self._begin(BeginSession(session, options.journal, options.former_journal))

    def _look(self, order: SessionOrder, now_ns: int, running_ns: int) -> None:
        """Look for journals of other sessions, and begin the next one if it is due.

        Args:
            running_ns: a time that stands still while this process is paused, by which others are given time.
        """
        is_complete = self.has_sent_all
        self._look_at_ns = now_ns + (LOOK_INTERVAL_NS if is_complete or not self.session else LOOK_EARLY_INTERVAL_NS)
        found, warned_of = self._journals.look(), order.waiting_reason
        if self._present is not None:
            for each in order.new_too_late(found, self._present.journal):
                LOG.warning("%s contains session %d, which is over; it is not sent", each.journal, each.session)
        outcome = order.on_look(
            found,
            feed_session=self._feed_session,
            is_complete=is_complete,
            position=0 if self._present is None else self._present.core.position,
            now_ns=running_ns,
        )
        self._warn_once(order.waiting_reason, warned_of)
        if isinstance(outcome, BeginSession):
            try:
                self._begin(outcome)
            except (GatewayError, SourceJournalError, JournalError, OSError) as failed:
                if self._present is None:
                    raise
                order.waiting_reason = f"session {outcome.session} waits, because it cannot begin: {failed}"
                self._warn_once(order.waiting_reason, warned_of)
                self._look_at_ns = now_ns + LOOK_EARLY_INTERVAL_NS
                return
            order.begun(outcome.session)
            LOG.info("the session has begun", extra={"session": outcome.session, "journal": str(outcome.journal)})
            announce("session", session=outcome.session, journal=str(outcome.journal))

    @staticmethod
    def _warn_once(reason: str, warned_of: str) -> None:
        if reason and reason != warned_of:
            LOG.warning("%s", reason)

    def _begin(self, begin: BeginSession) -> None:
        """Replace the present session. If this raises, the present one stays."""
        description, clock, before = self._description, self._options.clock, self._present
        group = self._options.group
        next_session = SentSession(begin.journal, begin.session, description, self._make_pacer(), clock, group)
        try:
            previous: PreviousSession | None = None
            if before is not None:
                previous = before.as_previous()
            elif begin.former is not None:
                previous = read_previous(begin.former, begin.session, description, clock, self._opened)
        except BaseException:
            next_session.close()
            raise
        if self._is_started:
            next_session.core.start()
        self.replay.begin_session(next_session.session, next_session.index, next_session.reader, previous)
        self._present = next_session
        if before is not None:
            before.close()

    def _serve(self) -> RpcServer:
        server_name = source_gateway(self._options.feed)
        check_certificate(self._options.tls_certificate, server_name)
        return serve(
            [lambda server: replay_pb2_grpc.add_SourceReplayServicer_to_server(self.replay, server)],
            [SERVICE_NAME],
            self._options.rpc_listen,
            self._options.tls_certificate,
            self._options.tls_key,
            [Authorization(self._verifier, {SERVICE_NAME: CALLER_ROLES})],
            offers_reflection=self._options.reflection,
        )


class GatewayCollector(Collector):
    """The gateway's counters for Prometheus."""

    def __init__(self, gateway: SourceGateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        """The current values."""
        gateway = self._gateway
        for name, text, count in (
            ("packets", "Source packets sent, without retransmissions.", gateway.packet_count),
            ("heartbeats", "Heartbeats sent.", gateway.heartbeat_count),
            ("filled_packets", "Source packets served to adapters that missed them.", gateway.replay.datagram_count),
        ):
            yield CounterMetricFamily(f"tandemfeed_source_{name}", text, value=count)
        for name, text, value in (
            ("session", "The session that is sent, as YYYYMMDD; 0: none has begun.", gateway.session),
            ("session_is_sent", "1 if the session has been sent to its end, else 0.", int(gateway.has_sent_all)),
        ):
            yield GaugeMetricFamily(f"tandemfeed_source_{name}", text, value=value)
