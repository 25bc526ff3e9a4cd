"""Many threads, one flush: who comes while the disk is busy goes into the next group, and one of them leads it.

There is no thread for it: the last to come leads, so that nobody has to be woken to begin. "Last" is a guess: as many
as were there around the last flush; a group waits for them, but no longer than its time limit. Followers are woken one
by another, in a chain, for each of them needs the interpreter before it can do anything anyway.

Invariant: a seat that was taken before `write` is called is answered after it returned, with a result or an error; and
when seats wait and nobody leads, exactly one of their threads waits with a time limit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress

from journal.errors import JournalError
from journal.persistent_queue.errors import QueueFailed

SEGMENT_BYTES_MAX = 1 << 20  # a group of more than this is written in pieces


class Seat:
    """One caller's place in a group: what it puts, and what came of it. Without a lock, it is only told by its future.

    Attributes:
        first_id: of its items, once written.
        following: whom to wake next.
    """

    __slots__ = ("error", "first_id", "following", "future", "gathers", "is_abandoned", "is_done", "items", "lock")

    def __init__(self, items: Sequence[bytes], lock: threading.Lock | None) -> None:
        self.items = items
        self.lock = lock
        self.future: Future[int] | None = None
        self.first_id = -1
        self.error: BaseException | None = None
        self.is_done = False
        self.is_abandoned = False
        self.gathers = False
        self.following: Seat | None = None

    def wake(self) -> None:
        """Wake its thread."""
        if self.lock is not None:
            with suppress(RuntimeError):  # it was woken already, and has not noticed yet
                self.lock.release()


class _Local(threading.local):
    """A thread's lock, held except for the moment in which somebody wakes it. Made when the thread first comes."""

    def __init__(self, prepare: Callable[[], None]) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        prepare()


class GroupCommit:
    """Groups callers.

    Args:
        write: makes a group durable and fills its seats in; only one thread at a time is in it.
        size_max: seats in a group.
        delay_s: how long a group waits for more, at most.
        call_helper: wakes a thread that calls `commit`; for seats that no thread waits in.
        prepare_thread: called by each thread when it first comes.
    """

    def __init__(
        self,
        write: Callable[[list[Seat]], None],
        size_max: int,
        delay_s: float,
        call_helper: Callable[[], None],
        prepare_thread: Callable[[], None] = lambda: None,
    ) -> None:
        self._write = write
        self._size_max = size_max
        self._delay_s = delay_s
        self._call_helper = call_helper
        self._mutex = threading.Lock()
        self._local = _Local(prepare_thread)
        self._waiting: list[Seat] = []
        self._thread_count = 0  # of the waiting seats
        self._expected = 1
        self._is_busy = False
        self.failure: JournalError | None = None  # why nobody is let in any more
        self.group_count = 0

    def commit(self, items: Sequence[bytes] = (), *, at_once: bool = False) -> int:
        """Take part in a group that begins after this call; returns when it is on the disk.

        Args:
            at_once: lead if nobody does, however few are there.

        Returns:
            The first item's id; -1 without items.
        """
        seat, group, is_timed = Seat(items, self._local.lock), None, False
        with self._mutex:
            self._require_whole()
            self._waiting.append(seat)
            self._thread_count += 1
            if not self._is_busy:
                if at_once or self._thread_count >= self._expected:
                    group = self._take()
                else:
                    is_timed = self._thread_count == 1
        while group is not None or not seat.is_done:
            if group is None:
                group = self._await(seat, is_timed)
            if group is not None:
                self._lead(group, seat)  # which is not this seat's own, if enough others came before
                group, is_timed = None, False
        if seat.following is not None:
            seat.following.wake()
        if seat.error is not None:
            raise seat.error
        return seat.first_id

    def enqueue(self, items: Sequence[bytes]) -> Future[int]:
        """Take part without waiting; the future gets the first item's id, or the error."""
        seat = Seat(items, None)
        seat.future = Future()
        seat.future.set_running_or_notify_cancel()  # from here on it cannot be cancelled that way
        with self._mutex:
            self._require_whole()
            self._waiting.append(seat)
            is_first = not self._is_busy and len(self._waiting) == 1
        if is_first:
            self._call_helper()
        return seat.future

    @property
    def waiting_count(self) -> int:
        """Seats whose group has not begun."""
        return len(self._waiting)

    def fail(self, reason: BaseException) -> None:
        """Let nobody in any more: what is on the disk is not known."""
        self.failure = QueueFailed(f"something did not reach the disk for certain ({reason!r}): open the queue again")
        self.failure.__cause__ = reason

    def close(self, reason: JournalError) -> None:
        """Make everything durable that came so far, and let nobody in any more."""
        while True:
            self.commit(at_once=True)
            with self._mutex:
                if not self._is_busy and not self._waiting:
                    self.failure = reason
                    return

    def _require_whole(self) -> None:
        if self.failure is not None:
            raise type(self.failure)(str(self.failure)) from self.failure

    def _take(self) -> list[Seat]:
        group, self._waiting = self._waiting[: self._size_max], self._waiting[self._size_max :]
        self._thread_count = sum(seat.lock is not None for seat in self._waiting)
        self._is_busy = True
        return group

    def _await(self, seat: Seat, is_timed: bool) -> list[Seat] | None:
        """Wait until the seat is done, or until it is this thread that leads: then with the group."""
        assert seat.lock is not None
        try:
            while not seat.is_done:
                if not is_timed:
                    seat.lock.acquire()
                elif not seat.lock.acquire(timeout=self._delay_s):
                    is_timed = False
                    with self._mutex:
                        if not self._is_busy and not seat.is_done:
                            return self._take()
                if seat.gathers:
                    with self._mutex:
                        seat.gathers = False
                        if not self._is_busy and not seat.is_done:
                            if self._thread_count >= self._expected:
                                return self._take()
                            is_timed = True
        except BaseException:  # an interrupt: others must not wait for this thread
            self._abandon(seat)
            raise
        return None

    def _abandon(self, seat: Seat) -> None:
        with self._mutex:
            seat.is_abandoned = True
            self._expected = 1
        if seat.following is not None:
            seat.following.wake()
        self._call_helper()

    def _lead(self, group: list[Seat], own: Seat) -> None:
        try:
            self._write(group)
        except BaseException as reason:
            self.fail(reason)
            for seat in group:
                seat.error = seat.error or self.failure
            self._finish(group, own)
            if not isinstance(reason, Exception):
                raise
        else:
            self._finish(group, own)

    def _finish(self, group: list[Seat], own: Seat) -> None:
        first: Seat | None = None
        gatherer: Seat | None = None
        with self._mutex:
            self.group_count += 1
            self._is_busy = False
            if self.failure is not None:
                for seat in self._waiting:
                    seat.error = self.failure
                group, self._waiting, self._thread_count = group + self._waiting, [], 0
            threads = 0
            for seat in reversed(group):
                if seat.lock is not None:
                    threads += 1
                    if seat is not own and not seat.is_abandoned:
                        seat.following, first = first, seat
                seat.is_done = True  # last: its thread may be awake, and go on with what it finds here
            if self._delay_s > 0:
                self._expected = min(max(threads + self._thread_count, 1), self._size_max)
            if self._thread_count:
                able = (seat for seat in self._waiting if seat.lock is not None and not seat.is_abandoned)
                gatherer = next(able, None)
                if gatherer is not None:
                    gatherer.gathers = True
            is_help_wanted = gatherer is None and bool(self._waiting)
        if first is not None:
            first.wake()
        if gatherer is not None:
            gatherer.wake()
        elif is_help_wanted:
            self._call_helper()
        for seat in group:
            if seat.future is not None:
                if seat.error is not None:
                    seat.future.set_exception(seat.error)
                else:
                    seat.future.set_result(seat.first_id)


def batches(seats: list[Seat]) -> list[list[Seat]]:
    """What goes into a segment together: a seat's items always do."""
    batches: list[list[Seat]] = []
    size = 0
    for seat in seats:
        if seat.items:
            seat_size = len(seat.items[0]) if len(seat.items) == 1 else sum(map(len, seat.items))
            size += seat_size
            if not batches or size > SEGMENT_BYTES_MAX:
                batches.append([])
                size = seat_size
            batches[-1].append(seat)
    return batches
