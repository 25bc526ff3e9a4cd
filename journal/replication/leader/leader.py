"""The leader: a thread that reads a journal and sends it to followers by performing the effects of `LeaderCore`.

It appends nothing, and appenders need not know about it: it may run in any process that can write the control file. An
unexpected end of the thread is published before the thread cleans up, so no caller waits for a dead thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Self

import zmq

from tandemfeed.journal.errors import JournalError, SettingsDiffer
from tandemfeed.journal.format.control import Control
from tandemfeed.journal.format.layout import CONTROL_NAME, VISIBLE
from tandemfeed.journal.format.sealing import require_key
from tandemfeed.journal.replication.comparison import first_difference, is_same
from tandemfeed.journal.replication.effects import (
    CompareOne,
    CompareTail,
    Forget,
    LeaderEffect,
    LookUpOldest,
    ReadFrom,
    SendTo,
    ShowUntil,
)
from tandemfeed.journal.replication.leader.leader_core import FOLLOWING, LeaderCore
from tandemfeed.journal.replication.limits import Limits
from tandemfeed.journal.replication.segments import Place, SegmentReader
from tandemfeed.journal.replication.wire.codec import BadMessage, decode, encode
from tandemfeed.journal.replication.wire.security import ZAP_ENDPOINT, LeaderKeys
from tandemfeed.journal.replication.wire.sockets import (
    FAILED_HANDSHAKES,
    FRAMES_AT_ONCE,
    WakeUp,
    broken_events,
    close_watched,
    new_socket,
    timeout_ms,
    watch,
)
from tandemfeed.runtime.threads import start_thread
from tandemfeed.runtime.zeromq import Context

LOG = logging.getLogger("tandemfeed.journal.replication")
POLL_MS_MIN = 1  # between checks for records that other processes appended: often while records come,
POLL_MS_MAX = 5  # less often while none do
IDLE_MS = 1_000  # without followers no check is needed


class Mode(Enum):
    """What waits for followers to acknowledge."""

    AS_SOON_AS_POSSIBLE = "as soon as possible"  # nothing waits
    SHOW_REPLICATED = "tailers see only replicated"  # the leader's tailers see a record once it is acknowledged


@dataclass(frozen=True, slots=True)
class LeaderStatus:
    """The status of a leader.

    Attributes:
        replicated_index: `acks` followers have acknowledged everything before it.
        followers: the acknowledged index of each connected follower, by its journal id.
        failed_handshake_count: connections with wrong keys, or from no ZeroMQ peer.
        violation_count: messages that violated the protocol.
        failure: why it serves no follower any more, although it was not stopped; empty: it does.
    """

    replicated_index: int
    followers: dict[bytes, int]
    failed_handshake_count: int
    violation_count: int
    failure: str = ""


class ReplicationLeader:
    """Serves a journal's records to followers. Call `start`, or use `with`.

    Args:
        journal_path: the journal's folder; it must exist.
        bind: "tcp://address:port"; the port may be `*`.
        mode: whether tailers wait for followers. A `ReplicatedAppender` can wait in either mode.
        acks: how many followers must acknowledge a record.
        key: of an encrypted journal. The leader decrypts its records before sending, so `keys` with `follower_keys`
            are then required to encrypt the connections.
        keys: the CURVE keys of the connections.
        on_status: called by the leader's thread when the status has changed; it must not wait.
        clock_ns: monotonic time. Call `wake` after moving it: the thread may be waiting for a deadline.

    Raises:
        ValueError: an encrypted journal without `follower_keys`, or `acks` below 1.
        WrongKey, SettingsDiffer, ForeignFile, NewerFormat, ReadOnly: of the journal.
    """

    def __init__(
        self,
        journal_path: Path | str,
        bind: str,
        *,
        mode: Mode = Mode.AS_SOON_AS_POSSIBLE,
        acks: int = 1,
        key: bytes | None = None,
        keys: LeaderKeys | None = None,
        limits: Limits | None = None,
        on_status: Callable[[LeaderStatus], None] | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.folder = journal_path = Path(journal_path)
        self.endpoint = bind  # after `start` the real one
        self._mode = mode
        self._keys, self._on_status = keys, on_status
        self._control = Control(journal_path / CONTROL_NAME, writable=True)
        try:
            self._check(key)
            self._reader = SegmentReader(journal_path, key)
            start_index = self._start_index()
            self._core = LeaderCore(
                self._control.journal_id.bytes,
                self._control.settings,
                start_index=start_index,
                acks=acks,
                limits=limits,
            )
        except BaseException:
            self._control.close()
            raise
        if mode is Mode.SHOW_REPLICATED:
            self._control.set_word(VISIBLE, max(start_index, 1))  # 0 would show everything
        self._places: dict[bytes, tuple[int, Place]] = {}
        self._effects: deque[LeaderEffect] = deque()
        self._words = (0, 0)
        self._poll_ms = POLL_MS_MIN
        self._failed_handshake_count = 0
        self._clock_ns = clock_ns
        self._wake_up = WakeUp()
        self._is_stopping = False
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        self._status = self._read_status()
        self._thread: threading.Thread | None = None

    def _check(self, key: bytes | None) -> None:
        settings = self._control.settings
        require_key(key, settings.key_check, self.folder)
        if settings.face != "journal":
            raise SettingsDiffer(f"{self.folder} is a {settings.face}; only a journal can be replicated")
        if settings.key_check and (self._keys is None or self._keys.follower_keys is None):
            raise ValueError(
                f"{self.folder} is encrypted, but its records would be sent unencrypted: give CURVE keys, with the "
                "public keys of the allowed followers"
            )

    def _start_index(self) -> int:
        """What counts as replicated before the first acknowledgement: what tailers already see, or everything."""
        end, visible = self._reader.end_index(), self._control.word(VISIBLE)
        # After a power loss new records may have the indices of lost ones; that those were visible must not show them.
        return min(visible, end) if visible and self._mode is Mode.SHOW_REPLICATED else end

    @property
    def status(self) -> LeaderStatus:
        """The current status."""
        return self._status

    @property
    def failure(self) -> BaseException | None:
        """What ended the thread unexpectedly; None: nothing did."""
        return self._failure

    def start(self) -> Self:
        """Bind and start to serve. Call it once.

        Raises:
            OSError: the endpoint cannot be bound.
        """
        self._context = Context()
        self._monitor: zmq.Socket[bytes] | None = None
        self._zap = self._context.socket(zmq.REP)
        self._router = new_socket(self._context, zmq.ROUTER, self.endpoint)
        try:
            self._bind()
            self._thread = start_thread(self._run, f"leader of {self.folder.name}", self._on_thread_failure)
        except BaseException as refused:
            self._close_sockets()
            if isinstance(refused, (zmq.ZMQError, ValueError)):
                raise OSError(f"{self.endpoint} cannot be bound: {refused}") from refused
            raise
        return self

    def _bind(self) -> None:
        if self._keys is not None:
            self._keys.apply(self._router)
            if self._keys.follower_keys is not None:
                self._zap.bind(ZAP_ENDPOINT)
        self._monitor = watch(self._router)
        self._router.bind(self.endpoint)
        self.endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)

    def use_keys(self, keys: LeaderKeys) -> None:
        """Admit these followers from now on; connections that exist remain. The leader's own key must be the same."""
        if self._keys is None or self._keys.secret_key != keys.secret_key:
            raise ValueError("the leader's own key cannot change; start another leader")
        self._keys = keys

    def wake(self) -> None:
        """Report that records were appended. Optional: it only makes the leader check sooner."""
        self._wake_up.set()

    def wait_for_replicated(self, index: int, timeout_s: float) -> bool:
        """Wait until the record at an index is acknowledged; False after the time-out.

        Raises:
            JournalError: the leader failed, or was stopped.
        """
        return self._wait_for(lambda status: status.replicated_index > index, timeout_s)

    def wait_for_followers(self, count: int, timeout_s: float) -> bool:
        """Wait until `count` followers are connected; False after the time-out.

        Raises:
            JournalError: the leader failed, or was stopped.
        """
        return self._wait_for(lambda status: len(status.followers) >= count, timeout_s)

    def _wait_for(self, predicate: Callable[[LeaderStatus], bool], timeout_s: float) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: predicate(self._status) or not self._is_running, timeout_s)
        if predicate(self._status):
            return True
        if not self._is_running:
            why = self._status.failure or "it was stopped, or not started"
            raise JournalError(f"{self.folder}: the leader is not running ({why}); start it") from self._failure
        return False

    @property
    def _is_running(self) -> bool:
        return self._thread is not None and not self._is_stopping and self._failure is None

    def stop(self) -> None:
        """Stop serving. What tailers see does not change. Further calls do nothing."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._wake_up.set()
            self._thread.join()
        self._wake_up.close()
        self._reader.close()
        self._control.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: Any) -> None:
        self.stop()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        poller = zmq.Poller()
        for source in (self._wake_up.fileno(), self._router, self._monitor, self._zap):
            poller.register(source, zmq.POLLIN)
        try:
            while not self._is_stopping:
                self._turn(poller)
        except BaseException as failure:
            self._fail(failure)  # first: cleaning up takes time, and can fail as well
            raise
        finally:
            self._close_sockets()

    def _fail(self, failure: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or failure
            self._status = self._read_status()
            self._changed.notify_all()
        if self._on_status is not None:
            self._on_status(self._status)

    def _on_thread_failure(self, name: str, failure: BaseException) -> None:
        LOG.error("%s: the %s failed", self.folder, name, exc_info=failure)
        self._fail(failure)

    def _close_sockets(self) -> None:
        with ExitStack() as last_first:
            last_first.callback(self._context.close)
            last_first.callback(self._zap.close, linger=0)
            last_first.callback(close_watched, self._router, self._monitor)

    def _turn(self, poller: zmq.Poller) -> None:
        """Wait for an event or a deadline, and handle it."""
        now_ns = self._clock_ns()
        poll_ms = self._poll_ms if self._core.peers else IDLE_MS
        ready = dict(poller.poll(timeout_ms(self._core.next_deadline_ns(), now_ns, poll_ms)))
        if self._wake_up.fileno() in ready:
            self._wake_up.clear()
        if self._zap in ready and self._keys is not None:
            self._zap.send_multipart(self._keys.answer(self._zap.recv_multipart()))
        if self._monitor is not None and self._monitor in ready:
            events = broken_events(self._monitor)
            self._failed_handshake_count += sum(event in FAILED_HANDSHAKES for event in events)
        if self._router in ready:
            self._receive()
        words, now_ns = self._reader.words(), self._clock_ns()
        if words != self._words:
            self._words = words
            self._perform(self._core.on_appended(self._reader.next_index_seen(), now_ns))
            self._poll_ms = POLL_MS_MIN
        else:
            self._poll_ms = min(self._poll_ms + 1, POLL_MS_MAX)
        deadline_ns = self._core.next_deadline_ns()
        if deadline_ns is not None and now_ns >= deadline_ns:
            self._perform(self._core.on_timer(now_ns))
        self._publish()

    def _receive(self) -> None:
        for _ in range(FRAMES_AT_ONCE):
            try:
                peer, *frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                if len(frames) != 1:
                    raise BadMessage(f"a message of {len(frames)} frames")
                effects = self._core.on_message(peer, decode(frames[0]), self._clock_ns())
            except BadMessage as refused:
                effects = self._core.on_bad_message(peer, str(refused))
            self._perform(effects)

    def _perform(self, effects: list[LeaderEffect]) -> None:
        self._effects.extend(effects)
        while self._effects:
            effect = self._effects.popleft()
            try:
                self._effects.extend(self._perform_one(effect))
            except (JournalError, OSError) as failed:
                if isinstance(effect, ShowUntil):
                    raise
                LOG.warning("%s: could not read records for a follower: %s", self.folder, failed)
                self._effects.extend(self._core.on_read_failed(effect.peer, str(failed)))

    def _perform_one(self, effect: LeaderEffect) -> list[LeaderEffect]:
        core, reader, now_ns = self._core, self._reader, self._clock_ns()
        match effect:
            case SendTo():
                self._router.send_multipart([effect.peer, encode(effect.message)])
            case ReadFrom():
                return core.on_read(effect.peer, self._read(effect), now_ns)
            case ShowUntil():
                if self._mode is Mode.SHOW_REPLICATED:
                    self._control.set_word(VISIBLE, effect.index)
                self._publish()
            case LookUpOldest():
                return core.on_oldest(effect.peer, reader.oldest_index(), now_ns)
            case CompareTail():
                differs_at = first_difference(reader, effect.next_index, effect.tail)
                return core.on_tail_compared(effect.peer, differs_at, now_ns)
            case CompareOne():
                return core.on_one_compared(effect.peer, effect.found, is_same(reader, effect.found))
            case Forget():
                self._places.pop(effect.peer, None)
        return []

    def _read(self, effect: ReadFrom) -> Any:
        """Continue where the last read for this peer ended, unless it needs earlier records again."""
        bits = self._reader.sequence_bits
        kept = self._places.get(effect.peer)
        place = (
            kept[1] if kept is not None and kept[0] == effect.from_index else self._reader.place_at(effect.from_index)
        )
        if place is None:
            return []
        found = self._reader.read(place, effect.size_max)
        next_index = found[-1].next_index(bits) if found else effect.from_index
        self._places[effect.peer] = next_index, place
        return found

    def _read_status(self) -> LeaderStatus:
        core = self._core
        followers = {peer.follower_id: peer.acked_index for peer in core.peers.values() if peer.state in FOLLOWING}
        failure = self._failure
        return LeaderStatus(
            core.replicated_index,
            followers if failure is None else {},
            self._failed_handshake_count,
            core.violation_count,
            "" if failure is None else f"{type(failure).__name__}: {failure}",
        )

    def _publish(self) -> None:
        status = self._read_status()
        if status != self._status:
            with self._changed:
                self._status = status
                self._changed.notify_all()
            if self._on_status is not None:
                self._on_status(status)
