"""The source gateway: sends the packets of the source journal at a set pace and serves those that adapters missed.

The shell around `spark_feed.sending.send_core`: it reads records, performs effects, and waits for the next deadline
or the stop signal. It outlives the Spark driver. After a crash it resumes at its durable position; a few packets may
go out twice, with the same numbers. Never: numbers, packs or drops a packet, unless asked to.
"""

from __future__ import annotations

import logging
import select
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from tandemfeed.journal import Batch, NamedPosition
from tandemfeed.spark_feed.journaling.committed_records import CommittedRecords, begin_record, last_commit
from tandemfeed.spark_feed.journaling.records import POSITION_NAME, RecordKind, packets_in, plan_document
from tandemfeed.spark_feed.sending.faults import NO_FAULTS, FaultPlan
from tandemfeed.spark_feed.sending.faulty_sender import FaultySender
from tandemfeed.spark_feed.sending.fill_service import (
    CALLER_ROLES,
    SERVICE_NAME,
    JournalReader,
    PreviousSession,
    SourceReplayService,
)
from tandemfeed.spark_feed.sending.pacing import Pacer
from tandemfeed.spark_feed.sending.publication import Clock, Delay, DelayedRecords, PublicationLog, since_boot_ns
from tandemfeed.spark_feed.sending.send_core import AllSent, SendCore, SendPacket, stamped
from tandemfeed.spark_feed.sending.sent_index import SentIndex, SentPacket
from tandemfeed.transport.calls.admin_servers import AdminServers, ask_active
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.server_names import ADMIN_SERVER, check_certificate, source_gateway
from tandemfeed.transport.calls.serving.authorization import Authorization
from tandemfeed.transport.calls.serving.server import RpcServer, serve
from tandemfeed.transport.calls.token_source import TokenSource
from tandemfeed.transport.calls.tokens import TokenVerifier
from tandemfeed.transport.dgram import MulticastSender
from tandemfeed.transport.process_shell import Connection, StopSignal, alone_with, announce, announce_ready
from tandemfeed.transport.scheduling import tune_for_low_latency
from tandemfeed.transport.sealing.source_sealing import SourceSealer
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc, common_pb2, replay_pb2_grpc

LOG = logging.getLogger(__name__)
ALL_RECORDS = (1 << 63) - 1
JOURNAL_POLL_NS = 1_000_000  # how often to look for new records when there are none
STORE_POSITION_NS = 10_000_000  # after a crash at most this much is sent twice
DESCRIBE_TIMEOUT_S = 20.0
ALL_INTERFACES = {"0.0.0.0", "::"}


class GatewayError(Exception):
    """The gateway cannot serve this feed from this journal; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """Options of one run.

    Attributes:
        wait_for_start: send no packets until the line "start" arrives on standard input.
        session: the session to send; 0: the session of the journal, or of the feed if the journal is still empty.
        former_journal: journal of the previous session, from which adapters fill gaps in that session.
        clock: measures the age of data for a delayed feed.
        reflection: describe the services to administrators.
        faults: to make on purpose, so that consumers can be tested.
    """

    feed: str
    journal: Path
    rpc_listen: str
    tls_certificate: bytes
    tls_key: bytes = field(repr=False)
    wait_for_start: bool = False
    session: int = 0
    former_journal: Path | None = None
    clock: Clock = since_boot_ns
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


def position_name(description: common_pb2.FeedDescription) -> str:
    """The file in the source journal's folder with the position of a feed's gateway."""
    return f"gateway-{description.feed_id}.position" if description.delay_ns else POSITION_NAME


@contextmanager
def sole_gateway(journal: Path, description: common_pb2.FeedDescription) -> Iterator[None]:
    """Make this process the feed's only gateway of a source journal: two would double the rate and undo each other's
    position. A delayed feed's gateway reads the journal beside that of the real-time feed.

    Raises:
        OSError: another gateway sends from the journal.
    """
    if not journal.is_dir():
        LOG.warning("%s does not exist yet; waiting for the source job to create this source journal", journal)
        journal.mkdir(parents=True)
    taken = f"another gateway sends from {journal}; stop that one first"
    with alone_with(journal / position_name(description), taken):
        yield


def session_of(journal: Path) -> int:
    """The session of a source journal; 0 if the journal is still empty."""
    record = begin_record(journal)
    return 0 if record is None else int(_feed_of(record)["session"])


def _feed_of(record: bytes) -> dict[str, Any]:
    feed: Any = plan_document(record)["feed"]
    return dict(feed)


class SourceGateway:
    """A gateway. `run` closes it when it returns.

    Args:
        sealer: seals every packet; None if the feed does not seal its source packets.

    Raises:
        OSError: the RPC address cannot be bound.
    """

    def __init__(
        self,
        options: GatewayOptions,
        description: common_pb2.FeedDescription,
        interface: str,
        pacer: Pacer,
        sealer: SourceSealer | None = None,
    ) -> None:
        self._options, self._sealer = options, sealer
        self._description = description
        own = [stream for stream in description.source_streams if not stream.contribution_endpoint]
        if not own:
            raise GatewayError(f"all of feed {description.name} is contributed; run tandemfeed contribution-gateway")
        stream_ids = [stream.source_stream_id for stream in own]
        self._groups = {stream.source_stream_id: stream.group.encode() for stream in own}
        self._session = options.session or session_of(options.journal) or description.session
        if self._session < description.session:
            LOG.warning(
                "the feed has moved on to a later session; sending this one only for adapters that missed parts of it",
                extra={"session": self._session, "feed_is_in": description.session},
            )
        self.core = SendCore(description.feed_id, self._session, stream_ids, pacer)
        self.index = SentIndex(stream_ids)
        self._journal_records = CommittedRecords(options.journal, stream_ids)
        self._position = NamedPosition(options.journal / position_name(description))
        self._stored_position = self._position.load()
        self._stored_at_ns = 0
        self._is_begun = False
        self._recover()
        self._delay: Delay | None = None
        self._delay_of_previous: Delay | None = None
        self._log: PublicationLog | None = None
        self._records: CommittedRecords | DelayedRecords = self._journal_records
        if description.delay_ns:
            self._delay = Delay(options.journal, description.delay_ns, self._stored_position or 0, options.clock)
            self._records = DelayedRecords(self._journal_records, self._delay)
        else:
            is_resumed = self._stored_position is not None
            self._log = PublicationLog(options.journal, options.clock, is_resumed=is_resumed)
        previous = None if options.former_journal is None else self._read_previous(options.former_journal)
        self.replay = SourceReplayService(
            self.index, JournalReader(options.journal, description.feed_id), description.name, self._session, previous
        )
        self._context: zmq.Context[Any] = zmq.Context()
        sender = MulticastSender(self._context, interface, datagram_size_max=description.datagram_size_max or 1_472)
        self._sender = FaultySender(sender, options.faults, options.fault_seed) if options.faults else sender
        self._verifier = TokenVerifier(source_gateway(options.feed), description.token_keys)
        self._rpc = self._serve()
        self.packet_count = self.heartbeat_count = 0

    @property
    def endpoint(self) -> str:
        """The address that serves SourceReplay."""
        return self._rpc.endpoint

    @property
    def verifier(self) -> TokenVerifier:
        """Knows which tokens the replay service accepts."""
        return self._verifier

    def describe(self, report: admin_pb2.SourceReport) -> tuple[int, int]:
        """Fill in what this gateway has sent; return (packets sent, position after them). For any thread."""
        report.session, report.has_sent_all = self._session, self.core.all_sent
        report.next_source_seqs.update(self.core.next_source_seqs)
        return self.packet_count, self.core.position

    def run(self, stop: StopSignal) -> None:
        """Send until stopped."""
        watched: list[Any] = [stop]
        if self._options.wait_for_start:
            watched.append(sys.stdin)
        else:
            self.core.start()
        announce_ready(rpc=self.endpoint)
        tune_for_low_latency()
        try:
            while not stop.is_set:
                self._turn()
                ready = select.select(watched, [], [], self._wait_s())[0]
                if sys.stdin in ready and sys.stdin.readline().strip() in ("start", ""):  # end of input also starts
                    self.core.start()
                    watched.remove(sys.stdin)
        finally:
            self._close()

    def _turn(self) -> None:
        for _ in range(self.core.records_needed_count):
            entry = self._records.read()
            if entry is None:
                break
            if not self._is_begun:
                self._check_begin(entry.record)
            self.core.on_record(*entry)
        now_ns = time.monotonic_ns()
        for effect in self.core.on_time(now_ns):
            if isinstance(effect, AllSent):
                per_stream = {str(stream_id): count for stream_id, count in effect.message_counts.items()}
                announce("sent", messages=sum(effect.message_counts.values()), per_stream=per_stream)
                continue
            sent_at_ns = time.time_ns()
            datagram = stamped(effect.datagram, sent_at_ns)
            if self._sealer is not None:
                datagram = self._sealer.seal(datagram)
            self._sender.send(self._groups[effect.source_stream_id], datagram)
            if isinstance(effect, SendPacket):
                self.packet_count += 1
                packet = SentPacket(effect.first_source_seq, effect.datagram, sent_at_ns)
                self.index.add(effect.source_stream_id, packet, effect.message_count, effect.journal_index)
            else:
                self.heartbeat_count += 1
        if now_ns - self._stored_at_ns >= STORE_POSITION_NS:
            self._stored_at_ns = now_ns
            self._store_position()

    def _wait_s(self) -> float:
        now_ns = time.monotonic_ns()
        deadline_ns = self.core.next_deadline_ns(now_ns)
        if self.core.is_starved:
            deadline_ns = min(deadline_ns, now_ns + JOURNAL_POLL_NS)
        return max(deadline_ns - now_ns, 0) / 1e9

    def _recover(self) -> None:
        """Index what this gateway sent before it restarted, and resume after it."""
        position = self._stored_position
        if position is None:
            return
        if (record := begin_record(self._options.journal)) is not None:
            self._check_begin(record)
        _index_packets(self.index, self._journal_records.skip_to(position))
        self.core.resume_at(position, self.index.next_source_seqs)
        LOG.info("resumed at the stored position", extra={"next_source_seqs": self.core.next_source_seqs})

    def _check_begin(self, record: bytes) -> None:
        assert record[0] == RecordKind.BEGIN
        feed = _feed_of(record)
        found = (feed["name"], feed["session"], sorted(feed["source_stream_ids"]))
        numbered_as = self._description.delayed_from or self._description.name
        expected = (numbered_as, self._session, sorted(self._groups))
        if found != expected:
            raise GatewayError(
                f"{self._options.journal} contains (feed, session, source streams) {found}; expected {expected}: "
                "use the journal of this session, or correct --session or the cluster file"
            )
        self._is_begun = True

    def _read_previous(self, journal: Path) -> PreviousSession:
        """Index the journal of the previous session."""
        session = session_of(journal)
        if not 0 < session < self._session:
            raise GatewayError(
                f"--former-journal {journal} contains {f'session {session}' if session else 'no session'}; it must "
                f"contain a session before {self._session}"
            )
        index = SentIndex(list(self._groups))
        with CommittedRecords(journal, list(self._groups)) as records:
            _index_packets(index, records.skip_to(ALL_RECORDS))
        feed_id, reader = self._description.feed_id, JournalReader(journal, self._description.feed_id)
        if self._description.delay_ns:
            commit = last_commit(journal)
            end = 0 if commit is None else commit.next_record_index
            delay = self._delay_of_previous = Delay(journal, self._description.delay_ns, clock=self._options.clock)
            return PreviousSession(feed_id, session, index, reader, lambda: delay.released_position >= end)
        return PreviousSession(feed_id, session, index, reader)

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

    def _store_position(self) -> None:
        if self._log is not None:
            self._log.note(self.core.position)
        if self.core.position != self._stored_position and self.core.position:
            self._stored_position = self.core.position
            self._position.store(self.core.position)

    def _close(self) -> None:
        self._store_position()
        self._rpc.stop()
        self._sender.close()
        self._context.term()
        self._journal_records.close()
        self._position.close()
        for each in (self._log, self._delay, self._delay_of_previous):
            if each is not None:
                each.close()


def _index_packets(index: SentIndex, packets: Iterable[tuple[int, Batch]]) -> None:
    """Index packets that were sent before this gateway started."""
    for stream_id, batch in packets:
        found = packets_in(batch)
        for place, (first, count) in enumerate(zip(found.first_source_seq, found.message_count, strict=True)):
            index.add_journaled(stream_id, first, count, batch.first_index + place)


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
