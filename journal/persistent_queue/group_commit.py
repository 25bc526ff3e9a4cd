"""Group commit: one flush for many threads. Callers that arrive while the disk is busy form the next group.

No separate thread commits: the last caller to arrive leads the group, so that no thread has to be woken first. How many
callers to expect is estimated from the last flush; a group waits for them up to a time limit. The callers of a finished
group wake each other in a chain, because each needs the interpreter lock before it can do anything.

After a failure no group is written any more: the next flush would succeed although data is lost.

Invariant: a request taken before `write` is called gets a result or an error after it returns; and while requests wait
without a leader, exactly one of their threads waits with a time limit, or `refuse_waiting` will be called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress

from tandemfeed.journal.errors import JournalError

SEGMENT_BYTES_MAX = 1 << 20  # a larger group is written in several segments


class CommitRequest:
    """One caller's items and their result. Without a lock, the result goes only to its future.

    Attributes:
        first_id: of its items, once written.
        following: the request whose thread to wake next.
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
        self.following: CommitRequest | None = None

    def wake(self) -> None:
        """Wake the caller's thread."""
        if self.lock is not None:
            with suppress(RuntimeError):  # it is already awake, but has not run yet
                self.lock.release()


class _Local(threading.local):
    """A thread's lock, released only to wake the thread. Created on the thread's first call."""

    def __init__(self, prepare: Callable[[], None]) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        prepare()


class GroupCommit:
    """Commits the items of many callers in groups.

    Args:
        write: makes a group durable and fills in its requests; called by one thread at a time.
        size_max: requests in a group.
        delay_s: the maximum time that a group waits for more callers.
        call_helper: makes another thread call `commit`, for requests without a waiting thread.
        on_failure: called when `write` raises; it must call `fail`.
        prepare_thread: called once in each thread, on its first call.
    """

    def __init__(
        self,
        write: Callable[[list[CommitRequest]], None],
        size_max: int,
        delay_s: float,
        call_helper: Callable[[], None],
        on_failure: Callable[[BaseException], object],
        prepare_thread: Callable[[], None] = lambda: None,
    ) -> None:
        self._write = write
        self._size_max = size_max
        self._delay_s = delay_s
        self._call_helper = call_helper
        self._on_failure = on_failure
        self._mutex = threading.Lock()
        self._local = _Local(prepare_thread)
        self._waiting: list[CommitRequest] = []
        self._thread_count = 0  # waiting requests with a thread
        self._expected = 1
        self._is_busy = False
        self.failure: JournalError | None = None  # why no more callers are accepted
        self.group_count = 0

    def commit(self, items: Sequence[bytes] = (), *, lead_now: bool = False) -> int:
        """Join a group that begins after this call; return when it is on the disk.

        Args:
            lead_now: if no caller leads, lead without waiting for others.

        Returns:
            The first item's id; -1 without items.
        """
        request, group, is_timed = CommitRequest(items, self._local.lock), None, False
        with self._mutex:
            self.require_whole()
            self._waiting.append(request)
            self._thread_count += 1
            if not self._is_busy:
                if lead_now or self._thread_count >= self._expected:
                    group = self._take()
                else:
                    is_timed = self._thread_count == 1
        while group is not None or not request.is_done:
            if group is None:
                group = self._await(request, is_timed)
            if group is not None:
                self._lead(group, request)  # may be a group without this request, if enough others came first
                group, is_timed = None, False
        if request.following is not None:
            request.following.wake()
        if request.error is not None:
            raise request.error
        return request.first_id

    def enqueue(self, items: Sequence[bytes]) -> Future[int]:
        """Join a group without waiting; the future gets the first item's id, or the error."""
        request = CommitRequest(items, None)
        request.future = Future()
        request.future.set_running_or_notify_cancel()  # from here on it cannot be cancelled
        with self._mutex:
            self.require_whole()
            self._waiting.append(request)
            is_first = not self._is_busy and len(self._waiting) == 1
        if is_first:
            self._call_helper()
        return request.future

    @property
    def waiting_count(self) -> int:
        """Number of requests whose group has not begun."""
        return len(self._waiting)

    def fail(self, failure: JournalError) -> None:
        """Accept no more callers: it is unknown what is on the disk. Call `refuse_waiting` after it.

        Only stores the failure: the caller may hold locks.
        """
        self.failure = self.failure or failure

    def refuse_waiting(self) -> None:
        """After a failure: raise it for all requests whose group has not begun."""
        with self._mutex:
            if self._is_busy:
                return  # its leader will do it
            self._is_busy = True
        self._finish([], None)

    def close(self, reason: JournalError) -> None:
        """Make everything durable, then accept no more callers."""
        while True:
            self.commit(lead_now=True)
            with self._mutex:
                if not self._is_busy and not self._waiting:
                    self.failure = reason
                    return

    def require_whole(self) -> None:
        """Raise the failure, if there is one."""
        if self.failure is not None:
            raise type(self.failure)(str(self.failure)) from self.failure

    def _take(self) -> list[CommitRequest]:
        group, self._waiting = self._waiting[: self._size_max], self._waiting[self._size_max :]
        self._thread_count = sum(request.lock is not None for request in self._waiting)
        self._is_busy = True
        return group

    def _await(self, request: CommitRequest, is_timed: bool) -> list[CommitRequest] | None:
        """Wait until the request is done, or until this thread must lead: then return the group."""
        assert request.lock is not None
        try:
            while not request.is_done:
                if not is_timed:
                    request.lock.acquire()
                elif not request.lock.acquire(timeout=self._delay_s):
                    is_timed = False
                    with self._mutex:
                        if not self._is_busy and not request.is_done:
                            return self._take()
                if request.gathers:
                    with self._mutex:
                        request.gathers = False
                        if not self._is_busy and not request.is_done:
                            if self._thread_count >= self._expected:
                                return self._take()
                            is_timed = True
        except BaseException:  # an interrupt: other threads must not wait for this one
            self._abandon(request)
            raise
        return None

    def _abandon(self, request: CommitRequest) -> None:
        with self._mutex:
            request.is_abandoned = True
            self._expected = 1
        if request.following is not None:
            request.following.wake()
        self._call_helper()

    def _lead(self, group: list[CommitRequest], own: CommitRequest) -> None:
        try:
            self.require_whole()
            self._write(group)
        except BaseException as reason:
            self._on_failure(reason)
            assert self.failure is not None
            for request in group:
                request.error = request.error or self.failure
            self._finish(group, own)
            if not isinstance(reason, Exception):
                raise
        else:
            self._finish(group, own)

    def _finish(self, group: list[CommitRequest], own: CommitRequest | None) -> None:
        first: CommitRequest | None = None
        gatherer: CommitRequest | None = None
        with self._mutex:
            self.group_count += bool(group)
            self._is_busy = False
            if self.failure is not None:
                for request in self._waiting:
                    request.error = self.failure
                group, self._waiting, self._thread_count = group + self._waiting, [], 0
            threads = 0
            for request in reversed(group):
                if request.lock is not None:
                    threads += 1
                    if request is not own and not request.is_abandoned:
                        request.following, first = first, request
                request.is_done = True  # last: its thread may be awake and continues when it sees this
            if self._delay_s > 0:
                self._expected = min(max(threads + self._thread_count, 1), self._size_max)
            if self._thread_count:
                able = (request for request in self._waiting if request.lock is not None and not request.is_abandoned)
                gatherer = next(able, None)
                if gatherer is not None:
                    gatherer.gathers = True
            needs_helper = gatherer is None and bool(self._waiting)
        if first is not None:
            first.wake()
        if gatherer is not None:
            gatherer.wake()
        elif needs_helper:
            self._call_helper()
        for request in group:
            if request.future is not None:
                if request.error is not None:
                    request.future.set_exception(request.error)
                else:
                    request.future.set_result(request.first_id)


def batches(requests: list[CommitRequest]) -> list[list[CommitRequest]]:
    """Divide requests into segments; all items of a request go into one segment."""
    batches: list[list[CommitRequest]] = []
    size = 0
    for request in requests:
        if request.items:
            seat_size = len(request.items[0]) if len(request.items) == 1 else sum(map(len, request.items))
            size += seat_size
            if not batches or size > SEGMENT_BYTES_MAX:
                batches.append([])
                size = seat_size
            batches[-1].append(request)
    return batches
