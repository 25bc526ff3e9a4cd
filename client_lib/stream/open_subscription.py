"""An open subscription's threads, sockets and files, how they are polled, and their end.

It is closed once: by `Subscription.close`, or after the application has dropped its subscription. Nothing depends on a
finaliser, and none waits: when a subscription is collected as garbage, in whichever thread that happens, what was open
is only put into a queue, and a thread of the library closes it, by name.

Invariant: nothing here refers to the `Subscription`, or it would never be collected.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from tandemfeed.client_lib.items import Item
from tandemfeed.client_lib.losses.loss_report import LossReport
from tandemfeed.client_lib.losses.loss_watch import LossWatch
from tandemfeed.client_lib.own_process import OwnProcess, note_closed, note_open
from tandemfeed.client_lib.reading.cursor import Cursor
from tandemfeed.client_lib.reading.lag import Dropped, Lag, LagPolicy
from tandemfeed.client_lib.reading.read_ahead import ReadAhead
from tandemfeed.client_lib.replay.playback import Playback
from tandemfeed.client_lib.stream.loop import Loop
from tandemfeed.runtime.threads import mark_unhealthy, start_thread

log = logging.getLogger(__name__)

PLAYBACK_STEP_NS = 50_000_000  # at most, so that `stop` and time-outs are noticed


class OpenSubscription:
    """One thread at a time polls; any thread may stop and close.

    Args:
        cancel: ends the subscription at the administration server; does not wait.
        playback: when to deliver what is received, and when to end; None: immediately, and never.

    Attributes:
        is_stopping: nothing more is received.
        is_closed: the groups were left, and the threads have ended.
    """

    def __init__(
        self,
        loop: Loop,
        report: LossReport,
        cursor: Cursor | None,
        cancel: Callable[[], object],
        lag_policy: LagPolicy,
        playback: Playback | None,
    ) -> None:
        self.loop = loop
        self.is_stopping = self.is_closed = False
        self._report, self._cursor, self._cancel, self._playback = report, cursor, cancel, playback
        self._loop_lock = threading.Lock()
        self._loop_thread: int | None = None  # that polls now
        self._process = OwnProcess("subscription")
        note_open(self)
        self._ahead: ReadAhead | None = None
        if lag_policy.reads_ahead:
            try:
                self._ahead = ReadAhead(self._poll_ahead, loop.stop, lag_policy)
            except BaseException:  # such as no room for another thread
                self.close()
                raise

    def poll(self, timeout_s: float | None) -> list[Item]:
        """Run until there are items, the time-out (None: no limit) has passed, or nothing more is received."""
        if self._playback is not None:
            return self._play(self._playback, timeout_s)
        if self._ahead is None:
            items = self._poll_loop(timeout_s)
            self.is_stopping |= self.is_closed
            return items
        items = [] if self.is_stopping else self._ahead.take(timeout_s)
        self.is_stopping |= self._ahead.is_over
        self._report_dropped(items)
        return items

    def lag(self) -> Lag:
        """How far the application is behind."""
        if self._ahead is not None:
            return self._ahead.lag()
        channels, age_ns = self.loop.channels, self.loop.queues.age_ns(time.monotonic_ns())
        return Lag(channels.missing_count, age_ns)

    def stop(self) -> None:
        """Receive nothing more; `poll` returns immediately. Never blocks; safe to call from a signal handler."""
        self.is_stopping = True
        self.loop.stop()

    def close(self) -> bool:
        """Stop, leave the groups, end the threads, and close the files, but for the cursor. Idempotent.

        Returns:
            False if it is called inside `poll`, which does the rest when it returns.
        """
        self.stop()
        if self._loop_thread == threading.get_ident():
            return False
        with self._loop_lock:
            self._dispose()
        if self._ahead is not None:
            self._ahead.join()
        return True

    def close_dropped(self) -> None:
        """Close everything. Nothing is stored, because no one knows what was handled."""
        self.close()
        if self._cursor is not None:
            self._cursor.close()

    @property
    def is_inherited(self) -> bool:
        """True in a forked process, to which nothing of it belongs."""
        return self._process.is_inherited

    # ---- inside ----

    def _play(self, playback: Playback, timeout_s: float | None) -> list[Item]:
        """The items that are due; receives more only when none waits."""
        give_up_at_ns = None if timeout_s is None else time.monotonic_ns() + int(timeout_s * 1e9)
        while not self.is_stopping:
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
                channels, unix_ns, now_ns = self.loop.channels, time.time_ns(), time.monotonic_ns()
                channel_ids = channels.grant.topics_by_channel
                playback.put(items, channel_ids, is_live=channels.are_live, unix_ns=unix_ns, now_ns=now_ns)
                self.is_stopping |= self.is_closed and not items
            if give_up_at_ns is not None and now_ns >= give_up_at_ns:
                break
        return []

    def _report_dropped(self, items: list[Item]) -> None:
        watch = LossWatch(lambda: self.loop.channels.grant)
        for item in items:
            if isinstance(item, Dropped):
                watch.on_event(item)
        if watch.found and (event := self._report.write(watch.take())) is not None:
            items.append(event)

    def _poll_loop(self, timeout_s: float | None) -> list[Item]:
        if not self._loop_lock.acquire(blocking=False):
            raise RuntimeError("another thread is polling this subscription; poll it from one thread at a time")
        self._loop_thread = threading.get_ident()
        try:
            return [] if self.is_stopping else self.loop.poll(timeout_s)
        finally:
            self._loop_thread = None
            if self.is_stopping or self.loop.is_over:
                self._dispose()
            self._loop_lock.release()

    def _poll_ahead(self) -> list[Item] | None:
        items = self._poll_loop(None)
        return items if items or not self.is_closed else None

    def _dispose(self) -> None:
        """With the lock."""
        if self.is_closed:
            return
        self.is_closed = True
        try:
            self._cancel()
            self.loop.close()
            self._report.close()
        finally:
            note_closed(self)


class _Closer:
    """The thread that closes what was dropped. One for each process."""

    def __init__(self) -> None:
        self._dropped: queue.SimpleQueue[OpenSubscription] = queue.SimpleQueue()  # `put` may interrupt `put`
        self._is_started = False
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Be ready for what is dropped. A finaliser cannot start the thread, because it may interrupt anything."""
        with self._lock:
            if not self._is_started:
                start_thread(self._run, "tandemfeed-closer", mark_unhealthy)
                self._is_started = True

    def drop(self, opened: OpenSubscription) -> None:
        """A subscription was collected: what its finaliser does."""
        if not opened.is_inherited:
            self._dropped.put(opened)

    def _run(self) -> None:
        while True:
            opened = self._dropped.get()
            if not opened.is_closed:
                log.warning("a subscription was dropped without being closed", extra={"feed": opened.loop.feed})
            try:
                opened.close_dropped()
            except Exception:
                log.exception("could not close a dropped subscription")
            del opened


_closer = _Closer()


def close_when_dropped(subscription: object, opened: OpenSubscription) -> weakref.finalize[..., Any]:
    """Close what is open when the subscription is collected, unless the returned object is detached before."""
    _closer.begin()
    finaliser = weakref.finalize(subscription, _closer.drop, opened)
    finaliser.atexit = False  # the end of the process ends everything
    return finaliser


def _after_fork() -> None:
    global _closer
    _closer = _Closer()  # the thread is gone, and perhaps the lock was held


os.register_at_fork(after_in_child=_after_fork)
