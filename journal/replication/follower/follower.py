"""A follower of a journal on another host: a thread that performs the effects of `FollowerCore`.

Nothing that fails ends the thread silently: a failure of the network or of the disk leads to another attempt, and any
other one to the state FAILED, which is published before the thread cleans up. So no caller waits for a dead thread.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import zmq

from tandemfeed.journal.append.keeper import Upkeep
from tandemfeed.journal.errors import DiskFull, Diverged, JournalError, JournalFailed, JournalLocked
from tandemfeed.journal.replication.effects import (
    Append,
    Connect,
    Disconnect,
    FollowerEffect,
    LookUp,
    OpenJournal,
    Send,
    Sync,
)
from tandemfeed.journal.replication.follower.follower_core import FollowerCore
from tandemfeed.journal.replication.follower.follower_journal import FollowerJournal
from tandemfeed.journal.replication.limits import Limits
from tandemfeed.journal.replication.states import FINAL, FollowerState
from tandemfeed.journal.replication.wire.codec import BadMessage, decode, encode
from tandemfeed.journal.replication.wire.security import FollowerKeys
from tandemfeed.journal.replication.wire.sockets import (
    BROKEN_EVENTS,
    FRAMES_AT_ONCE,
    WakeUp,
    broken_events,
    close_watched,
    new_socket,
    timeout_ms,
    watch,
)
from tandemfeed.journal.store import Journal
from tandemfeed.runtime.threads import start_thread
from tandemfeed.runtime.zeromq import Context

LOG = logging.getLogger("tandemfeed.journal.replication")
POLL_MS_MAX = 60_000
NEVER_VALID = frozenset({zmq.EINVAL, zmq.EPROTONOSUPPORT, zmq.ENOCOMPATPROTO})  # of an endpoint: no retry can help


@dataclass(frozen=True, slots=True)
class FollowerStatus:
    """The status of a follower.

    Attributes:
        reason: of the last failure, or of a final state; empty while following.
        next_index: after the last record appended here.
        leader_next_index: after the leader's last record, as last reported.
        diverged_at: the first index that differs; -1 if none does.
        failure_count: connections that broke or could not be established.
    """

    state: FollowerState
    reason: str
    next_index: int
    leader_next_index: int
    diverged_at: int
    failure_count: int


class ReplicationFollower:
    """Keeps a journal equal to its leader's. Call `start`, or use `with`.

    Args:
        folder: of the follower's journal; created when the leader first answers.
        connect: the leader's endpoint, "tcp://host:port".
        key: 32 bytes to encrypt the follower's journal with; required if the leader's is encrypted.
        keys: the CURVE keys of the connection.
        durable: acknowledge after sync, not just after append.
        adopt: follow with an existing journal that has no leader yet, if its records are the leader's.
        upkeep: retention, compression and so on of the follower's journal.
        group: name or id of a group whose members may read the follower's new journal; otherwise only the owner may.
        chance: returns a random number in [0, 1).
        clock_ns: monotonic time. Call `wake` after moving it: the thread may be waiting for a deadline.
    """

    def __init__(
        self,
        folder: Path | str,
        connect: str,
        *,
        key: bytes | None = None,
        keys: FollowerKeys | None = None,
        durable: bool = False,
        adopt: bool = False,
        upkeep: Upkeep | None = None,
        group: str | int | None = None,
        limits: Limits | None = None,
        chance: Callable[[], float] = random.random,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.folder = folder = Path(folder)
        self._endpoint = connect
        self._keys = keys
        self._journal = FollowerJournal(folder, key=key, durable=durable, adopt=adopt, upkeep=upkeep, group=group)
        self._core = FollowerCore(chance, leader_id=self._journal.leader_id(), durable=durable, limits=limits)
        self._effects: deque[FollowerEffect] = deque()
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._clock_ns = clock_ns
        self._is_stopping = False
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._status = self._read_status()
        self._thread: threading.Thread | None = None

    @property
    def status(self) -> FollowerStatus:
        """The current status."""
        return self._status

    @property
    def failure(self) -> BaseException | None:
        """What ended the thread unexpectedly; None: nothing did."""
        return self._failure

    def start(self) -> Self:
        """Start to follow. Call it once."""
        self._wake_up = WakeUp()
        self._context = Context()
        try:
            self._thread = start_thread(self._run, f"follower of {self._endpoint}", self._on_thread_failure)
        except BaseException:
            self._context.close()
            self._wake_up.close()
            raise
        return self

    def wake(self) -> None:
        """Have the thread look at its clock and its connection now."""
        self._wake_up.set()

    def wait_for(self, predicate: Callable[[FollowerStatus], bool], timeout_s: float) -> bool:
        """Wait until the status meets a condition; False after the time-out.

        Raises:
            Diverged, JournalError: following ended, for any reason, before the condition was met.
        """
        with self._changed:
            is_met = self._changed.wait_for(lambda: predicate(self._status) or self._is_over(), timeout_s)
        if predicate(self._status):
            return True
        self.check()
        return is_met and predicate(self._status)

    def check(self) -> None:
        """Raise if following ended with an error.

        Raises:
            Diverged: its records differ from the leader's.
            JournalError: it cannot follow this leader.
        """
        status = self._status
        if self._failure is not None:
            why = status.reason or self._failure
            raise JournalError(f"{self.folder}: the follower failed: {why}") from self._failure
        if status.state is FollowerState.DIVERGED:
            raise Diverged(f"{self.folder}: {status.reason}", status.diverged_at)
        if status.state is FollowerState.REFUSED:
            raise JournalError(f"{self.folder}: {status.reason}")

    def stop(self) -> None:
        """Stop following; sync and close the journal. Further calls do nothing."""
        self._is_stopping = True
        if self._thread is not None:
            self._wake_up.set()
            self._thread.join()

    def promote(self) -> Journal:
        """Stop, forget the leader, and open the journal for appending."""
        self.stop()
        return self._journal.promote()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: Any) -> None:
        self.stop()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._turn()
            self._perform(self._core.stop())
        except BaseException as failure:
            self._fail(failure)  # first: cleaning up takes time, and can fail as well
            raise
        finally:
            self._clean_up()

    def _fail(self, failure: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or failure
            self._core.fail(f"{type(failure).__name__}: {failure}")
            self._publish()

    def _on_thread_failure(self, name: str, failure: BaseException) -> None:
        self._fail(failure)
        LOG.error("%s: the %s failed", self.folder, name, exc_info=failure)

    def _clean_up(self) -> None:
        with ExitStack() as last_first:
            last_first.callback(self._publish)
            last_first.callback(self._wake_up.close)
            last_first.callback(self._journal.close)
            last_first.callback(self._context.close)
            last_first.callback(self._disconnect)

    def _turn(self) -> None:
        """Wait for an event or a deadline, and handle it."""
        poller = zmq.Poller()
        poller.register(self._wake_up.fileno(), zmq.POLLIN)
        for socket in (self._socket, self._monitor):
            if socket is not None:
                poller.register(socket, zmq.POLLIN)
        now_ns = self._clock_ns()
        ready = dict(poller.poll(timeout_ms(self._core.next_deadline_ns(), now_ns, POLL_MS_MAX)))
        if self._wake_up.fileno() in ready:
            self._wake_up.clear()
        if self._socket in ready:
            self._receive()
        if self._monitor is not None and self._monitor in ready:
            # The first event is enough: the core closes the connection, and later events report the same.
            for event in broken_events(self._monitor)[:1]:
                self._perform(self._core.on_disconnected(BROKEN_EVENTS[event], self._clock_ns()))
        now_ns = self._clock_ns()
        deadline_ns = self._core.next_deadline_ns()
        if deadline_ns is not None and now_ns >= deadline_ns:
            self._perform(self._core.on_timer(now_ns))
        self._publish()

    def _receive(self) -> None:
        for _ in range(FRAMES_AT_ONCE):
            if self._socket is None:
                return
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            now_ns = self._clock_ns()
            try:
                effects = self._core.on_message(decode(frame), now_ns)
            except BadMessage as refused:
                effects = self._core.on_bad_message(str(refused), now_ns)
            self._perform(effects)
        self._perform(self._core.on_drained(self._clock_ns()))

    def _perform(self, effects: list[FollowerEffect]) -> None:
        self._effects.extend(effects)
        while self._effects:
            effect = self._effects.popleft()
            try:
                self._effects.extend(self._perform_one(effect))
            except zmq.Again:  # the connection is gone, and the monitor has not reported it yet
                self._effects.clear()
                self._effects.extend(self._core.on_disconnected("the connection broke", self._clock_ns()))
            except zmq.ZMQError as failed:
                if failed.errno in NEVER_VALID:
                    raise
                self._effects.clear()
                text = f"no connection to {self._endpoint}: {failed.strerror}"
                self._effects.extend(self._core.on_disconnected(text, self._clock_ns()))
            except (JournalError, OSError, ValueError) as failed:
                self._effects.clear()
                if not isinstance(failed, DiskFull):
                    self._journal.give_up()
                text, now_ns = str(failed), self._clock_ns()
                if isinstance(effect, OpenJournal):
                    is_final = not isinstance(failed, (JournalLocked, JournalFailed, DiskFull, OSError))
                    self._effects.extend(self._core.on_open_failed(text, is_final=is_final, now_ns=now_ns))
                else:
                    self._effects.extend(self._core.on_append_failed(text, now_ns))

    def _perform_one(self, effect: FollowerEffect) -> list[FollowerEffect]:
        match effect:
            case Append():
                self._journal.append(effect.index, effect.segment)
            case Send():
                assert self._socket is not None
                self._socket.send(encode(effect.message), zmq.NOBLOCK)
            case Sync():
                self._journal.sync()
            case Connect():
                self._connect()
            case Disconnect():
                self._disconnect()
            case OpenJournal():
                return self._core.on_opened(*self._journal.open(effect.welcome), self._clock_ns())
            case LookUp():
                return self._core.on_looked_up(effect.index, self._journal.look_up(effect.index))
        return []

    def _connect(self) -> None:
        self._disconnect()
        self._socket = socket = new_socket(self._context, zmq.DEALER, self._endpoint)
        socket.setsockopt(zmq.RECONNECT_IVL, -1)  # the core decides when to reconnect, with a new socket
        if self._keys is not None:
            self._keys.apply(socket)
        self._monitor = watch(socket)
        socket.connect(self._endpoint)

    def _disconnect(self) -> None:
        if self._socket is not None:
            close_watched(self._socket, self._monitor)
        self._socket = self._monitor = None

    def _read_status(self) -> FollowerStatus:
        core = self._core
        return FollowerStatus(
            core.state, core.reason, core.next_index, core.leader_next_index, core.diverged_at, core.failure_count
        )

    def _is_over(self) -> bool:
        return self._failure is not None or self._status.state in FINAL

    def _publish(self) -> None:
        status = self._read_status()
        if status != self._status:
            if status.reason and status.reason != self._status.reason:
                LOG.warning("%s: %s: %s", self.folder, status.state.value, status.reason)
            with self._changed:
                self._status = status
                self._changed.notify_all()
