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

from tandemfeed.client_lib.errors import ThreadFailed
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
from tandemfeed.feedcore.pause_free_clock import LOOK_EVERY_NS, PauseFreeClock

MAILBOX_COUNT_MAX = 256
MOMENT_MS = 20  # after a pause, libzmq's thread and those of calls have passed on what had arrived


class Letters:
    """What the background threads send to a loop. It exists before the loop, which needs a grant first.

    Attributes:
        failure: of one of these threads.
    """

    def __init__(self) -> None:
        self.mailbox: Mailbox[Replayed | ReplayEnded] = Mailbox(MAILBOX_COUNT_MAX)
        self.grants = GrantBox(self.mailbox.wake)
        self.failure: tuple[str, BaseException] | None = None

    def fail(self, name: str, failure: BaseException) -> None:
        """A thread has ended with this error: every later poll raises it."""
        self.failure = self.failure or (name, failure)
        self.mailbox.wake()

    def check(self) -> None:
        """Raises: ThreadFailed: a thread has ended with an error."""
        if self.failure is not None:
            name, failure = self.failure
            raise ThreadFailed(f"thread {name} ended with an unexpected error: {failure!r}") from failure


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
        # When the last turn was, by the monotonic clock and by that of the channels; whether it must be finished.
        self._turn_at_ns = self._now_ns = time.monotonic_ns()
        self._is_turn_open = False
        self._shared = shared
        self.inbox = Inbox(shared.receive_queue_count_max, self._mailbox.fd, self._mailbox.wake)
        self._replay = ReplayWorker(session, self._mailbox.put, letters.fail)
        try:
            self.channels = channels_of(self._replay.request)
            self.channels.clock = self._clock = PauseFreeClock(self._turn_at_ns)
            self._set_adapters(self.channels.grant)
            self.sockets = shared.join(self.inbox, self.channels.grant, transport)
        except BaseException:
            self._end_threads()
            raise

    @property
    def feed(self) -> str:
        """The feed's name."""
        return self.channels.grant.feed_name

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

        Raises:
            ThreadFailed: a background thread has ended with an error.
        """
        self._letters.check()
        give_up_at_ns = None if timeout_s is None else time.monotonic_ns() + int(timeout_s * 1e9)
        ready = self.channels.ready
        if self._is_turn_open:
            self._finish_turn()
        while not ready and not self.is_over:
            self._receive(self._wait_ms(give_up_at_ns))
            self._letters.check()
            self._take_arrivals(missed_nothing=self._missed_nothing())
            if ready:
                break
            self._finish_turn()
            if give_up_at_ns is not None and self._turn_at_ns >= give_up_at_ns:
                break
        items = list(ready)
        ready.clear()
        return items

    def _wait_ms(self, give_up_at_ns: int | None) -> int:
        """How long to wait for arrivals and letters; -1: without a limit. While something can become due, not for long,
        so that a pause of this process is noticed as one."""
        now_ns, due_ns = time.monotonic_ns(), self.channels.next_deadline_ns()
        if due_ns is not None:
            due_ns = self._clock.monotonic_ns(due_ns)
        wake_at_ns = earliest(due_ns, self.sockets.deadline_ns)
        if wake_at_ns is not None:
            wake_at_ns = min(wake_at_ns, now_ns + LOOK_EVERY_NS)
        wake_at_ns = earliest(wake_at_ns, give_up_at_ns)
        return -1 if wake_at_ns is None else max(0, -(-(wake_at_ns - now_ns) // 1_000_000))

    def _receive(self, wait_ms: int) -> None:
        if self.sockets.wait(self.inbox, wait_ms):
            self._read_letters()

    def _missed_nothing(self) -> bool:
        """True if nothing arrived during a pause of this process, nor does a moment later."""
        if self.inbox or self.channels.ready or not self._clock.was_paused(time.monotonic_ns()):
            return False
        self._receive(MOMENT_MS)
        return not (self.inbox or self.channels.ready or self._mailbox)

    def _take_arrivals(self, *, missed_nothing: bool) -> None:
        """Take a portion of the inbox."""
        inbox, on_opened = self.inbox, self.channels.on_opened
        for _ in range(min(len(inbox), self.sockets.turn_count_max)):
            arrival = inbox.take()
            if isinstance(arrival, UnicastChosen):
                self.channels.ready.append(arrival)
                continue
            on_opened(arrival[0], arrival)
        for reason, count in inbox.take_refused().items():
            self._counters.refusals[reason] += count
        self._counters.counts[Counter.INBOX_DROPPED] = inbox.dropped_count
        self._turn_at_ns, self._is_turn_open = time.monotonic_ns(), True
        self._now_ns = self._clock.look(self._turn_at_ns, missed_nothing=missed_nothing)

    def _finish_turn(self) -> None:
        """Do what was due at the time of the turn, and look for lag. Not what is due now: after a long pause of the
        application, a stream whose datagrams wait in a queue is not silent."""
        self._is_turn_open = False
        at_ns, channels = self._turn_at_ns, self.channels
        lag = self.queues.on_turn(has_more=len(self.inbox) > 0 or self.sockets.has_more, now_ns=at_ns)
        if lag is not None and self._reports_lag:
            channels.ready.append(lag)
        channels.losses.is_behind = self.queues.has_lagged(at_ns)
        due_ns = channels.next_deadline_ns()
        if due_ns is not None and self._now_ns >= due_ns:
            channels.on_timer(self._now_ns)
        self.sockets.on_timer(at_ns)
        if self._last_item is not None:  # after everything else of this turn
            channels.ready.append(self._last_item)
            self._last_item, self.is_over = None, True
        self._report_losses()

    def _report_losses(self) -> None:
        losses = self.channels.losses
        if losses.found and (event := self._report.write(losses.take())) is not None:
            self.channels.ready.append(event)

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
