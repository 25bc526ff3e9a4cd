"""One subscription as its application holds it: opened when it is first used, polled, modified, closed.

The work is in `Loop` (threads, what the shared sockets receive) and `Channels` (trust, merge); how an application reads
it is in `Readable`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tandemfeed.client_lib.errors import HistoryUnavailable
from tandemfeed.client_lib.items import Event, Item
from tandemfeed.client_lib.login.grant import Grant
from tandemfeed.client_lib.login.grant_stream import GrantStream
from tandemfeed.client_lib.login.session import Session
from tandemfeed.client_lib.losses.loss_report import LossReport
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.client_lib.messages.message import MessageClasses
from tandemfeed.client_lib.own_process import check_may_connect
from tandemfeed.client_lib.reading.conflation import check_key
from tandemfeed.client_lib.reading.cursor import Cursor
from tandemfeed.client_lib.reading.event_log import log_event
from tandemfeed.client_lib.reading.lag import LagPolicy
from tandemfeed.client_lib.reading.reading import M, Readable
from tandemfeed.client_lib.replay.last_values import LastValues, last_values
from tandemfeed.client_lib.replay.locating import Wanted, locate
from tandemfeed.client_lib.replay.playback import Playback
from tandemfeed.client_lib.state_folder import state_folder
from tandemfeed.client_lib.stream.channels import Channels
from tandemfeed.client_lib.stream.loop import Letters, Loop
from tandemfeed.client_lib.stream.open_subscription import OpenSubscription, close_when_dropped
from tandemfeed.client_lib.stream.sockets.shared_sockets import SharedSockets
from tandemfeed.client_lib.stream.sockets.transport_choice import Transport
from tandemfeed.client_lib.stream.starts import Start, first_message_of, session_of, time_of
from tandemfeed.client_lib.stream.statistics import SubscriptionStatistics
from tandemfeed.client_lib.stream.trust.stream_trust import VerifyMode
from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import RequestReplay
from tandemfeed.feedcore.topics import TopicEntry


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
        self._is_ending = False
        self._opening_lock = threading.Lock()
        self._opened: OpenSubscription | None = None

    def open(self) -> None:
        """Subscribe, and join the adapters' streams. Idempotent; everything that needs it calls it.

        Raises:
            ClientError: as `Client.subscribe` lists them.
        """
        self.process.check()
        with self._opening_lock:
            if self._opened is None and not self._is_ending:
                check_may_connect()
                try:
                    self._opened = self._open()
                except BaseException:
                    if self.cursor is not None:
                        self.cursor.close()
                    raise
                self._finaliser = close_when_dropped(self, self._opened)
        if self._source.is_ended and self._opened is not None:  # stopped meanwhile
            self._opened.stop()

    def _open(self) -> OpenSubscription:
        if self.cursor is not None:
            self.cursor.open()
        feed, topics, grant_timeout_s = self._request
        letters = Letters()
        unicast_key = b"" if self._transport == "multicast" else self._sockets.keys.public
        try:
            self._id, grant = self._grants.subscribe(
                feed, topics, letters.grants.put, grant_timeout_s, unicast_key, fail=letters.fail
            )
        except BaseException:
            letters.mailbox.close()
            raise
        cancel = partial(self._grants.cancel, self._id)
        try:
            report = LossReport(self._loss_folder, grant.feed_name)
            loop = Loop(
                self._session,
                letters,
                self.counters,
                report,
                partial(self._channels, grant),
                self._sockets,
                self._transport,
                reports_lag=not self.lag_policy.reads_ahead,
            )
            return OpenSubscription(loop, report, self.cursor, cancel, self.lag_policy, self._playback)
        except BaseException:
            cancel()
            raise

    def _channels(self, grant: Grant, request_replay: Callable[[RequestReplay], None]) -> Channels:
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
        self.process.check()
        assert self._opened is not None, "the subscription has not begun"
        return self._opened.loop

    @property
    def _is_disposed(self) -> bool:
        return self._opened is not None and self._opened.is_closed

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
        return self._is_ending or (self._opened is not None and self._opened.is_stopping)

    @property
    def has_ended(self) -> bool:
        """True once every channel has delivered the `Ended` event of its present session."""
        return self._loop.channels.have_ended

    @property
    def classes(self) -> MessageClasses:
        """The classes of the feed's messages."""
        return self.decoder.classes

    def open_items(self) -> OpenSubscription | None:
        """Open it, and return what is polled then; None: it was stopped before."""
        self.open()
        return self._opened

    def poll_unhandled(self, timeout_s: float | None = None) -> list[Item]:
        """As `poll`, for those who report themselves what was handled."""
        opened = self.open_items()
        return [] if opened is None else opened.poll(timeout_s)

    def stop(self) -> None:
        """End the subscription: `poll` returns immediately, and no reading gives anything more. Never blocks; safe to
        call from any thread or signal handler."""
        if not self.process.is_inherited:
            self._source.is_ended = self._is_ending = True
            if self._opened is not None:
                self._opened.stop()

    def close(self) -> None:
        """Stop, leave the groups, end the background threads. Safe to call from any thread; idempotent."""
        if self.process.is_inherited:  # nothing of it belongs to this process
            return
        self.stop()
        self._source.end_thread()
        with self._opening_lock:
            if self._opened is not None:
                if not self._opened.close():
                    return
                self._finaliser.detach()
            if self.cursor is not None:
                self.cursor.close()

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
        assert self._opened is not None
        return SubscriptionStatistics(
            datagrams=loop.inbox.datagram_count,
            replayed_packets=loop.replayed_count,
            counts={counter.name.lower(): count for counter, count in self.counters.counts.items() if count},
            refusals={reason.value: count for reason, count in self.counters.refusals.items() if count},
            channels=loop.channels.statistics(),
            groups=tuple(group for group in loop.sockets.groups if group in granted),
            unicast_endpoints=loop.sockets.unicast_endpoints,
            active_adapter_id=self.grant.active_adapter_id,
            lag=self._opened.lag(),
        )
