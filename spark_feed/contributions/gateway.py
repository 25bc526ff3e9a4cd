"""The contribution gateway: the source of a feed whose messages clients contribute.

The shell around `ContributedStream` and `spark_feed.sending.send_core`. Calls accept messages in their own threads; the
loop decides, sends the packets that were decided, and repeats heartbeats. To the feed's adapters it is a source gateway
like any other: the same packets, seals, heartbeats and gap fills. After a crash it continues where its files end.
Never: sends a packet that its journal does not have.
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.journal import Tailer
from tandemfeed.journal.read.sequence_marks import Stretch
from tandemfeed.spark_feed.contributions.book import Limits
from tandemfeed.spark_feed.contributions.contributed_stream import ContributedStream
from tandemfeed.spark_feed.contributions.former_session import FormerSession
from tandemfeed.spark_feed.contributions.records import Kind, StreamPlace, packet_record
from tandemfeed.spark_feed.contributions.recovery import Carried
from tandemfeed.spark_feed.contributions.service import CALLER_ROLES as CONTRIBUTOR_ROLES
from tandemfeed.spark_feed.contributions.service import SERVICE_NAME as CONTRIBUTION_SERVICE
from tandemfeed.spark_feed.contributions.service import ContributionService
from tandemfeed.spark_feed.journaling.records import datagram_in, packet_numbers, stream_folder
from tandemfeed.spark_feed.sending.fill_service import (
    CALLER_ROLES,
    READ_COUNT,
    SERVICE_NAME,
    JournalReader,
    PreviousSession,
    SourceReplayService,
)
from tandemfeed.spark_feed.sending.gateway import GatewayError
from tandemfeed.spark_feed.sending.send_core import AllSent, SendCore, SendPacket, stamped
from tandemfeed.spark_feed.sending.sent_index import SentIndex, SentPacket
from tandemfeed.transport.calls.server_names import check_certificate, source_gateway
from tandemfeed.transport.calls.serving.authorization import Authorization
from tandemfeed.transport.calls.serving.server import RpcServer, serve
from tandemfeed.transport.calls.tokens import TokenVerifier
from tandemfeed.transport.dgram import MulticastSender
from tandemfeed.transport.process_shell import StopSignal, announce_ready
from tandemfeed.transport.scheduling import tune_for_low_latency
from tandemfeed.transport.sealing.source_sealing import SourceSealer
from tandemfeed.v1 import admin_pb2, common_pb2, contribution_pb2_grpc, replay_pb2_grpc

LOG = logging.getLogger(__name__)
IDLE_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ContributionOptions:
    """Options of one run.

    Attributes:
        folder: of queues and journals, for one session.
        source_format: what contributed messages must fit.
        messages_per_second: of each source stream.
        session: the session to send; 0: the feed's.
        former_folder: that of the session before: its pending messages and its producers continue in this one, and
            adapters fill gaps in it.
    """

    feed: str
    folder: Path
    source_format: Path
    rpc_listen: str
    tls_certificate: bytes
    tls_key: bytes = field(repr=False)
    messages_per_second: int = 20_000
    limits: Limits = field(default_factory=Limits)
    session: int = 0
    former_folder: Path | None = None
    reflection: bool = False


class _Immediately:
    """A pacer: what is decided is due."""

    def due_ns(self, event_at_ns: int, now_ns: int) -> int:
        """Now."""
        return now_ns

    def on_sent(self, message_count: int, due_ns: int, now_ns: int) -> None:
        """Nothing to remember."""


class ContributionReader(JournalReader):
    """Reads packets from among the decisions of a stream's journal."""

    def packets(self, stretches: Sequence[Stretch], stream_id: int, first_seq: int, end_seq: int) -> Iterator[bytes]:
        """As of `JournalReader`."""
        if not stretches:
            return
        with Tailer(stream_folder(self._journal, stream_id)) as tailer:
            tailer.to_index(stretches[0].begin_index)
            while records := tailer.read_many(READ_COUNT):
                for _, record in records:
                    if record[0] != Kind.NUMBERED:
                        continue
                    _, first, count = packet_numbers(record)
                    if first >= end_seq:
                        return
                    if first + count > first_seq:
                        yield datagram_in(packet_record(record), self._feed_id)


class ContributionGateway:
    """A gateway. `run` closes it when it returns.

    Raises:
        GatewayError: the feed takes no contributions.
        JournalOfOtherStream, WrongFormat, DocumentError, JournalError, OSError: as the texts say.
    """

    def __init__(
        self,
        options: ContributionOptions,
        description: common_pb2.FeedDescription,
        interface: str,
        sealer: SourceSealer | None = None,
    ) -> None:
        contributed = [each for each in description.source_streams if each.contribution_endpoint]
        if not contributed:
            raise GatewayError(
                f'feed {description.name} takes no contributions; set contributions = "HOST:PORT" in a source '
                "stream of the cluster file, or run tandemfeed source-gateway"
            )
        self._options, self._sealer, self._feed_id = options, sealer, description.feed_id
        self._session = options.session or description.session
        self._description, self._datagram_size_max = description, description.datagram_size_max or 1_472
        self._source_format = load_source_format(options.source_format)
        self._groups = {each.source_stream_id: each.group.encode() for each in contributed}
        self._failure: Exception | None = None
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._opened = ExitStack()
        self._opened.callback(os.close, self._woken)
        self._streams: dict[int, ContributedStream] = {}
        former = options.former_folder
        self._former = None if former is None else FormerSession(former, self._groups, self._session)
        try:
            self._open_streams()
            self.index = SentIndex(list(self._groups))
            self.core = self._resumed_core()
            reader = ContributionReader(options.folder, self._feed_id)
            self.replay = SourceReplayService(self.index, reader, description.name, self._session, self._previous())
            self._context: zmq.Context[Any] = zmq.Context()
            self._opened.callback(self._context.term)
            self._sender = MulticastSender(self._context, interface, datagram_size_max=self._datagram_size_max)
            self._opened.callback(self._sender.close)
            self.verifier = TokenVerifier(source_gateway(options.feed), description.token_keys)
            topics = {
                channel.topic: self._streams[stream_id]
                for channel in description.channels
                for stream_id in channel.source_stream_ids
                if stream_id in self._streams
            }
            self._rpc = self._serve(ContributionService(topics, self._fail))
            self._opened.callback(self._rpc.stop)
        except BaseException:
            self._opened.close()
            raise
        self.packet_count = self.message_count = 0

    @property
    def endpoint(self) -> str:
        """The address that serves Contribution and SourceReplay."""
        return self._rpc.endpoint

    @property
    def pending_count(self) -> int:
        """Accepted messages that are not decided."""
        return sum(stream.pending_count for stream in self._streams.values())

    def describe(self, report: admin_pb2.SourceReport) -> tuple[int, int]:
        """Fill in what this gateway has sent; return (packets sent, position). For any thread."""
        report.session, report.unsent_record_count = self._session, self.pending_count
        report.next_source_seqs.update(self.core.next_source_seqs)
        return self.packet_count, 0

    def run(self, stop: StopSignal) -> None:
        """Accept, decide and send until stopped.

        Raises:
            JournalError, OSError: the disk failed; the next start continues.
        """
        announce_ready(rpc=self.endpoint)
        tune_for_low_latency()
        watched: list[Any] = [stop, self._woken]
        try:
            while not stop.is_set:
                self._turn()
                if self._failure is not None:
                    raise self._failure
                select.select(watched, [], [], self._wait_s())
                self._take_wake()
        finally:
            self._opened.close()

    # ---- inside ----

    def _open_streams(self) -> None:
        former, folder = self._former, self._options.folder
        for stream_id in self._groups:
            if former is None:
                stream = self._open_stream(stream_id)
            else:
                stream = former.hand_over(stream_id, folder, self._open_stream)
            self._opened.callback(stream.close)
            self._streams[stream_id] = stream

    def _open_stream(
        self, stream_id: int, former: FormerSession | None = None, carried: Carried | None = None
    ) -> ContributedStream:
        """A stream of this session, or of a former one."""
        folder, session = (self._options.folder, self._session) if former is None else (former.folder, former.session)
        return ContributedStream(
            folder,
            StreamPlace(self._description.name, self._feed_id, session, stream_id, self._datagram_size_max),
            self._source_format,
            self._wake,
            limits=self._options.limits,
            messages_per_second=self._options.messages_per_second,
            carried=carried,
        )

    def _previous(self) -> PreviousSession | None:
        if self._former is None:
            return None
        reader = ContributionReader(self._former.folder, self._feed_id)
        return PreviousSession(self._feed_id, self._former.session, self._former.index, reader)

    def _resumed_core(self) -> SendCore:
        """What the journals have counts as sent: adapters that missed it learn so from the heartbeats, and ask."""
        core = SendCore(self._feed_id, self._session, list(self._groups), _Immediately())
        for stream_id, stream in self._streams.items():
            for packet in stream.recovered:
                self.index.add_journaled(stream_id, *packet)
            stream.recovered.clear()
        core.resume_at(0, self.index.next_source_seqs)
        core.start()
        return core

    def _serve(self, service: ContributionService) -> RpcServer:
        options = self._options
        check_certificate(options.tls_certificate, source_gateway(options.feed))
        roles = {SERVICE_NAME: CALLER_ROLES, CONTRIBUTION_SERVICE: CONTRIBUTOR_ROLES}
        return serve(
            [
                lambda server: replay_pb2_grpc.add_SourceReplayServicer_to_server(self.replay, server),
                lambda server: contribution_pb2_grpc.add_ContributionServicer_to_server(service, server),
            ],
            list(roles),
            options.rpc_listen,
            options.tls_certificate,
            options.tls_key,
            [Authorization(self.verifier, roles)],
            offers_reflection=options.reflection,
        )

    def _turn(self) -> None:
        for stream in self._streams.values():
            for index, record in stream.decide():
                if not self.core.records_needed_count:
                    self._send_due()
                self.core.on_record(index, record)
        self._send_due()

    def _send_due(self) -> None:
        while True:
            effects = self.core.on_time(time.monotonic_ns())
            for effect in effects:
                assert not isinstance(effect, AllSent), "a contributed stream does not end"
                sent_at_ns = time.time_ns()
                datagram = stamped(effect.datagram, sent_at_ns)
                self._sender.send(
                    self._groups[effect.source_stream_id],
                    datagram if self._sealer is None else self._sealer.seal(datagram),
                )
                if isinstance(effect, SendPacket):
                    self.packet_count += 1
                    self.message_count += effect.message_count
                    packet = SentPacket(effect.first_source_seq, effect.datagram, sent_at_ns)
                    self.index.add(effect.source_stream_id, packet, effect.message_count, effect.journal_index)
            if self.core.is_starved:
                return

    def _wait_s(self) -> float:
        now_ns, wall_ns = time.monotonic_ns(), time.time_ns()
        wait_ns = min(self.core.next_deadline_ns(now_ns) - now_ns, IDLE_NS)
        for stream in self._streams.values():
            if (due_ns := stream.next_deadline_ns()) is not None:
                wait_ns = min(wait_ns, due_ns - wall_ns)
        return max(wait_ns, 0) / 1e9

    def _wake(self) -> None:
        os.eventfd_write(self._woken, 1)

    def _take_wake(self) -> None:
        with suppress(BlockingIOError):  # nothing has happened since
            os.eventfd_read(self._woken)

    def _fail(self, failure: Exception) -> None:
        self._failure = failure
        self._wake()


class ContributionCollector(Collector):
    """The gateway's figures for Prometheus."""

    def __init__(self, gateway: ContributionGateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        """The current values."""
        gateway = self._gateway
        for name, text, count in (
            ("messages", "Contributed messages sent.", gateway.message_count),
            ("packets", "Source packets sent, without retransmissions.", gateway.packet_count),
            ("filled_packets", "Source packets served to adapters that missed them.", gateway.replay.datagram_count),
        ):
            yield CounterMetricFamily(f"tandemfeed_contribution_{name}", text, value=count)
        yield GaugeMetricFamily(
            "tandemfeed_contribution_pending", "Contributed messages that are pending.", value=gateway.pending_count
        )
