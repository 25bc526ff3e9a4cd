"""One subscription as its application holds it: opened when it is first used, polled, modified, closed.

The work is in `Loop` (threads, what the shared sockets receive) and `Channels` (trust, merge); how an application reads
it is in `Readable`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tandemfeed.client_lib.errors import HistoryUnavailable
from tandemfeed.client_lib.items import Event, Item
from tandemfeed.client_lib.login.grant import Grant
from tandemfeed.client_lib.login.grant_stream import GrantStream
from tandemfeed.client_lib.login.session import Session
from tandemfeed.client_lib.losses.loss_report import LossReport
from tandemfeed.client_lib.losses.loss_watch import LossWatch
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.client_lib.messages.message import MessageClasses
from tandemfeed.client_lib.reading.conflation import check_key
from tandemfeed.client_lib.reading.cursor import Cursor
from tandemfeed.client_lib.reading.event_log import log_event
from tandemfeed.client_lib.reading.lag import Dropped, Lag, LagPolicy
from tandemfeed.client_lib.reading.read_ahead import ReadAhead
from tandemfeed.client_lib.reading.reading import M, Readable
from tandemfeed.client_lib.replay.last_values import LastValues, last_values
from tandemfeed.client_lib.replay.locating import Wanted, locate
from tandemfeed.client_lib.replay.playback import Playback
from tandemfeed.client_lib.state_folder import state_folder
from tandemfeed.client_lib.stream.channels import Channels
from tandemfeed.client_lib.stream.loop import Letters, Loop
from tandemfeed.client_lib.stream.sockets.shared_sockets import SharedSockets
from tandemfeed.client_lib.stream.sockets.transport_choice import Transport
from tandemfeed.client_lib.stream.starts import Start, first_message_of, session_of, time_of
from tandemfeed.client_lib.stream.statistics import SubscriptionStatistics
from tandemfeed.client_lib.stream.trust.stream_trust import VerifyMode
from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import RequestReplay
from tandemfeed.feedcore.topics import TopicEntry

PLAYBACK_STEP_NS = 50_000_000  # at most, so that `stop` and time-outs are noticed


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
        lag_policy: what happens if the application is slow.
        loss_folder: of the loss report; None: in the user's state folder.
        where: the values that fields of delivered messages have; see `FieldFilter`.
        playback: when to deliver what is received, and when to end; None: immediately, and never.
    """

    def __init__(
        self,
        session: Session,
        grants: GrantStream,
        feed: str,
        topics: Iterable[TopicEntry],
        sockets: SharedSockets,
        *,
        start: Start,
        cursor: Cursor | None = None,
        kind: type[M] | None = None,
        on_event: Callable[[Event], object] | None = None,
        lag_policy: LagPolicy | None = None,
        loss_folder: Path | None = None,
        playback: Playback | None = None,
        where: Mapping[str, Any] | None = None,
        verify: VerifyMode = "alarm",
        transport: Transport = "auto",
        merger_config: MergerConfig | None = None,
        grant_timeout_s: float = 10.0,
    ) -> None:
        self._session, self._grants, self._sockets = session, grants, sockets
        self._request = feed, tuple(topics), grant_timeout_s
        super().__init__(kind, on_event or log_event, cursor, lag_policy or LagPolicy())
        self._start, self._playback, self._where = start, playback, where or {}
        self._loss_folder = loss_folder or state_folder() / "losses"
        self._verify: VerifyMode = verify
        self._transport: Transport = transport
        self._merger_config = merger_config
        self.counters = CounterSet()
        self._is_stopping = self._is_disposed = False
        self._opening_lock, self._loop_lock = threading.Lock(), threading.Lock()
        self._loop_thread: int | None = None
        self._opened: Loop | None = None
        self._ahead: ReadAhead | None = None

    def open(self) -> None:
        """Subscribe, and join the adapters' streams. Idempotent; everything that needs it calls it.

        Raises:
            ClientError: as `Client.subscribe` lists them.
        """
        with self._opening_lock:
            if self._opened is None and not self._is_stopping:
                try:
                    self._opened = self._open()
                    if self.lag_policy.reads_ahead:
                        self._ahead = ReadAhead(self._poll_ahead, self._opened.stop, self.lag_policy)
                except BaseException:
                    if self.cursor is not None:
                        self.cursor.close()
                    raise

    def _open(self) -> Loop:
        if self.cursor is not None:
            self.cursor.open()
        feed, topics, grant_timeout_s = self._request
        letters = Letters()
        unicast_key = b"" if self._transport == "multicast" else self._sockets.keys.public
        try:
            self._id, grant = self._grants.subscribe(feed, topics, letters.grants.put, grant_timeout_s, unicast_key)
        except BaseException:
            letters.mailbox.close()
            raise

        def channels(request_replay: Callable[[RequestReplay], None]) -> Channels:
            if self.cursor is not None:
                self.cursor.check_feed(grant.feed_name)
            values = self._last_values(grant)
            beginnings, shortened = locate(self._session, grant, dict(self._wanted(grant, values)))
            made = Channels(
                grant,
                self.counters,
                request_replay,
                start=self._start,
                beginnings=beginnings,
                where=self._where,
                snapshot_by=self.lag_policy.conflate_by if self._start == "snapshot" else "",
                last_values=values,
                cursor=self.cursor,
                verify=self._verify,
                merger_config=self._merger_config,
            )
            if self._start == "snapshot" or self.lag_policy.on_lag == "conflate":
                check_key(self.lag_policy.conflate_by, made.decoder)
            made.ready += shortened
            return made

        try:
            self._report = LossReport(self._loss_folder, grant.feed_name)
            return Loop(
                self._session,
                letters,
                self.counters,
                self._report,
                channels,
                self._sockets,
                self._transport,
                reports_lag=not self.lag_policy.reads_ahead,
            )
        except BaseException:
            self._grants.cancel(self._id)
            raise

    def _last_values(self, grant: Grant) -> dict[int, LastValues]:
        """With what a snapshot begins. A filter that may hide the last message of a key needs the history instead, and
        so do confirmation by two adapters and an end."""
        key = self.lag_policy.conflate_by
        filtered = {*self._where, *(each.field for each in grant.symbols_by_channel.values())}
        is_confirmed = self._merger_config is not None and self._merger_config.confirm > 1
        if self._start != "snapshot" or filtered - {key} or is_confirmed or self._playback is not None:
            return {}
        return last_values(self._session, grant, self._beginning(grant), key)

    def _wanted(self, grant: Grant, values: Container[int]) -> Iterator[tuple[int, Wanted]]:
        """The channels of which adapters are asked where to begin. Args: values: the channels that begin with them."""
        at_ns = time_of(self._start)
        for channel_id in self._beginning(grant):
            topic = grant.topics_by_channel[channel_id]
            if at_ns is not None and channel_id not in values:
                is_snapshot = self._start == "snapshot"
                yield channel_id, Wanted(grant.session if is_snapshot else 0, at_ns, only_session=is_snapshot)
            session = session_of(self._start, topic)
            if session > grant.session:
                raise HistoryUnavailable(f"session {session} of {topic} has not begun; this is {grant.session}")
            if 0 < session < grant.session:
                yield channel_id, Wanted(session, message_seq=first_message_of(self._start, topic) or 0)
        for channel_id, topic in grant.topics_by_channel.items():
            position = None if self.cursor is None else self.cursor.position(topic)
            if position is not None and position.next_input_seq and position.session < grant.session:
                yield channel_id, Wanted(position.session, point=position.resume_point)

    def _beginning(self, grant: Grant) -> list[int]:
        """The channels of which the cursor has nothing."""
        known = self.cursor.topics if self.cursor is not None else ()
        return [channel_id for channel_id, topic in grant.topics_by_channel.items() if topic not in known]

    @property
    def _loop(self) -> Loop:
        assert self._opened is not None, "the subscription has not begun"
        return self._opened

    # ---- for the application ----

    @property
    def grant(self) -> Grant:
        """The present grant."""
        return self._loop.channels.grant

    @property
    def decoder(self) -> Decoder:
        """The decoder for the feed's message model."""
        return self._loop.channels.decoder

    def topic_of(self, channel_id: int) -> str:
        """The topic of a channel, also of one that is not granted any more."""
        return self._loop.channels.topics[channel_id]

    @property
    def is_closed(self) -> bool:
        """True once `stop` or `close` was called, or the grant was revoked."""
        return self._is_stopping

    @property
    def has_ended(self) -> bool:
        """True once every channel has delivered the `Ended` event of its present session."""
        return self._loop.channels.have_ended

    @property
    def classes(self) -> MessageClasses:
        """The classes of the feed's messages."""
        return self.decoder.classes

    def poll_unhandled(self, timeout_s: float | None = None) -> list[Item]:
        """As `poll`, for those who report themselves what was handled."""
        self.open()
        if self._playback is not None:
            items = self._play(self._playback, timeout_s)
        elif self._ahead is None:
            items = self._poll_loop(timeout_s)
            self._is_stopping |= self._is_disposed
        else:
            items = [] if self._is_stopping else self._ahead.take(timeout_s)
            self._is_stopping |= self._ahead.is_over
            self._report_dropped(items)
        return items

    def _play(self, playback: Playback, timeout_s: float | None) -> list[Item]:
        """The items that are due; receives more only when none waits."""
        give_up_at_ns = None if timeout_s is None else time.monotonic_ns() + int(timeout_s * 1e9)
        while not self._is_stopping:
            now_ns = time.monotonic_ns()
            if due := playback.take(now_ns):
                return due
            if playback.is_over:
                self.stop()
                self._poll_loop(0)  # closes it
            elif (due_at_ns := playback.next_due_ns(now_ns)) is not None:
                time.sleep(min(due_at_ns - now_ns, PLAYBACK_STEP_NS) / 1e9)
            else:
                items = self._poll_loop(PLAYBACK_STEP_NS / 1e9)
                channels = self._loop.channels
                playback.put(items, channels.grant.topics_by_channel, is_live=channels.are_live, unix_ns=time.time_ns())
                self._is_stopping |= self._is_disposed and not items
            if give_up_at_ns is not None and now_ns >= give_up_at_ns:
                break
        return []

    def _report_dropped(self, items: list[Item]) -> None:
        watch = LossWatch(lambda: self.grant)
        for item in items:
            if isinstance(item, Dropped):
                watch.on_event(item)
        if watch.found and (failed := self._report.write(watch.take())) is not None:
            items.append(failed)

    def _poll_loop(self, timeout_s: float | None) -> list[Item]:
        if not self._loop_lock.acquire(blocking=False):
            raise RuntimeError("another thread is polling this subscription; poll it from one thread at a time")
        self._loop_thread = threading.get_ident()
        try:
            return [] if self._is_stopping else self._loop.poll(timeout_s)
        finally:
            self._loop_thread = None
            if self._is_stopping or self._loop.is_over:
                self._dispose()
            self._loop_lock.release()

    def _poll_ahead(self) -> list[Item] | None:
        items = self._poll_loop(None)
        return items if items or not self._is_disposed else None

    def stop(self) -> None:
        """End the loop: `poll` returns immediately. Never blocks; safe to call from any thread or signal handler."""
        self._is_stopping = True
        if self._opened is not None:
            self._opened.stop()

    def close(self) -> None:
        """Stop, leave the groups, end the background threads. Safe to call from any thread; idempotent."""
        self.stop()
        if self._loop_thread == threading.get_ident():
            return  # called inside poll, which disposes when it returns
        with self._opening_lock, self._loop_lock:
            self._dispose()
            if self.cursor is not None:
                self.cursor.close()
        if self._ahead is not None:
            self._ahead.join()

    def modify(self, add: Sequence[str] = (), remove: Sequence[str] = (), *, timeout_s: float = 10.0) -> None:
        """Add and remove topics, and wait until the administration server has accepted the change.

        `ChannelsChanged` then marks the place in the stream. Channels that stay miss and repeat nothing; added channels
        begin live. May be called from any thread.

        Args:
            add: topics, or patterns with `*` and `#`.
            remove: the same; it is applied first.
            timeout_s: how many seconds to wait for a server and its answer.

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
        loop, granted = self._loop, self.grant.groups
        return SubscriptionStatistics(
            datagrams=loop.inbox.datagram_count,
            replayed_packets=loop.replayed_count,
            counts={counter.name.lower(): count for counter, count in self.counters.counts.items() if count},
            refusals={reason.value: count for reason, count in self.counters.refusals.items() if count},
            channels=loop.channels.statistics(),
            groups=tuple(group for group in loop.sockets.groups if group in granted),
            unicast_endpoints=loop.sockets.unicast_endpoints,
            active_adapter_id=self.grant.active_adapter_id,
            lag=self._lag(),
        )

    def _lag(self) -> Lag:
        if self._ahead is not None:
            return self._ahead.lag()
        channels, age_ns = self._loop.channels, self._loop.queues.age_ns(time.monotonic_ns())
        return Lag(channels.missing_count, age_ns)

    def _dispose(self) -> None:
        if self._opened is None or self._is_disposed:
            return
        self._is_disposed = True
        self._grants.cancel(self._id)
        self._opened.close()
        self._report.close()
