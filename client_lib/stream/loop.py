"""The loop of one subscription: its inbox, letters of the background threads, and the timer of its `Channels`.

The loop runs in the thread that polls; no other thread handles messages. Other threads (replay, grant, and one that
receives if several subscriptions share sockets) reach it only through the inbox and the mailbox. It is deliberately
dull: it has no sequence arithmetic. A turn hands over its messages before it does anything else, so the rest of the
turn (timers, lag, losses) takes none of their time.

All queues are bounded: datagrams in ZeroMQ's queue of each receiver and in the inbox (`receive_queue_count_max`; replay
fills the loss after an overflow), letters in the mailbox (MAILBOX_COUNT_MAX; replay slows down), early packets in the
merger (`MergerConfig.held_count_max`), and the result of a `poll` by `FeedSockets.turn_count_max` datagrams.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tandemfeed.client_lib.items import Item, Revoked
from tandemfeed.client_lib.login.grant import Grant
from tandemfeed.client_lib.login.session import Session
from tandemfeed.client_lib.losses.loss_report import LossReport
from tandemfeed.client_lib.reading.lag import QueueWatch
from tandemfeed.client_lib.replay.worker import Replayed, ReplayEnded, ReplayWorker
from tandemfeed.client_lib.stream.channels import Channels
from tandemfeed.client_lib.stream.grant_box import GrantBox
from tandemfeed.client_lib.stream.mailbox import Mailbox
from tandemfeed.client_lib.stream.sockets.inbox import Inbox
from tandemfeed.client_lib.stream.sockets.shared_sockets import SharedSockets
from tandemfeed.client_lib.stream.sockets.transport_choice import Transport, UnicastChosen
from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.deadlines import earliest
from tandemfeed.feedcore.merge.effects import RequestReplay

MAILBOX_COUNT_MAX = 256


class Letters:
    """What the background threads send to a loop. It exists before the loop, which needs a grant first."""

    def __init__(self) -> None:
        self.mailbox: Mailbox[Replayed | ReplayEnded] = Mailbox(MAILBOX_COUNT_MAX)
        self.grants = GrantBox(self.mailbox.wake)


class Loop:
    """Made, polled and closed by one thread at a time.

    Args:
        counters: count what the shared sockets refused or the inbox dropped.
        report: takes the losses that the channels notice.
        channels_of: makes the channels, which call the given function for replays.
        shared: the client's sockets.
        reports_lag: deliver events when messages wait for long.

    Attributes:
        channels: what the loop feeds.
        inbox: what it takes.
        sockets: those of the feed.
        queues: whether messages have waited for long.
        is_over: nothing more will come.
    """

    def __init__(
        self,
        session: Session,
        letters: Letters,
        counters: CounterSet,
        report: LossReport,
        channels_of: Callable[[Callable[[RequestReplay], None]], Channels],
        shared: SharedSockets,
        transport: Transport,
        *,
        reports_lag: bool,
    ) -> None:
        self._letters, self._report, self._counters = letters, report, counters
        self._mailbox, self.is_over = letters.mailbox, False
        self.replayed_count = 0
        self.queues, self._reports_lag = QueueWatch(), reports_lag
        self._last_item: Revoked | None = None
        self._turn_at_ns, self._is_turn_open = time.monotonic_ns(), False  # when the last turn was; must be finished
        self._shared = shared
        self.inbox = Inbox(shared.receive_queue_count_max, self._mailbox.fd, self._mailbox.wake)
        self._replay = ReplayWorker(session, self._mailbox.put)
        try:
            self.channels = channels_of(self._replay.request)
            self._set_adapters(self.channels.grant)
            self.sockets = shared.join(self.inbox, self.channels.grant, transport)
        except BaseException:
            self._end_threads()
            raise

    def stop(self) -> None:
        """Make `poll` return. Any thread or signal handler may call this."""
        self.is_over = True
        self._mailbox.wake()

    def close(self) -> None:
        """Leave the sockets and end the background threads."""
        self._shared.leave(self.inbox, self.sockets)
        self._report_losses()
        self._end_threads()

    def poll(self, timeout_s: float | None) -> list[Item]:
        """Run until there are items, the time-out has passed or the loop is over.

        Messages are returned as soon as they are there; the next call begins with the rest of their turn.
        """
        give_up_at_ns = None if timeout_s is None else time.monotonic_ns() + int(timeout_s * 1e9)
        channels, ready, sockets = self.channels, self.channels.ready, self.sockets
        if self._is_turn_open:
            self._finish_turn()
        while not ready and not self.is_over:
            wake_at_ns = earliest(channels.next_deadline_ns(), sockets.deadline_ns, give_up_at_ns)
            wait_ms = -1 if wake_at_ns is None else max(0, -(-(wake_at_ns - time.monotonic_ns()) // 1_000_000))
            if sockets.wait(self.inbox, wait_ms):
                self._read_letters()
            self._take_arrivals()
            if ready:
                break
            self._finish_turn()
            if give_up_at_ns is not None and self._turn_at_ns >= give_up_at_ns:
                break
        items = list(ready)
        ready.clear()
        return items

    def _take_arrivals(self) -> None:
        """Take a portion of the inbox."""
        inbox, on_opened, heard = self.inbox, self.channels.on_opened, ""
        for _ in range(min(len(inbox), self.sockets.turn_count_max)):
            arrival = inbox.take()
            if isinstance(arrival, UnicastChosen):
                self.channels.ready.append(arrival)
                continue
            opened, group, sender = arrival
            if on_opened(opened, sender) and group and group != heard:
                heard = group
                self.sockets.on_heard(group, time.monotonic_ns())
        for reason, count in inbox.take_refused().items():
            self._counters.refusals[reason] += count
        self._counters.counts[Counter.INBOX_DROPPED] = inbox.dropped_count
        self._turn_at_ns, self._is_turn_open = time.monotonic_ns(), True

    def _finish_turn(self) -> None:
        """Do what was due at the time of the turn, and look for lag. Not what is due now: after a long pause of the
        application, a stream whose datagrams wait in a queue is not silent."""
        self._is_turn_open = False
        now_ns, channels, sockets = self._turn_at_ns, self.channels, self.sockets
        lag = self.queues.on_turn(has_more=len(self.inbox) > 0 or sockets.has_more, now_ns=now_ns)
        if lag is not None and self._reports_lag:
            channels.ready.append(lag)
        channels.losses.is_behind = self.queues.has_lagged(now_ns)
        deadline_ns = earliest(channels.next_deadline_ns(), sockets.deadline_ns)
        if deadline_ns is not None and now_ns >= deadline_ns:
            channels.on_timer(now_ns)
            sockets.on_timer(now_ns)
        if self._last_item is not None:  # after everything else of this turn
            channels.ready.append(self._last_item)
            self._last_item, self.is_over = None, True
        self._report_losses()

    def _report_losses(self) -> None:
        losses = self.channels.losses
        if losses.found and (failed := self._report.write(losses.take())) is not None:
            self.channels.ready.append(failed)

    def _read_letters(self) -> None:
        self._mailbox.acknowledge()
        self._take_grant()
        letter = self._mailbox.take()
        if letter is None:
            return
        self._mailbox.wake()  # one letter a turn, so that a long replay does not starve the live stream
        if isinstance(letter, ReplayEnded):
            self._replay.ended(letter.request.channel_id)
            self.channels.on_replay_ended(letter.request, is_answered=letter.is_answered)
            return
        self.replayed_count += letter.packet_count
        self.channels.on_replayed(letter)

    def _take_grant(self) -> None:
        revoked, grant = self._letters.grants.take()
        if revoked is not None:
            item = Revoked(revoked.reason, revoked.topics, revoked.is_last)
            if revoked.is_last:
                self._last_item = item
            else:
                self.channels.ready.append(item)
                self.channels.revoke(revoked.topics)
        if grant is not None and self._last_item is None:
            self.channels.change(grant)
            self._set_adapters(grant)
            self.sockets.apply(self.inbox, grant)

    def _set_adapters(self, grant: Grant) -> None:
        self._replay.set_adapters(tuple(grant.adapters[adapter_id] for adapter_id in sorted(grant.adapters)))

    def _end_threads(self) -> None:
        self._mailbox.close()
        self._replay.close()
