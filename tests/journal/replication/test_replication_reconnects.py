"""A follower whose leader fails once, fails twice, and comes back: by a clock that only the test moves."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import zmq

from tandemfeed.journal import Journal
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN
from tandemfeed.journal.replication import FollowerState, FollowerStatus, ReplicationFollower, ReplicationLeader
from tandemfeed.journal.replication.wire.codec import decode, encode
from tandemfeed.journal.replication.wire.messages import Heartbeat, Hello, Reason, Refused
from tests.journal.replication.replication_process import LIMITS, records_of

WAIT_S = 60.0


class Clock:
    """A monotonic clock that only `advance` moves."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000
        self._reads, self._read = 0, threading.Condition()

    def __call__(self) -> int:
        with self._read:
            self._reads += 1
            self._read.notify_all()
        return self.now_ns

    def wait_for_reads(self, count: int, wake: Callable[[], None]) -> None:
        """Wait until the time was read so often after a wake-up."""
        with self._read:
            before = self._reads
            wake()
            assert self._read.wait_for(lambda: self._reads >= before + count, WAIT_S)


class Follower:
    """A follower with such a clock."""

    def __init__(self, folder: Path, port: int) -> None:
        self.clock = Clock()
        self.shell = ReplicationFollower(
            folder, f"tcp://127.0.0.1:{port}", limits=LIMITS, chance=random.Random(1).random, clock_ns=self.clock
        )

    def advance(self, duration_ns: int) -> None:
        """Let time pass."""
        self.clock.now_ns += duration_ns
        self.shell.wake()

    def stay_silent(self) -> None:
        """Let so much time pass that the leader counts as silent; the follower is not paused meanwhile."""
        for _ in range(LIMITS.silence_ns_max // LIMITS.heartbeat_interval_ns):
            self.clock.now_ns += LIMITS.heartbeat_interval_ns
            for _ in range(2):  # a turn reads the time twice, and may have begun before
                self.clock.wait_for_reads(2, self.shell.wake)

    def reaches(self, predicate: Callable[[FollowerStatus], bool]) -> None:
        """Wait for a status; no time passes for the follower."""
        assert self.shell.wait_for(predicate, WAIT_S), self.shell.status


@contextlib.contextmanager
def refused(port: int) -> Iterator[None]:
    """Nothing listens."""
    yield


@contextlib.contextmanager
def closed(port: int) -> Iterator[None]:
    """Every connection is closed as soon as it is made."""
    with socket.create_server(("127.0.0.1", port)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()

        thread = threading.Thread(target=accept)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@contextlib.contextmanager
def answering(port: int, answer: Callable[[int], bytes | None]) -> Iterator[None]:
    """A process that speaks ZeroMQ answers each greeting with these bytes, or not at all."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router, stop, stopped = context.socket(zmq.ROUTER), context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    router.bind(f"tcp://127.0.0.1:{port}")
    stopped.bind("inproc://stop")
    stop.connect("inproc://stop")

    def serve() -> None:
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        poller.register(stopped, zmq.POLLIN)
        while stopped not in (ready := dict(poller.poll())):
            if router in ready:
                peer, frame = router.recv_multipart()
                message = decode(frame)
                assert isinstance(message, Hello)
                if (reply := answer(message.session)) is not None:
                    router.send_multipart([peer, reply])

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    stop.send(b"")
    thread.join()
    context.destroy(linger=0)


def refusing(session: int) -> bytes:
    return encode(Refused(session, Reason.TOO_MANY, 0, "too many followers"))


def out_of_turn(session: int) -> bytes:
    return encode(Heartbeat(session, 0))


FAILURES: dict[str, Callable[[int], AbstractContextManager[None]]] = {
    "refused connection": refused,
    "closed connection": closed,
    "silence": lambda port: answering(port, lambda session: None),
    "damaged frame": lambda port: answering(port, lambda session: b"not a frame of this protocol"),
    "message out of turn": lambda port: answering(port, out_of_turn),
    "refusal": lambda port: answering(port, refusing),
}


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def leader_at(folder: Path, port: int) -> ReplicationLeader:
    return ReplicationLeader(folder, f"tcp://127.0.0.1:{port}", limits=LIMITS, clock_ns=Clock())


def lets_it_fail(follower: Follower, failure: str, count: int) -> None:
    """Wait until the attempt in progress has failed for the `count`-th time."""
    if failure == "silence":  # the only one that no event reports
        follower.reaches(lambda status: status.state is FollowerState.GREETING)
        follower.stay_silent()
    follower.reaches(lambda status: status.failure_count == count)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_follower_connects_again_after_each_failure_and_its_pause(
    tmp_path: Path, port: int, failure: str, times: int
) -> None:
    with Journal.open(tmp_path / "leader", block_size=BLOCK_SIZE_MIN) as journal:
        last = journal.append_batch([b"one", b"two"]) + 1
        follower = Follower(tmp_path / "follower", port)
        with FAILURES[failure](port):
            follower.shell.start()
            for count in range(1, times + 1):
                lets_it_fail(follower, failure, count)
                assert follower.shell.status.state is FollowerState.WAITING
                assert follower.shell.status.reason
                if count < times:
                    follower.advance(LIMITS.backoff_ns_max)
        with leader_at(tmp_path / "leader", port):
            follower.shell.wake()  # no pause is cut short, however often the thread wakes up
            assert follower.shell.status.state is FollowerState.WAITING
            follower.advance(LIMITS.backoff_ns_max)
            follower.reaches(lambda status: status.next_index > last)
            follower.reaches(lambda status: status.state is FollowerState.FOLLOWING and not status.reason)
            assert follower.shell.status.failure_count == times
        follower.shell.stop()
        assert records_of(tmp_path / "follower") == list(journal.records())


@pytest.mark.parametrize("times", [1, 2])
def test_a_follower_follows_again_when_its_leader_has_gone_and_come_back(tmp_path: Path, port: int, times: int) -> None:
    with Journal.open(tmp_path / "leader", block_size=BLOCK_SIZE_MIN) as journal:
        follower = Follower(tmp_path / "follower", port)
        follower.shell.start()
        for count in range(times + 1):
            with leader_at(tmp_path / "leader", port):
                last = journal.append(b"record %d" % count)
                follower.advance(LIMITS.backoff_ns_max)
                follower.reaches(lambda status: status.next_index > last)  # noqa: B023 - the call ends here
            failures = follower.shell.status.failure_count
            follower.reaches(lambda status: status.failure_count > failures or status.state is FollowerState.WAITING)  # noqa: B023
        follower.shell.stop()
        assert records_of(tmp_path / "follower") == list(journal.records())
