"""The loop of one subscription: sockets, merger, items. The shell is deliberately dull: it has no sequence arithmetic.

The loop runs in the thread that polls or iterates; no other thread handles messages. Two background threads (replay,
grant) reach the loop only through the mailbox.

All queues are bounded: datagrams in ZeroMQ's queue of each receiver (`receive_queue_count_max`; replay fills the loss
after an overflow), letters in the mailbox (MAILBOX_COUNT_MAX; replay slows down), early packets in the merger
(`MergerConfig.held_count_max`), and the result of a `poll` by DRAIN_COUNT_MAX datagrams for each group.

The loop must never raise because of a peer's data: refused packets are counted by reason.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import zmq

from tandemfeed.client_lib.items import Batch, ChannelsChanged, Event, Item, ModelChanged, Revoked
from tandemfeed.client_lib.items import Filled as FilledItem
from tandemfeed.client_lib.login.grant import Grant, GrantedSymbols, TopicsRevoked
from tandemfeed.client_lib.login.grant_stream import GrantStream
from tandemfeed.client_lib.login.session import Session
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.client_lib.messages.message import MessageClasses
from tandemfeed.client_lib.stream.cursor import Cursor, TopicPosition
from tandemfeed.client_lib.stream.event_log import log_event
from tandemfeed.client_lib.stream.grant_box import GrantBox
from tandemfeed.client_lib.stream.mailbox import Mailbox
from tandemfeed.client_lib.stream.reading import M, Readable
from tandemfeed.client_lib.stream.receivers import Receiver, Receivers
from tandemfeed.client_lib.stream.replay import Replayed, ReplayEnded, ReplayWorker
from tandemfeed.client_lib.stream.starts import Start, first_message_of
from tandemfeed.client_lib.stream.statistics import ChannelStatistics, SubscriptionStatistics
from tandemfeed.client_lib.stream.stream_trust import StreamTrust, Verdict, VerifyMode
from tandemfeed.client_lib.stream.symbol_filter import SymbolFilter
from tandemfeed.client_lib.stream.transport_choice import Transport
from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import Deliver, Ended, Filled, MergeEffect, RequestReplay, SessionChanged
from tandemfeed.feedcore.merge.sessions import SessionMerger
from tandemfeed.feedcore.topics import TopicEntry
from tandemfeed.feedcore.wire.output_packet import OutputPacket, decode_output_packet
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.transport.sealing.opening import ReceivedPacket, ReceivedSignature, StreamOpener
from tandemfeed.transport.unicast.wire import CurveKeys

# Datagrams per group and turn: 2 to 4 ms of work. A turn in which a late line only repeats what was delivered must be
# short, because on a busy machine it takes four times as long, and nothing is delivered meanwhile.
DRAIN_COUNT_MAX = 32
MAILBOX_COUNT_MAX = 256


class Subscription(Readable[M]):
    """The merged stream of one feed's granted channels. Created by `Client.subscribe`.

    Iterate over it for messages, or over `batches()` or `items()`, with `for` or `async for`; or call `run` or `poll`.
    Use one thread, or coroutines of one event loop; `stop`, `close` and `modify` may be called from any thread.

    Args:
        start: the first message of each channel; see `starts.Start`.
        cursor: where to begin instead, and what to keep up to date.
        kind: the class of the messages to deliver; None: all.
        on_event: called with each event, in its place in the stream, by readings that do not yield events; None: it is
            logged.
    """

    def __init__(
        self,
        session: Session,
        grants: GrantStream,
        feed: str,
        topics: Iterable[TopicEntry],
        interface: str,
        *,
        start: Start,
        cursor: Cursor | None = None,
        kind: type[M] | None = None,
        on_event: Callable[[Event], object] | None = None,
        verify: VerifyMode = "alarm",
        transport: Transport = "auto",
        merger_config: MergerConfig | None = None,
        grant_timeout_s: float = 10.0,
        receive_queue_count_max: int = 100_000,
    ) -> None:
        self._session, self._grants, self._interface = session, grants, interface
        self._topics: dict[int, str] = {}  # by channel, also of those that are not granted any more
        self._request = feed, tuple(topics), grant_timeout_s
        super().__init__(kind, on_event or log_event, cursor)
        self._start = start
        self._verify: VerifyMode = verify
        self._transport: Transport = transport
        self._merger_config = merger_config
        self._receive_queue_count_max = receive_queue_count_max
        self.counters = CounterSet()
        self._is_open = self._is_stopping = self._is_disposed = False
        self._opening_lock, self._loop_lock = threading.Lock(), threading.Lock()
        self._loop_thread: int | None = None
        self._last_item: Revoked | None = None

    def open(self) -> None:
        """Subscribe, and join the adapters' streams. Idempotent; everything that needs it calls it.

        Raises:
            ClientError: as `Client.subscribe` lists them.
        """
        with self._opening_lock:
            if not self._is_open and not self._is_stopping:
                try:
                    self._open()
                except BaseException:
                    if self.cursor is not None:
                        self.cursor.close()
                    raise
                self._is_open = True

    def _open(self) -> None:
        if self.cursor is not None:
            self.cursor.open()
        feed, topics, grant_timeout_s = self._request
        self._mailbox: Mailbox[Replayed | ReplayEnded] = Mailbox(MAILBOX_COUNT_MAX)
        self._grant_box = GrantBox(self._mailbox.wake)
        keys = CurveKeys.generate()  # for this subscription only
        unicast_key = b"" if self._transport == "multicast" else keys.public
        try:
            self._id, self._grant = self._grants.subscribe(
                feed, topics, self._grant_box.put, grant_timeout_s, unicast_key
            )
        except BaseException:
            self._mailbox.close()
            raise
        self._decoder = _decoder_of(self._grant)
        self._opener = StreamOpener(self._grant.feed_id)
        self._trusts: dict[int, StreamTrust] = {}
        self._mergers: dict[int, SessionMerger] = {}
        self._begun: dict[int, tuple[int, int, int]] = {}  # by channel: source messages that were handled in part
        if self.cursor is not None:
            self.cursor.check_feed(self._grant.feed_name)
        for channel_id, topic in self._grant.topics_by_channel.items():
            position = None if self.cursor is None else self.cursor.position(topic)
            if position is None or not position.next_input_seq:
                self._add_channel(channel_id, first_message_of(self._start, topic))
            else:
                self._resume_channel(channel_id, position)
        self._filters: dict[int, SymbolFilter] = {}  # of the channels of which only some symbols are granted
        self._filtered_symbols: Mapping[int, GrantedSymbols] = {}
        self._ended: set[int] = set()
        self._ready: deque[Item] = deque()
        self._datagrams = 0
        self._replayed_packets = 0
        self._context: zmq.Context[Any] = zmq.Context()
        self._poller = zmq.Poller()
        self._poller.register(self._mailbox.fd, zmq.POLLIN)
        self._receivers = Receivers(
            self._context,
            self._poller,
            self._interface,
            self._transport,
            keys,
            receive_queue_count_max=self._receive_queue_count_max,
        )
        self._known_keys: set[int] = set()
        self._replay = ReplayWorker(self._session, self._mailbox.put)
        try:
            self._apply_grant(self._grant)
        except BaseException:
            self._dispose()
            raise

    # ---- for the application ----

    @property
    def grant(self) -> Grant:
        """The present grant."""
        return self._grant

    @property
    def decoder(self) -> Decoder:
        """The decoder for the feed's message model."""
        return self._decoder

    def topic_of(self, channel_id: int) -> str:
        """The topic of a channel, also of one that is not granted any more."""
        return self._topics[channel_id]

    @property
    def is_closed(self) -> bool:
        """True once `stop` or `close` was called, or the grant was revoked."""
        return self._is_stopping

    @property
    def has_ended(self) -> bool:
        """True once every channel has delivered the `Ended` event of its present session."""
        return len(self._ended) == len(self._mergers)

    @property
    def classes(self) -> MessageClasses:
        """The classes of the feed's messages."""
        return self._decoder.classes

    def poll_unhandled(self, timeout_s: float | None = None) -> list[Item]:
        """As `poll`, for those who report themselves what was handled."""
        self.open()
        if not self._loop_lock.acquire(blocking=False):
            raise RuntimeError("another thread is polling this subscription; poll it from one thread at a time")
        self._loop_thread = threading.get_ident()
        try:
            return self._poll(timeout_s)
        finally:
            self._loop_thread = None
            if self._is_stopping:
                self._dispose()
            self._loop_lock.release()

    def stop(self) -> None:
        """End the loop: `poll` returns immediately. Never blocks; safe to call from any thread or signal handler."""
        self._is_stopping = True
        if self._is_open:
            self._mailbox.wake()

    def close(self) -> None:
        """Stop, leave the groups, end the background threads. Safe to call from any thread; idempotent."""
        self.stop()
        if self._loop_thread == threading.get_ident():
            return  # called inside poll, which disposes when it returns
        with self._opening_lock, self._loop_lock:
            if self._is_open:
                self._dispose()
            if self.cursor is not None:
                self.cursor.close()

    def modify(self, add: Sequence[str] = (), remove: Sequence[str] = (), *, timeout_s: float = 10.0) -> None:
        """Add and remove topics, and wait until the administration server has accepted the change.

        `ChannelsChanged` then marks the place in the stream. Channels that stay miss and repeat nothing; added channels
        begin live. May be called from any thread.

        Args:
            add, remove: topics, or patterns with `*` and `#`; `remove` is applied first.
            timeout_s: how long to wait for the answer.

        Raises:
            AuthorizationRefused: a topic to add does not exist or is not granted. Nothing has changed.
            AdminUnavailable: no answer; try again later. Nothing has changed.
            FeedUnknown: the server cannot use the request, for instance because no topic would be left.
            ValueError: the subscription has ended.
        """
        for name, topics in (("add", add), ("remove", remove)):
            if isinstance(topics, str):
                raise TypeError(f"{name} is {topics!r}; expected a sequence of topics")
        self.open()
        removed = [TopicEntry(topic, is_removed=True) for topic in remove]
        self._grants.modify(self._id, (*removed, *map(TopicEntry, add)), timeout_s)

    def cancel(self) -> None:
        """End the subscription at the administration server, and close it. The client's others continue."""
        self.close()

    def statistics(self) -> SubscriptionStatistics:
        """A snapshot, for views and metrics."""
        channels = {
            channel_id: ChannelStatistics(
                self._grant.topics_by_channel[channel_id],
                merger.present.lineage.epoch,
                merger.present.next_input_seq,
                merger.present.next_message_seq,
                dict(merger.present.next_source_seqs),
                tuple(self._trusts[channel_id].distrusted()),
                merger.session,
                self._filters[channel_id].filtered_count if channel_id in self._filters else 0,
            )
            for channel_id, merger in list(self._mergers.items())
        }
        return SubscriptionStatistics(
            datagrams=self._datagrams,
            replayed_packets=self._replayed_packets,
            counts={counter.name.lower(): count for counter, count in self.counters.counts.items() if count},
            refusals={reason.value: count for reason, count in self.counters.refusals.items() if count},
            channels=channels,
            groups=self._receivers.groups,
            unicast_endpoints=self._receivers.unicast_endpoints,
            active_adapter_id=self._grant.active_adapter_id,
        )

    # ---- the loop ----

    def _poll(self, timeout_s: float | None) -> list[Item]:
        give_up_at_ns = None if timeout_s is None else time.monotonic_ns() + int(timeout_s * 1e9)
        while not self._is_stopping:
            deadline_ns = self._next_deadline_ns()
            wake_at_ns = _earliest(deadline_ns, give_up_at_ns)
            wait_ms = -1 if wake_at_ns is None else max(0, -(-(wake_at_ns - time.monotonic_ns()) // 1_000_000))
            for socket, _ in self._poller.poll(wait_ms):
                receiver = self._receivers.of_socket(socket)
                if receiver is not None:
                    self._drain(receiver)
                elif socket == self._mailbox.fd:
                    self._read_letters()
            now_ns = time.monotonic_ns()
            if deadline_ns is not None and now_ns >= deadline_ns:
                for merger in self._mergers.values():
                    self._perform(merger.on_timer(now_ns, random.random()), now_ns)
                self._ready += self._receivers.on_timer(now_ns, self._drain_whole)
            if self._last_item is not None:  # after everything else of this turn
                self._ready.append(self._last_item)
                self._is_stopping = True
            if self._ready:
                items = list(self._ready)
                self._ready.clear()
                return items
            if give_up_at_ns is not None and now_ns >= give_up_at_ns:
                break
        return []

    def _drain(self, receiver: Receiver) -> bool:
        """Take up to DRAIN_COUNT_MAX datagrams; False if there are no more."""
        receive, opener_open, is_heard = receiver.receive, self._opener.open, False
        for _ in range(DRAIN_COUNT_MAX):
            datagram = receive()
            if datagram is None:
                return False
            self._datagrams += 1
            try:
                opened = opener_open(datagram)
                if not is_heard:
                    is_heard = True
                    self._receivers.on_heard(receiver, time.monotonic_ns())
                verdicts = self._judge(opened, receiver)
            except PacketRefused as refused:
                self.counters.refuse(refused.reason)
                continue
            for verdict in verdicts:
                if isinstance(verdict, OutputPacket):
                    self._merge(verdict)
                else:
                    self._ready.append(verdict)
        return True

    def _drain_whole(self, receiver: Receiver) -> None:
        while self._drain(receiver):
            pass

    def _judge(self, opened: ReceivedPacket | ReceivedSignature, receiver: Receiver) -> list[Verdict]:
        """The packets and alarms to deliver now.

        Raises:
            PacketRefused: the datagram is not accepted.
        """
        now_ns = time.monotonic_ns()
        if isinstance(opened, ReceivedSignature):
            trust = self._trust_of(opened.claimed.channel_id)
            return trust.on_signature(opened, now_ns, sender=receiver.last_sender)
        return self._trust_of(opened.packet.channel_id).on_packet(opened, now_ns)

    def _trust_of(self, channel_id: int) -> StreamTrust:
        try:
            return self._trusts[channel_id]
        except KeyError:
            raise PacketRefused(Refusal.WRONG_CHANNEL, f"channel {channel_id} is not granted") from None

    def _merge(self, packet: OutputPacket) -> None:
        merger = self._mergers.get(packet.channel_id)
        if merger is None:
            self.counters.refuse(Refusal.WRONG_CHANNEL)
        else:
            now_ns = time.monotonic_ns()
            self._perform(merger.on_packet(packet, now_ns), now_ns)

    def _perform(self, effects: list[MergeEffect], now_ns: int) -> None:
        for effect in effects:
            if isinstance(effect, Deliver):
                self._ready.append(self._batch(effect.packet, now_ns))
            elif isinstance(effect, RequestReplay):
                self._replay.request(effect)
            elif isinstance(effect, Filled):
                self._ready.append(FilledItem(self._batch(effect.packet, now_ns)))
            else:
                if isinstance(effect, Ended):
                    self._ended.add(effect.channel_id)
                elif isinstance(effect, SessionChanged):
                    self._ended.discard(effect.channel_id)
                self._ready.append(effect)

    def _batch(self, packet: OutputPacket, now_ns: int) -> Batch:
        places = None
        if self._filters and (chosen := self._filters.get(packet.channel_id)) is not None:
            packet, places = chosen.select(packet)
        batch = Batch(packet, time.time_ns(), now_ns, self._decoder, places)
        return batch if self.cursor is None else self._for_cursor(batch)

    def _for_cursor(self, batch: Batch) -> Batch:
        """The batch without messages that were handled before, with the history that its numbers belong to."""
        channel_id = batch.channel_id
        if (begun := self._begun.pop(channel_id, None)) is not None:
            stream, source_seq, message_count = begun
            first = batch.packet.runs[0]
            if (first.source_stream_id, first.first_source_seq) == (stream, source_seq):
                batch = batch.without_first(message_count)
        batch.lineage = self._mergers[channel_id].present.lineage
        return batch

    def _next_deadline_ns(self) -> int | None:
        earliest = self._receivers.next_deadline_ns()
        for merger in self._mergers.values():
            earliest = _earliest(earliest, merger.next_deadline_ns())
        return earliest

    # ---- letters from the background threads ----

    def _read_letters(self) -> None:
        self._mailbox.acknowledge()
        self._take_grant()
        letter = self._mailbox.take()
        if letter is None:
            return
        self._mailbox.wake()  # one letter a turn, so that a long replay does not starve the live stream
        if isinstance(letter, ReplayEnded):
            channel_id = letter.request.channel_id
            self._replay.ended(channel_id)
            if (merger := self._mergers.get(channel_id)) is not None:
                merger.on_replay_ended(letter.request, time.monotonic_ns(), is_answered=letter.is_answered)
            return
        for datagram in letter.packets:
            self._on_replayed(datagram, letter.adapter_id)

    def _take_grant(self) -> None:
        revoked, grant = self._grant_box.take()
        if revoked is not None:
            self._on_revoked(revoked)
        if grant is not None and self._last_item is None:
            self._change_channels(grant)
            if grant.message_model != self._grant.message_model:
                self._decoder = _decoder_of(grant)
                self._ready.append(ModelChanged(*grant.model_name))
            self._apply_grant(grant)

    def _on_revoked(self, revoked: TopicsRevoked) -> None:
        item = Revoked(revoked.reason, revoked.topics, revoked.is_last)
        if revoked.is_last:
            self._last_item = item
            return
        self._ready.append(item)
        for channel_id, topic in self._grant.topics_by_channel.items():
            if topic in revoked.topics:
                self._remove_channel(channel_id)

    def _change_channels(self, grant: Grant) -> None:
        """Begin and end channels as a grant says; those that stay keep their merge."""
        present, wanted = self._mergers.keys(), grant.topics_by_channel.keys()
        added, removed = sorted(wanted - present), sorted(present - wanted)
        for channel_id in removed:
            self._remove_channel(channel_id)
        for channel_id in added:
            self._add_channel(channel_id, None, session=grant.session)
        if added or removed:
            former, now = self._grant.topics_by_channel, grant.topics_by_channel
            changed = ChannelsChanged(tuple(now[each] for each in added), tuple(former[each] for each in removed))
            self._ready.append(changed)

    def _add_channel(self, channel_id: int, start_message_seq: int | None, session: int | None = None) -> None:
        self._trusts[channel_id] = StreamTrust(channel_id, self.counters, self._verify)
        self._mergers[channel_id] = SessionMerger(
            channel_id, session or self._grant.session, self.counters, self._merger_config, start_message_seq
        )

    def _resume_channel(self, channel_id: int, position: TopicPosition) -> None:
        """Begin a channel where the cursor is, even in a session that is over."""
        self._trusts[channel_id] = StreamTrust(channel_id, self.counters, self._verify)
        session, is_over = position.session, position.session < self._grant.session
        config, point = self._merger_config, position.resume_point
        self._mergers[channel_id] = SessionMerger(
            channel_id, session, self.counters, config, position.next_message_seq, point, is_over=is_over
        )
        if position.begun is not None:
            self._begun[channel_id] = position.begun

    def _remove_channel(self, channel_id: int) -> None:
        self._mergers.pop(channel_id, None)
        self._trusts.pop(channel_id, None)
        self._ended.discard(channel_id)

    def _on_replayed(self, datagram: bytes, adapter_id: int) -> None:
        self._replayed_packets += 1
        try:
            packet = decode_output_packet(datagram)
            if packet.feed_id != self._grant.feed_id:
                raise PacketRefused(Refusal.WRONG_FEED, f"feed {packet.feed_id}, expected {self._grant.feed_id}")
            if packet.adapter_id != adapter_id:  # confirm=2 relies on each adapter replaying only its own packets
                raise PacketRefused(Refusal.FORGED, f"adapter {adapter_id} replays a packet of {packet.adapter_id}")
            self._trust_of(packet.channel_id).on_replayed(packet)
        except PacketRefused as refused:
            self.counters.refuse(refused.reason)
            return
        self._merge(packet)

    def _apply_grant(self, grant: Grant) -> None:
        """Change filters, sockets, keys and replay services to match a grant."""
        symbols = grant.symbols_by_channel
        if symbols != self._filtered_symbols:
            self._filtered_symbols, former = symbols, self._filters
            self._filters = {
                channel_id: SymbolFilter(self._decoder.model, each.field, each.words, former.get(channel_id))
                for channel_id, each in symbols.items()
            }
        self._grant = grant
        self._topics.update(grant.topics_by_channel)
        for key_id in self._known_keys - grant.keys.keys():
            self._opener.remove_key(key_id)
        for key_id in grant.keys.keys() - self._known_keys:
            self._opener.add_key(grant.keys[key_id].sealing)
        self._known_keys = set(grant.keys)
        starts = grant.starts
        self._opener.announce(starts)
        for trust in self._trusts.values():
            trust.announce(starts)
        self._ready += self._receivers.apply(grant, time.monotonic_ns(), self._drain_whole)
        self._replay.set_adapters(tuple(grant.adapters[adapter_id] for adapter_id in sorted(grant.adapters)))

    def _dispose(self) -> None:
        if self._is_disposed:
            return
        self._is_disposed = True
        self._mailbox.close()
        self._grants.cancel(self._id)
        self._replay.close()
        self._receivers.close()
        self._context.destroy(linger=0)


def _decoder_of(grant: Grant) -> Decoder:
    return Decoder(grant.message_model, f"message model of {grant.feed_name}")


def _earliest(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def delivered_count(counters: CounterSet) -> int:
    """Application messages delivered so far."""
    return counters.counts[Counter.MERGE_DELIVERED]
