"""One channel of a live subscription: a thread that keeps what Spark has not committed, in order.

The thread stops polling while the buffer is full; the client library then requests what it missed from the adapters'
replay services. Invariants: the entries have every message after the position with which the feed began; however the
thread ends, unless by `close`, the query fails.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from tandemfeed.client_lib.errors import ClientError
from tandemfeed.client_lib.items import Batch, Item, Revoked
from tandemfeed.client_lib.messages.message import Message
from tandemfeed.client_lib.stream.subscription import Subscription
from tandemfeed.feedcore.merge.effects import Ended, Gap, ProvisionalGap, SessionChanged, Takeover
from tandemfeed.runtime.threads import start_thread
from tandemfeed.spark_feed.spark.errors import TableError
from tandemfeed.spark_feed.spark.live.positions import Position

LOG = logging.getLogger(__name__)
BUFFER_MESSAGES_MAX = 2_000_000  # some 150 MB
POLL_S = 0.5
START_TIMEOUT_S = 30.0


class Entry(NamedTuple):
    """A batch of messages, or a place without any, and the position after it."""

    batch: Batch | None
    after: Position


class ChannelFeed:
    """The buffer of a channel, and the thread that fills it.

    Args:
        subscribe: subscribes to the channel, from a `message_seq` or live.
        position: where to begin; None: live.
        may_lose: continue after messages that no adapter has.

    Raises:
        TableError: the stream cannot be continued from the position; ClientError: of the client library.
    """

    def __init__(
        self,
        channel_id: int,
        subscribe: Callable[[int | None], Subscription[Message]],
        position: Position | None,
        *,
        may_lose: bool,
    ) -> None:
        self.channel_id, self._may_lose = channel_id, may_lose
        self._entries: deque[Entry] = deque()
        self._message_count = 0
        self._failure = ""
        self._condition = threading.Condition()
        self._is_closed = False
        self._target: Position | None = None
        self._has_passed_target = False
        self._subscription, early = self._start(subscribe, position)
        self.message_model = self._subscription.grant.message_model
        try:
            self._take(early)
            self._thread = start_thread(self._run, f"tandemfeed-channel-{channel_id}", self._on_failure)
        except BaseException:
            self._subscription.close()
            raise

    @property
    def begin(self) -> Position:
        """Where the feed began."""
        return self._begin

    @property
    def latest(self) -> Position:
        """The position after the newest entry."""
        with self._condition:
            return self._entries[-1].after if self._entries else self._newest

    def entries(self) -> list[Entry]:
        """What has not been forgotten.

        Raises:
            TableError: the stream cannot continue.
        """
        with self._condition:
            if self._failure:
                raise TableError(self._failure)
            return list(self._entries)

    def wait_until_reached(self, position: Position, timeout_s: float) -> bool:
        """Wait until the entries reach a position, or the stream fails."""
        return self._wait(lambda: bool(self._failure) or self.latest.has_reached(position), timeout_s)

    def end_at(self, target: Position) -> None:
        """Note where the query ends. Messages that are not granted make no entries, so none may reach the end."""
        with self._condition:
            self._target = target

    def wait_for_more(self, position: Position, timeout_s: float) -> bool:
        """Wait until there is an entry after a position, the target is passed, or the stream fails."""

        def is_more() -> bool:
            has_entry = any(not position.has_reached(entry.after) for entry in self._entries)
            return has_entry or self._has_passed_target or bool(self._failure)

        return self._wait(is_more, timeout_s)

    def forget(self, position: Position) -> None:
        """Drop the entries that are before a position."""
        with self._condition:
            while self._entries and position.has_reached(self._entries[0].after):
                entry = self._entries.popleft()
                self._message_count -= entry.batch.message_count if entry.batch is not None else 0
            self._condition.notify_all()

    def close(self) -> None:
        """End the thread and the subscription."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
        self._subscription.stop()
        self._thread.join()
        self._subscription.close()

    # ---- where to begin ----

    def _start(
        self, subscribe: Callable[[int | None], Subscription[Message]], position: Position | None
    ) -> tuple[Subscription[Message], list[Item]]:
        """The subscription from the position, and the items that it has delivered so far."""
        wanted = position.message_seq if position is not None else None
        while True:
            subscription = subscribe(wanted)
            try:
                session = subscription.grant.session
                if position is not None and session != position.session:
                    self._check_session_over(position, session)
                    if wanted != 1:
                        subscription.close()
                        position, wanted = Position(session, 0, 1), 1
                        continue
                items = self._await_history(subscription)
                channel = subscription.statistics().channels[self.channel_id]
                needed = position.first_needed(channel.epoch_starts) if position is not None else None
                if needed is not None and wanted is not None and needed < wanted:
                    subscription.close()
                    wanted = needed
                    continue
            except BaseException:
                subscription.close()
                raise
            if position is None:
                first = channel.next_message_seq or 1
                position = Position(channel.session, channel.epoch, first, dict(channel.next_source_seqs))
                if items_begin := next((item for item in items if isinstance(item, Batch)), None):
                    position = replace(position, message_seq=items_begin.first_message_seq, next_source_seqs={})
            self._begin = self._newest = position
            return subscription, items

    def _await_history(self, subscription: Subscription[Message]) -> list[Item]:
        """Poll until the stream's epochs are known; returns the items delivered meanwhile."""
        items: list[Item] = []
        polls_left = int(START_TIMEOUT_S / POLL_S)
        while True:
            channel = subscription.statistics().channels.get(self.channel_id)
            if channel is None or not polls_left:
                raise TableError(
                    f"channel {self.channel_id}: no adapter was heard within {START_TIMEOUT_S:g} s: check that an "
                    "adapter is active (`tandemfeed admin status`), and options 'interface' and 'transport'"
                )
            if channel.epoch and channel.next_message_seq is not None:
                return items
            items += subscription.poll(POLL_S)
            polls_left -= 1

    def _check_session_over(self, position: Position, session: int) -> None:
        if not (position.is_ended or self._may_lose):
            raise TableError(
                f"channel {self.channel_id}: the query stopped in session {position.session}, before its end, and the "
                f"feed is in session {session}: read the rest of that session from a journal "
                "(format 'tandemfeed.journal'), and set option 'failOnDataLoss' to 'false' or give a new checkpoint"
            )

    def _wait(self, is_met: Callable[[], bool], timeout_s: float) -> bool:
        """Wait in steps. A step counts as no more than it was to take: a pause of this process uses no patience up."""
        with self._condition:
            for _ in range(max(1, round(timeout_s / POLL_S))):
                if self._condition.wait_for(is_met, POLL_S):
                    return True
        return False

    # ---- the thread ----

    def _run(self) -> None:
        while not self._subscription.is_closed and not self._failure:
            self._take(self._subscription.poll(POLL_S))
            self._look_for_target()
            with self._condition:
                self._condition.wait_for(lambda: self._is_closed or self._message_count < BUFFER_MESSAGES_MAX)
        if not self._is_closed:
            self._fail(f"channel {self.channel_id}: the subscription has ended; start the query again")

    def _on_failure(self, _name: str, error: BaseException) -> None:
        if isinstance(error, ClientError):
            self._fail(str(error))
            return
        LOG.error("the thread of channel %d failed", self.channel_id, exc_info=error)
        what = f"{type(error).__name__}: {error}"
        self._fail(f"channel {self.channel_id}: reading failed unexpectedly ({what}); start the query again")

    def _look_for_target(self) -> None:
        if self._target is None or self._has_passed_target:
            return
        channel = self._subscription.statistics().channels.get(self.channel_id)
        if channel is not None and channel.next_message_seq is not None:
            now = Position(channel.session, channel.epoch, channel.next_message_seq)
            with self._condition:
                self._has_passed_target = now.is_numbered_from(self._target)
                self._condition.notify_all()

    def _take(self, items: list[Item]) -> None:
        with self._condition:
            for item in items:
                self._take_item(item)
            self._condition.notify_all()

    def _take_item(self, item: Item) -> None:
        now = self._newest
        if isinstance(item, Batch):
            self._append(item, _after(now, item))
        elif isinstance(item, Ended):
            self._append(None, replace(now, is_ended=True))
        elif isinstance(item, SessionChanged):
            self._append(None, Position(item.new_session, 0, 1))
        elif isinstance(item, Revoked):
            self._fail(f"channel {self.channel_id} is no longer granted: {item.reason}")
        elif isinstance(item, Takeover) and now is self._begin and item.first_message_seq < now.message_seq:
            self._fail(f"channel {self.channel_id}: a takeover while the stream began: start the query again")
        elif isinstance(item, Gap | ProvisionalGap) and not self._may_lose:
            self._fail(
                f"channel {self.channel_id}: messages are missing ({item}): read them from a journal, and set option "
                "'failOnDataLoss' to 'false' to continue without them"
            )

    def _append(self, batch: Batch | None, after: Position) -> None:
        self._newest = after
        self._message_count += batch.message_count if batch is not None else 0
        self._entries.append(Entry(batch, after))

    def _fail(self, why: str) -> None:
        with self._condition:
            self._failure = self._failure or why
            self._condition.notify_all()


def _after(before: Position, batch: Batch) -> Position:
    sources = dict(before.next_source_seqs)
    for span in batch.sources():
        sources[span.source_stream_id] = max(sources.get(span.source_stream_id, 0), span.end_source_seq)
    if batch.is_provisional:  # its numbers are its sender's own
        return replace(before, next_source_seqs=sources)
    return Position(batch.packet.session, batch.epoch, batch.end_message_seq, sources)
