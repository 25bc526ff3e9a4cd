"""The sockets of one feed, shared by all subscriptions of a client to this feed, and the way of a datagram: it is
opened once, and put into the inbox of every subscription that has its channel.

One thread at a time holds the sockets. A subscription that is alone uses them itself while it polls, so that no thread
stands between the network and the application. From the second one on, a thread receives for all, so no subscription
waits for another one that is slow, stopped or never polled. A thread that changes the sockets asks for them: `_alone`.

It never decides what to believe or what comes next: that is each subscription's own (`Channels`), because `verify`,
`start` and filters differ.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

import zmq

from tandemfeed.client_lib.errors import ThreadFailed
from tandemfeed.client_lib.login.grant import Grant
from tandemfeed.client_lib.stream.sockets.inbox import Arrival, Inbox
from tandemfeed.client_lib.stream.sockets.receivers import Receiver, Receivers
from tandemfeed.client_lib.stream.sockets.transport_choice import UnicastChosen
from tandemfeed.client_lib.stream.sockets.united_grant import united
from tandemfeed.feedcore.pause_free_clock import LOOK_EVERY_NS, PauseFreeClock
from tandemfeed.feedcore.wire.refusal import PacketRefused
from tandemfeed.runtime.threads import mark_unhealthy, start_thread
from tandemfeed.runtime.zeromq import Context
from tandemfeed.transport.multicast.groups import BadGroup
from tandemfeed.transport.sealing.opening import ReceivedPacket, ReceivedSignature, StreamOpener

# Datagrams per group and turn: 2 to 4 ms of work. A turn in which a late line only repeats what was delivered must be
# short, because on a busy machine it takes four times as long, and nothing is delivered meanwhile.
DRAIN_COUNT_MAX = 32


class FeedSockets:
    """Any thread may call its methods; `join`, `apply`, `on_timer` and `leave` wait while the sockets are in use.

    Args:
        receivers_of: makes the receivers, which have no socket yet.

    Attributes:
        deadline_ns: when to call `on_timer`.
        has_more: the last turn left datagrams in the receive queues.
    """

    def __init__(self, feed_id: int, receivers_of: Callable[[Context], Receivers]) -> None:
        self.deadline_ns: int | None = None
        self.has_more = False
        self._context = Context()
        self._receivers = receivers_of(self._context)
        self._opener = StreamOpener(feed_id)
        self._key_ids: set[int] = set()
        self._grants: dict[Inbox, Grant] = {}  # of the subscriptions, the newest last
        self._readers: dict[int, tuple[Inbox, ...]] = {}  # by channel
        self._listeners: dict[str, tuple[Inbox, ...]] = {}  # by group; by unicast: all
        self._clock = PauseFreeClock(time.monotonic_ns())  # looks when datagrams are received
        self._heard: dict[str, int] = {}  # groups where packets arrived since the last timer, and when, by that clock
        self._thread: threading.Thread | None = None  # that receives for several subscriptions
        self._failure: BaseException | None = None  # which ended it
        self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # of the thread
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._is_taken = self._is_closed = False
        self._was_interrupted = self._is_unfinished = False  # a change: ever; the last one
        self._wake_holder: Callable[[], None] = self._wake_thread
        self._asking_count = 0  # threads that want to change the sockets
        self._waiting_count = 0  # threads that wait for them to be returned

    # ---- subscriptions ----

    @property
    def is_empty(self) -> bool:
        """True if no subscription uses the sockets."""
        return not self._grants

    @property
    def groups(self) -> tuple[str, ...]:
        """The joined multicast groups."""
        return self._receivers.groups

    @property
    def unicast_endpoints(self) -> dict[int, str]:
        """adapter_id -> the address of the unicast connection to it."""
        return self._receivers.unicast_endpoints

    @property
    def turn_count_max(self) -> int:
        """How many arrivals a subscription should handle in one turn."""
        return DRAIN_COUNT_MAX * max(len(self._receivers.polled), 1)

    def join(self, inbox: Inbox, grant: Grant) -> None:
        """Receive for another subscription.

        Raises:
            BadGroup: a group cannot be joined.
        """
        with self._alone():
            for chosen in self._receivers.chosen:  # before it came
                inbox.put_event(chosen)
            self._grants[inbox] = grant
            try:
                self._apply()
            except BaseException:
                del self._grants[inbox]
                self._apply_rest()
                raise
            if len(self._grants) > 1 and self._thread is None:
                self._thread = start_thread(self._run, "tandemfeed-receiver", self._fail)

    def apply(self, inbox: Inbox, grant: Grant) -> None:
        """A subscription has a new grant.

        Raises:
            BadGroup: as for `join`.
        """
        with self._alone():
            others = {other: each for other, each in self._grants.items() if other is not inbox}
            self._grants = {**others, inbox: grant}
            self._apply()

    def leave(self, inbox: Inbox) -> None:
        """Receive no more for a subscription. After the last one, `close` must follow."""
        with self._alone():
            if self._grants.pop(inbox, None) is not None:
                self._apply_rest()

    def close(self) -> None:
        """Leave every group, and end every connection and the thread. No subscription uses the sockets any more.

        If a change was ever interrupted, that may have been while a socket was made. ZeroMQ waits for that socket,
        which the interrupt's traceback may still have, so a thread waits with it, and not the application.
        """
        with self._alone():
            self._is_closed = True
        if self._thread is not None:
            self._thread.join()
        self._receivers.close()
        if self._was_interrupted:
            start_thread(self._context.close, "tandemfeed-zmq-end", mark_unhealthy)
        else:
            self._context.close()
        os.close(self._waker)

    # ---- what a subscription's loop does ----

    def wait(self, inbox: Inbox, wait_ms: int) -> bool:
        """Wait for arrivals and letters, unless the inbox has some. Returns whether the subscription was woken.

        Args:
            wait_ms: the longest wait; -1: without a limit.
        """
        if self._thread is None and self._take(inbox.wake, for_thread=False):
            try:
                return self._receive(inbox.fd, 0 if inbox else wait_ms)
            finally:
                self._give_back()
        inbox.is_waiting = True
        try:
            if self._failure is not None:
                raise ThreadFailed(f"receiving has ended with an error: {self._failure!r}") from self._failure
            return bool(zmq.zmq_poll([(inbox.fd, zmq.POLLIN)], 0 if inbox else wait_ms))
        finally:
            inbox.is_waiting = False

    def on_timer(self, monotonic_ns: int) -> None:
        """Connect to the adapters that multicast does not carry here; finish a change that was interrupted."""
        if self.deadline_ns is None or monotonic_ns < self.deadline_ns:
            return
        with self._alone():
            if self._is_unfinished:
                self._is_unfinished = False
                self._apply()
            heard, self._heard = self._heard, {}
            for group, heard_at_ns in heard.items():
                self._receivers.on_heard(group, heard_at_ns)
            self._publish(self._receivers.on_timer(self._clock.look(time.monotonic_ns()), self._drain_whole))
            self._set_deadline()

    # ---- whose turn it is ----

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the sockets, to change them, as soon as the thread that waits for datagrams has returned them."""
        with self._changed:
            self._asking_count += 1
            try:
                while self._is_taken:
                    self._wake_holder()
                    self._wait_for_change()
                self._is_taken = True
            finally:  # also if the application's thread is interrupted
                self._asking_count -= 1
                self._changed.notify_all()
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception):  # the application's thread is interrupted, and may continue
                self._was_interrupted = self._is_unfinished = True
                self.deadline_ns = 0
            raise
        finally:
            self._give_back()

    def _take(self, wake: Callable[[], None], *, for_thread: bool) -> bool:
        """Hold the sockets, to wait for datagrams. Returns False if this caller should no longer receive."""
        with self._lock:
            while self._is_taken or self._asking_count:
                self._wait_for_change()
            if self._is_closed or for_thread != (self._thread is not None):
                return False
            self._is_taken, self._wake_holder = True, wake
            return True

    def _wait_for_change(self) -> None:
        self._waiting_count += 1
        try:
            self._changed.wait()
        finally:  # also if the application's thread is interrupted
            self._waiting_count -= 1

    def _give_back(self) -> None:
        with self._lock:
            self._is_taken = False
            if self._waiting_count:  # in nearly every turn, no thread waits
                self._changed.notify_all()

    def _wake_thread(self) -> None:
        os.eventfd_write(self._waker, 1)

    def _run(self) -> None:
        """The thread."""
        while self._take(self._wake_thread, for_thread=True):
            try:
                # While something can become due, not for long, so that a pause of this process is noticed as one.
                if self._receive(self._waker, -1 if self.deadline_ns is None else LOOK_EVERY_NS // 1_000_000):
                    os.eventfd_read(self._waker)
            finally:
                self._give_back()

    def _fail(self, _: str, failure: BaseException) -> None:
        """The thread ended with an error: each subscription raises it."""
        self._failure = failure
        for inbox in list(self._grants):
            inbox.wake()

    # ---- with the sockets ----

    def _apply(self) -> None:
        """Match sockets, keys and routes to what the subscriptions may use together."""
        grant = united(list(self._grants.values()))
        self._readers = {
            channel_id: tuple(inbox for inbox, each in self._grants.items() if channel_id in each.topics_by_channel)
            for channel_id in grant.topics_by_channel
        }
        self._listeners = {
            group: tuple(inbox for inbox, each in self._grants.items() if group in each.groups)
            for group in grant.groups
        }
        for key_id in self._key_ids - grant.keys.keys():
            self._opener.remove_key(key_id)
        for key_id in grant.keys.keys() - self._key_ids:
            self._opener.add_key(grant.keys[key_id].sealing)
        self._key_ids = set(grant.keys)
        self._opener.announce(grant.starts)
        self._publish(self._receivers.apply(grant, self._clock.look(time.monotonic_ns()), self._drain_whole))
        self._set_deadline()

    def _set_deadline(self) -> None:
        due_ns = self._receivers.next_deadline_ns()
        self.deadline_ns = None if due_ns is None else self._clock.monotonic_ns(due_ns)

    def _apply_rest(self) -> None:
        """As `_apply`, without a subscription that is gone."""
        if self._grants:
            with suppress(BadGroup):  # of another subscription, which has raised it
                self._apply()

    def _publish(self, chosen: Iterable[UnicastChosen]) -> None:
        for each in chosen:
            for inbox in self._grants:
                inbox.put_event(each)
        self._notify()

    def _notify(self) -> None:
        for inbox in self._grants:
            inbox.notify()

    def _receive(self, fd: int, wait_ms: int) -> bool:
        """Distribute a portion of the datagrams that have arrived. If there are none, wait for one, or until `fd` is
        readable, and distribute it before any other is opened. Returns whether `fd` is readable."""
        polled = [*self._receivers.polled, (fd, zmq.POLLIN)]
        found, count_max = zmq.zmq_poll(polled, 0), DRAIN_COUNT_MAX
        if not found and wait_ms:
            found, count_max = zmq.zmq_poll(polled, wait_ms)[:1], 1
        self._clock.look(time.monotonic_ns())
        is_woken = has_more = False
        for socket, _ in found:
            receiver = self._receivers.of_socket(socket)
            if receiver is None:
                is_woken = True
            else:
                has_more |= self._drain(receiver, count_max)
        self.has_more = has_more and count_max > 1
        self._notify()
        return is_woken

    def _drain(self, receiver: Receiver, count_max: int = DRAIN_COUNT_MAX) -> bool:
        """Take so many datagrams at most; False if there are no more."""
        receive, opened_of, readers, group = receiver.receive, self._opener.open, self._readers, receiver.group
        has_more, is_heard = True, False
        for number in range(count_max):
            # As usual on a quiet stream, there is only one.
            datagram = receive() if number != 1 or receiver.may_have_more() else None
            if datagram is None:
                has_more = False
                break
            try:
                opened = opened_of(datagram)
            except PacketRefused as refused:
                for inbox in self._listeners.get(group, self._grants):
                    inbox.refuse(refused.reason)
                continue
            arrival: Arrival
            if isinstance(opened, ReceivedPacket):
                channel_id, arrival = opened.packet.channel_id, (opened, group, "")
            elif isinstance(opened, ReceivedSignature):
                channel_id, arrival = opened.claimed.channel_id, (opened, group, receiver.last_sender)
            else:  # of no channel
                for inbox in self._listeners.get(group, self._grants):
                    inbox.put((opened, group, receiver.last_sender))
                continue
            is_heard = True
            for inbox in readers.get(channel_id, ()):
                inbox.put(arrival)
        if is_heard and group:
            self._heard[group] = self._clock.now_ns
        return has_more

    def _drain_whole(self, receiver: Receiver) -> None:
        while self._drain(receiver):
            pass
