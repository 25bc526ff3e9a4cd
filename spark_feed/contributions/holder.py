"""The holder of a feed's contributions: accepts, decides and sends, as long as its term lasts.

The shell around `ContributionLog` and `spark_feed.sending.send_core`. Calls wait in their own threads; the loop takes
turns, sends the packets of turns that are committed, and repeats heartbeats. To the feed's adapters it is a source
gateway like any other: the same packets, seals, heartbeats and gap fills. After a crash it continues where its log
ends. Never: answers a call, or sends a packet, before `Part.committed_index` is past its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack

from tandemfeed.feedcore.documents.source_layout import SourceFormat
from tandemfeed.journal import JournalError, Tailer
from tandemfeed.journal.read.sequence_marks import Stretch
from tandemfeed.runtime.zeromq import Context
from tandemfeed.spark_feed.contributions.contribution_log import ContributionLog, log_folder
from tandemfeed.spark_feed.contributions.former_session import FormerSession
from tandemfeed.spark_feed.contributions.options import ContributionOptions
from tandemfeed.spark_feed.contributions.pair.log_copy import KeyPair, followers_of, serve_log
from tandemfeed.spark_feed.contributions.pair.part import LOOK_NS, LogState, Part
from tandemfeed.spark_feed.contributions.records import Kind, StreamPlace, packet_record
from tandemfeed.spark_feed.contributions.recovery import Carried
from tandemfeed.spark_feed.contributions.service import CALLER_ROLES as CONTRIBUTOR_ROLES
from tandemfeed.spark_feed.contributions.service import SERVICE_NAME as CONTRIBUTION_SERVICE
from tandemfeed.spark_feed.contributions.service import ContributionService
from tandemfeed.spark_feed.contributions.steady_clock import SteadyClock
from tandemfeed.spark_feed.journaling.records import datagram_in, packet_numbers
from tandemfeed.spark_feed.sending.fill_service import (
    CALLER_ROLES,
    READ_COUNT,
    SERVICE_NAME,
    JournalReader,
    PreviousSession,
    SourceReplayService,
)
from tandemfeed.spark_feed.sending.send_core import AllSent, SendCore, SendPacket, stamped
from tandemfeed.spark_feed.sending.sent_index import SentIndex, SentPacket
from tandemfeed.transport.calls.serving.authorization import Authorization
from tandemfeed.transport.calls.serving.server import RpcServer, serve
from tandemfeed.transport.calls.tokens import TokenVerifier
from tandemfeed.transport.multicast.sockets import Multicast
from tandemfeed.transport.sealing.source_sealing import SourceSealer
from tandemfeed.v1 import common_pb2, contribution_pb2_grpc, replay_pb2_grpc


class _Immediately:
    """A pacer: what is decided is due."""

    def due_ns(self, event_at_ns: int, now_ns: int) -> int:
        """Now."""
        return now_ns

    def on_sent(self, message_count: int, due_ns: int, now_ns: int) -> None:
        """Nothing to remember."""


class ContributionReader(JournalReader):
    """Reads packets from among the records of a log."""

    def packets(self, stretches: Sequence[Stretch], stream_id: int, first_seq: int, end_seq: int) -> Iterator[bytes]:
        """As of `JournalReader`."""
        if not stretches:
            return
        with Tailer(log_folder(self._journal)) as tailer:
            tailer.to_index(stretches[0].begin_index)
            while records := tailer.read_many(READ_COUNT):
                for _, record in records:
                    if record[0] != Kind.NUMBERED:
                        continue
                    of_stream, first, count = packet_numbers(record)
                    if of_stream != stream_id:
                        continue
                    if first >= end_seq:
                        return
                    if first + count > first_seq:
                        yield datagram_in(packet_record(record), self._feed_id)


class Holder:
    """A term. `close` ends it.

    Args:
        part: which was granted a term.
        keys: None: there is no other gateway that would replicate the log.
        former: the session before this one; None: there is none.

    Attributes:
        is_open: everything that the log had when the term began is committed: packets are sent, calls are answered.

    Raises:
        JournalOfOtherStream, WrongFormat, JournalError, OSError: as the texts say.
    """

    def __init__(
        self,
        options: ContributionOptions,
        description: common_pb2.FeedDescription,
        source_format: SourceFormat,
        multicast: Multicast,
        part: Part,
        keys: KeyPair | None,
        former: FormerSession | None,
        sealer: SourceSealer | None,
        verifier: TokenVerifier,
        wake: Callable[[], None],
    ) -> None:
        self._options, self._description, self._format = options, description, source_format
        self._part, self._keys, self._former, self._sealer, self._wake = part, keys, former, sealer, wake
        self._clock_ns, self._wall_clock_ns = options.clock_ns, options.wall_clock_ns
        self._steady_ns = SteadyClock(options.wall_clock_ns, options.clock_ns)
        self._session = options.session or description.session
        self._size_max = description.datagram_size_max or 1_472
        contributed = [each for each in description.source_streams if each.contribution_endpoint]
        self._groups = {each.source_stream_id: each.group.encode() for each in contributed}
        self.is_open = False
        self.packet_count = self.message_count = 0
        self.index = SentIndex(list(self._groups))
        self.core = SendCore(description.feed_id, self._session, list(self._groups), _Immediately())
        self._opened = ExitStack()
        try:
            self._log = self._open_log() if former is None else former.hand_over(self._open_log)
            self._opened.callback(self._log.close)
            self._follower_keys = part.neighbours.follower_keys
            self._begin_term()
            self._context = Context()
            self._opened.callback(self._context.close)
            self._sender = multicast.sender(self._context, datagram_size_max=self._size_max)
            self._opened.callback(self._sender.close)
            reader = ContributionReader(options.folder, description.feed_id)
            self.replay = SourceReplayService(list(self._groups), description.name)
            self.replay.begin_session(self._session, self.index, reader, self._previous())
            self._rpc = self._serve(verifier)
            self._opened.callback(self._rpc.stop)
            self._opened.callback(self._log.refuse_calls)  # first: callers find the next holder at once
        except BaseException:
            self._opened.close()
            raise

    @property
    def endpoint(self) -> str:
        """The address that serves Contribution and SourceReplay."""
        return self._rpc.endpoint

    @property
    def pending_count(self) -> int:
        """Accepted messages that are not decided."""
        return self._log.pending_count

    def turn(self) -> None:
        """Do what is due.

        Raises:
            JournalError, OSError: the disk failed, or the log is not replicated any more; the next start continues.
        """
        self._part.on_time()
        if self._leader is not None and (failure := self._leader.status.failure):
            raise JournalError(f"{log_folder(self._options.folder)} is not replicated any more: {failure}")
        self._admit_followers()
        log, part = self._log, self._part
        for stream in log.streams.values():
            stream.why_waiting = part.reason
        if not self.is_open and part.committed_index >= self._begin_index:
            self._open()
        if not self.is_open:
            return
        self._finish_turn()
        if not log.has_turn and self._is_turn_due():
            log.take_turn()
            part.on_appended(log.end_index)
            self._finish_turn()
        self._send_due()

    def wait_s(self) -> float:
        """For how long `turn` has nothing to do, unless the holder is woken."""
        now_ns, steady_ns = self._clock_ns(), self._steady_ns()
        deadlines = [self._part.next_deadline_ns(), now_ns + LOOK_NS]
        if self.is_open:
            deadlines.append(self.core.next_deadline_ns(now_ns))
            if not self._log.has_turn and (due_ns := self._log.next_deadline_ns()) is not None:
                deadlines.append(now_ns + due_ns - steady_ns)
        return max(min(each for each in deadlines if each is not None) - now_ns, 0) / 1e9

    def close(self) -> None:
        """End the term, here at least. What is pending stays in the log."""
        self._opened.close()

    # ---- inside ----

    def _open_log(
        self, former: FormerSession | None = None, carried: Mapping[int, Carried] | None = None
    ) -> ContributionLog:
        """The log of this session, or of a former one."""
        options, description = self._options, self._description
        folder, session = (options.folder, self._session) if former is None else (former.folder, former.session)
        places = {
            stream_id: StreamPlace(description.name, description.feed_id, session, stream_id, self._size_max)
            for stream_id in self._groups
        }
        return ContributionLog(
            folder, places, self._format, self._wake, clock_ns=self._steady_ns, wall_clock_ns=self._wall_clock_ns,
            limits=options.limits, messages_per_second=options.messages_per_second, carried=carried,
        )  # fmt: skip

    def _begin_term(self) -> None:
        log, part = self._log, self._part
        served_at = ""
        self._leader = None
        if self._keys is not None:
            self._leader = serve_log(
                self._options.folder, self._options.log_listen, self._keys, self._follower_keys, part.on_leader_status
            )
            self._opened.callback(self._leader.stop)
            log.on_appended = self._leader.wake
            served_at = self._leader.endpoint
        log.begin_term(part.term)
        self._begin_index = log.end_index
        part.begin_term(LogState(log.copy, b"", part.term, log.end_index, served_at))

    def _admit_followers(self) -> None:
        admitted = self._part.neighbours.follower_keys
        if self._leader is not None and self._keys is not None and admitted != self._follower_keys:
            self._follower_keys = admitted
            self._leader.use_keys(followers_of(self._keys, admitted))

    def _previous(self) -> PreviousSession | None:
        if self._former is None:
            return None
        reader = ContributionReader(self._former.folder, self._description.feed_id)
        return PreviousSession(self._description.feed_id, self._former.session, self._former.index, reader)

    def _open(self) -> None:
        """What the log has counts as sent: adapters that missed it learn so from the heartbeats, and ask."""
        for stream_id, packets in self._log.recovered.items():
            for packet in packets:
                self.index.add_journaled(stream_id, *packet)
        self._log.recovered.clear()
        self.core.resume_at(0, self.index.next_source_seqs)
        self.core.start()
        self.is_open = True

    def _serve(self, verifier: TokenVerifier) -> RpcServer:
        options, streams = self._options, self._log.streams
        topics = {channel.channel_id: channel.topic for channel in self._description.channels}
        taken = {
            topics[each.owner_channel_id]: streams[each.source_stream_id]
            for each in self._description.source_streams
            if each.source_stream_id in streams
        }
        service = ContributionService(taken)
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
            [Authorization(verifier, roles)],
            offers_reflection=options.reflection,
        )

    def _is_turn_due(self) -> bool:
        due_ns = self._log.next_deadline_ns()
        return due_ns is not None and due_ns <= self._steady_ns()

    def _finish_turn(self) -> None:
        if not self._log.has_turn or self._part.committed_index < self._log.end_index:
            return
        for index, record in self._log.finish_turn():
            if not self.core.records_needed_count:
                self._send_due()
            self.core.on_record(index, record)

    def _send_due(self) -> None:
        while True:
            effects = self.core.on_time(self._clock_ns())
            for effect in effects:
                assert not isinstance(effect, AllSent), "a contributed stream does not end"
                sent_at_ns = self._wall_clock_ns()
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
