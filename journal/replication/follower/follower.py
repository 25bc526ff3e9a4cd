"""A follower of a journal on another host: a thread that performs the effects of `FollowerCore`."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import zmq

from tandemfeed.journal.append.keeper import Upkeep
from tandemfeed.journal.errors import DiskFull, Diverged, JournalError, JournalLocked
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
    new_socket,
    timeout_ms,
    watch,
)
from tandemfeed.journal.store import Journal

LOG = logging.getLogger("tandemfeed.journal.replication")
POLL_MS_MAX = 60_000


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
        chance: returns a random number in [0, 1).
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
        limits: Limits | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.folder = folder = Path(folder)
        self._endpoint = connect
        self._keys = keys
        self._journal = FollowerJournal(folder, key=key, durable=durable, adopt=adopt, upkeep=upkeep)
        self._core = FollowerCore(chance, leader_id=self._journal.leader_id(), durable=durable, limits=limits)
        self._effects: deque[FollowerEffect] = deque()
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._wake_up = WakeUp()
        self._is_stopping = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._status = self._read_status()
        self._thread = threading.Thread(target=self._run, name=f"follower of {connect}", daemon=True)

    @property
    def status(self) -> FollowerStatus:
        """The current status."""
        return self._status

    def start(self) -> Self:
        """Start to follow. Call it once."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._thread.start()
        return self

    def wait_for(self, predicate: Callable[[FollowerStatus], bool], timeout_s: float) -> bool:
        """Wait until the status meets a condition; False after the time-out.

        Raises:
            Diverged, JournalError: following ended before the condition was met.
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
        if self._error is not None:
            raise JournalError(f"{self.folder}: the follower failed") from self._error
        if status.state is FollowerState.DIVERGED:
            raise Diverged(f"{self.folder}: {status.reason}", status.diverged_at)
        if status.state is FollowerState.REFUSED:
            raise JournalError(f"{self.folder}: {status.reason}")

    def stop(self) -> None:
        """Stop following; sync and close the journal. Further calls do nothing."""
        self._is_stopping = True
        if self._thread.is_alive():
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
        except BaseException as error:
            LOG.exception("%s: the follower failed", self.folder)
            self._error = error
        finally:
            self._disconnect()
            self._context.term()
            self._journal.close()
            self._publish()

    def _turn(self) -> None:
        """Wait for an event or a deadline, and handle it."""
        poller = zmq.Poller()
        poller.register(self._wake_up.fileno(), zmq.POLLIN)
        for socket in (self._socket, self._monitor):
            if socket is not None:
                poller.register(socket, zmq.POLLIN)
        now_ns = time.monotonic_ns()
        ready = dict(poller.poll(timeout_ms(self._core.next_deadline_ns(), now_ns, POLL_MS_MAX)))
        if self._wake_up.fileno() in ready:
            self._wake_up.clear()
        if self._socket in ready:
            self._receive()
        if self._monitor is not None and self._monitor in ready:
            # The first event is enough: the core closes the connection, and later events report the same.
            for event in broken_events(self._monitor)[:1]:
                self._perform(self._core.on_disconnected(BROKEN_EVENTS[event], time.monotonic_ns()))
        now_ns = time.monotonic_ns()
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
            now_ns = time.monotonic_ns()
            try:
                effects = self._core.on_message(decode(frame), now_ns)
            except BadMessage as refused:
                effects = self._core.on_bad_message(str(refused), now_ns)
            self._perform(effects)
        self._perform(self._core.on_drained(time.monotonic_ns()))

    def _perform(self, effects: list[FollowerEffect]) -> None:
        self._effects.extend(effects)
        while self._effects:
            effect = self._effects.popleft()
            try:
                self._effects.extend(self._perform_one(effect))
            except zmq.Again:  # the connection is gone, and the monitor has not reported it yet
                self._effects.clear()
                self._effects.extend(self._core.on_disconnected("the connection broke", time.monotonic_ns()))
            except (JournalError, OSError, ValueError) as failed:
                self._effects.clear()
                text, now_ns = str(failed), time.monotonic_ns()
                if isinstance(effect, OpenJournal):
                    is_final = not isinstance(failed, (JournalLocked, DiskFull, OSError))
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
                return self._core.on_opened(*self._journal.open(effect.welcome), time.monotonic_ns())
            case LookUp():
                return self._core.on_looked_up(effect.index, self._journal.look_up(effect.index))
        return []

    def _connect(self) -> None:
        self._disconnect()
        socket = new_socket(self._context, zmq.DEALER, self._endpoint)
        socket.setsockopt(zmq.RECONNECT_IVL, -1)  # the core decides when to reconnect, with a new socket
        if self._keys is not None:
            self._keys.apply(socket)
        self._socket, self._monitor = socket, watch(socket)
        socket.connect(self._endpoint)

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close()
        self._socket = self._monitor = None

    def _read_status(self) -> FollowerStatus:
        core = self._core
        return FollowerStatus(
            core.state, core.reason, core.next_index, core.leader_next_index, core.diverged_at, core.failure_count
        )

    def _is_over(self) -> bool:
        return self._error is not None or self._status.state in FINAL

    def _publish(self) -> None:
        status = self._read_status()
        if status != self._status or self._error is not None:
            if status.reason and status.reason != self._status.reason:
                LOG.warning("%s: %s: %s", self.folder, status.state.value, status.reason)
            with self._changed:
                self._status = status
                self._changed.notify_all()
