"""The contribution gateway: the source of a feed whose messages clients contribute, alone or one of a pair.

It begins without a part, reports to the admin server, and does what the answers say: it keeps a copy of the holder's
log, or holds the contributions itself (`Holder`). When its term has ended, it begins anew. See docs/contribution.md,
"A second gateway".
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, StateSetMetricFamily
from prometheus_client.registry import Collector

from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.journal.replication import new_keys
from tandemfeed.spark_feed.contributions.contribution_log import copy_id, drop_unbegun, log_folder, read_end
from tandemfeed.spark_feed.contributions.former_session import FormerSession
from tandemfeed.spark_feed.contributions.holder import Holder
from tandemfeed.spark_feed.contributions.options import ContributionOptions
from tandemfeed.spark_feed.contributions.pair.log_copy import KeyPair, LogCopy
from tandemfeed.spark_feed.contributions.pair.membership import Acknowledge, GatewayState
from tandemfeed.spark_feed.contributions.pair.part import LogState, Part
from tandemfeed.spark_feed.contributions.recovery import JournalOfOtherStream
from tandemfeed.spark_feed.sending.sessions.sent_session import GatewayError
from tandemfeed.spark_feed.sending.source_reports import Progress
from tandemfeed.transport.calls.server_names import check_certificate, source_gateway
from tandemfeed.transport.calls.tokens import TokenVerifier
from tandemfeed.transport.multicast.sockets import Multicast
from tandemfeed.transport.process_shell import StopSignal, announce_ready
from tandemfeed.transport.scheduling import tune_for_low_latency
from tandemfeed.transport.sealing.source_sealing import SourceSealer
from tandemfeed.v1 import admin_pb2, common_pb2

LOG = logging.getLogger(__name__)
LOOK_S = 0.25  # how often a gateway that does not hold the contributions looks at its copy


class Sent(NamedTuple):
    """What a gateway has sent. Attributes: filled_count: packets, to adapters that missed them."""

    message_count: int
    packet_count: int
    filled_count: int


class ContributionGateway:
    """A gateway. `run` closes it when it returns.

    Attributes:
        holder: while it holds the contributions.

    Raises:
        GatewayError: the feed takes no contributions.
        JournalOfOtherStream, DocumentError, JournalError, OSError: as the texts say.
    """

    def __init__(
        self,
        options: ContributionOptions,
        description: common_pb2.FeedDescription,
        multicast: Multicast,
        sealer: SourceSealer | None = None,
    ) -> None:
        contributed = [each for each in description.source_streams if each.contribution_endpoint]
        if not contributed:
            raise GatewayError(
                f'feed {description.name} takes no contributions; set contributions = "HOST:PORT" in a source '
                "stream of the cluster file, or run tandemfeed source-gateway"
            )
        check_certificate(options.tls_certificate, source_gateway(options.feed))
        self._options, self._description, self._multicast = options, description, multicast
        self._sealer, self._session = sealer, options.session or description.session
        self._format = load_source_format(options.source_format)
        self._stream_ids = [each.source_stream_id for each in contributed]
        self._former = self._read_former()
        _refuse_older_files(options)
        self._keys = KeyPair(*new_keys()) if len(contributed[0].contribution_endpoints) > 1 else None
        self.verifier = TokenVerifier(source_gateway(options.feed), description.token_keys)
        self.holder: Holder | None = None
        self.term_count = 0
        self._sent_before = Sent(0, 0, 0)
        self._has_announced, self._logged_reason = False, ""
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._hurry: Callable[[], None] = _nothing
        policy = Acknowledge(description.acknowledge_contributions or Acknowledge.AVAILABLE.value)
        acknowledge = policy if self._keys is not None else Acknowledge.AVAILABLE
        key, salt = self._keys.public if self._keys else b"", sealer.salt if sealer else b""
        self.part = Part(acknowledge, options.endpoint, key, salt, self._wake, options.clock_ns)
        self.part.log = self._log_state()
        self._copy = None if self._keys is None else self._new_copy(self._keys)

    @property
    def pending_count(self) -> int:
        """Accepted messages that are not decided; 0 unless this is the holder."""
        return 0 if self.holder is None else self.holder.pending_count

    @property
    def sent(self) -> Sent:
        """What this process has sent in all its terms."""
        before, holder = self._sent_before, self.holder
        if holder is None:
            return before
        now = holder.message_count, holder.packet_count, holder.replay.datagram_count
        return Sent(*(sum(pair) for pair in zip(before, now, strict=True)))

    def report_with(self, hurry: Callable[[], None]) -> None:
        """Set what is called when the next report should not wait. Call it before `run`."""
        self._hurry = hurry

    def describe(self, report: admin_pb2.SourceReport) -> Progress:
        """Fill in this gateway's part and what it has sent. For any thread."""
        holder = self.holder
        report.session = self._session
        if holder is not None and holder.is_open:
            report.unsent_record_count = holder.pending_count
            report.next_source_seqs.update(holder.core.next_source_seqs)
        self.part.describe(report.gateway, self.pending_count)
        return Progress(self.sent.packet_count)

    def on_answer(self, answer: admin_pb2.SourceReported) -> None:
        """The admin server's answer to the last report. For any thread."""
        self.part.on_answer(answer.gateway)

    def run(self, stop: StopSignal) -> None:
        """Do whatever part it has until stopped.

        Raises:
            JournalError, OSError: the disk failed; the next start continues.
            JournalOfOtherStream: its session has ended.
        """
        tune_for_low_latency()
        watched: list[Any] = [stop, self._woken]
        try:
            while not stop.is_set:
                wait_s = self._turn()
                if self.part.is_urgent:
                    self._hurry()
                select.select(watched, [], [], wait_s)
                with suppress(BlockingIOError):  # nothing has happened since
                    os.eventfd_read(self._woken)
        finally:
            try:
                self._end_term()
            finally:
                if self._copy is not None:
                    self._copy.stop()

    # ---- inside ----

    def _turn(self) -> float:
        """Do what is due; returns for how many seconds nothing more is."""
        state = self.part.state
        if state is GatewayState.ENDED:
            return self._begin_anew()
        if state is not GatewayState.HOLDER:
            return self._follow()
        if self.holder is None:
            self._begin_term()
        assert self.holder is not None
        self.holder.turn()
        if self.holder.is_open:
            self._announce()
        return self.holder.wait_s()

    def _begin_term(self) -> None:
        if self._copy is not None:
            self._copy.stop()  # first: nothing of the former holder is acknowledged any more
            self.part.copy_failure = ""
        LOG.info("holding the contributions", extra={"term": self.part.term})
        self.holder = Holder(
            self._options, self._description, self._format, self._multicast, self.part, self._keys, self._former,
            self._sealer, self.verifier, self._wake,
        )  # fmt: skip
        self.term_count += 1
        self._hurry()

    def _follow(self) -> float:
        leader = self.part.neighbours.leader
        if self._copy is not None and leader is not None:
            self._copy.follow(leader)
            self.part.copy_failure = self._copy.failure
        self.part.set_copy(copy_id(self._options.folder))
        if (reason := self.part.reason) and reason != self._logged_reason:
            LOG.warning("waiting for a part", extra={"why": reason})
        self._logged_reason = reason
        if self.part.is_answered and self._copy is not None:
            self._announce()
        return LOOK_S

    def _begin_anew(self) -> float:
        reason = self.part.reason
        self._end_term()
        if self.part.is_over:
            raise JournalOfOtherStream(f"{reason}: give the folder of that session, or stop this gateway")
        LOG.warning("the term has ended; beginning anew", extra={"why": reason})
        self.part.begin_anew(self._log_state())
        return 0.0

    def _end_term(self) -> None:
        sent, holder = self.sent, self.holder
        self.holder, self._sent_before = None, sent
        if holder is not None:
            holder.close()

    def _log_state(self) -> LogState:
        drop_unbegun(self._options.folder)  # before its id is reported
        end = read_end(self._options.folder)
        if end.is_ended:
            log = log_folder(self._options.folder)
            raise JournalOfOtherStream(f"{log} is of a session that has ended: give the folder of the next one")
        former = b"" if self._former is None else self._former.copy
        return LogState(copy_id(self._options.folder), former, end.term, end.end_index)

    def _read_former(self) -> FormerSession | None:
        options = self._options
        if options.former_folder is None:
            return None
        return FormerSession(options.former_folder, self._stream_ids, options.folder, self._session)

    def _new_copy(self, keys: KeyPair) -> LogCopy:
        return LogCopy(self._options.folder, keys, self._forget_copy, clock_ns=self._options.clock_ns)

    def _forget_copy(self) -> None:
        self.part.set_copy(b"")

    def _announce(self) -> None:
        if not self._has_announced:
            self._has_announced = True
            announce_ready(rpc=self._options.rpc_listen if self.holder is None else self.holder.endpoint)

    def _wake(self) -> None:
        os.eventfd_write(self._woken, 1)


def _nothing() -> None:
    """No reporter."""


def _refuse_older_files(options: ContributionOptions) -> None:
    """Messages in files of an earlier version must not be forgotten."""
    if any(options.folder.glob("queue-*")):
        raise JournalOfOtherStream(
            f"{options.folder} is of an earlier version of tandemfeed: finish its session with that version, and give "
            "another folder for the next one"
        )


class ContributionCollector(Collector):
    """The gateway's figures for Prometheus."""

    def __init__(self, gateway: ContributionGateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        """The current values."""
        gateway, sent = self._gateway, self._gateway.sent
        for name, text, count in (
            ("messages", "Contributed messages sent.", sent.message_count),
            ("packets", "Source packets sent, without retransmissions.", sent.packet_count),
            ("filled_packets", "Source packets served to adapters that missed them.", sent.filled_count),
            ("terms", "Terms that this process was granted.", gateway.term_count),
        ):  # fmt: skip
            yield CounterMetricFamily(f"tandemfeed_contribution_{name}", text, value=count)
        yield GaugeMetricFamily(
            "tandemfeed_contribution_pending", "Contributed messages that are pending.", value=gateway.pending_count
        )
        states = {each.value: each is gateway.part.state for each in GatewayState}
        yield StateSetMetricFamily("tandemfeed_contribution_state", "The gateway's part.", value=states)
        yield GaugeMetricFamily(
            "tandemfeed_contribution_has_standby", "Whether this is the holder and a standby has everything.",
            value=bool(gateway.part.standby_copy),
        )  # fmt: skip
