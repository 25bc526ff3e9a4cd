"""Both sides run, but the network fails: connections break, or stall silently."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import Any, Self

import pytest

from tandemfeed.journal import Journal
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN
from tandemfeed.journal.replication import Limits, ReplicationFollower, ReplicationLeader
from tests.journal.replication.replication_process import segments_of

MS = 1_000_000
WAIT_S = 60.0
TIMES = 4
LIMITS = Limits(heartbeat_interval_ns=50 * MS, silence_ns_max=400 * MS, backoff_ns_min=5 * MS, backoff_ns_max=50 * MS)


class Network:
    """A proxy to the leader that can be interrupted."""

    def __init__(self, endpoint: str) -> None:
        host, port = endpoint.removeprefix("tcp://").split(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._pairs: list[tuple[socket.socket, socket.socket, threading.Event]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed at the end
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                is_frozen = threading.Event()
                self._pairs.append((near, far, is_frozen))
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, target, is_frozen), daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket, is_frozen: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if not is_frozen.is_set():
                    target.sendall(data)

    def cut(self) -> None:
        """Break every connection."""
        for pair in self._pairs:
            for each in pair[:2]:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
        self._pairs.clear()

    def freeze(self) -> None:
        """Stall all connections silently; new connections work."""
        for *_, is_frozen in self._pairs:
            is_frozen.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self._listener.close()
        self.cut()


@pytest.mark.parametrize("interrupt", [Network.cut, Network.freeze])
def test_a_follower_catches_up_after_every_interruption_of_the_network(tmp_path: Path, interrupt: Any) -> None:
    with (
        Journal.open(tmp_path / "leader", block_size=BLOCK_SIZE_MIN) as journal,
        ReplicationLeader(tmp_path / "leader", "tcp://127.0.0.1:*", limits=LIMITS) as leader,
        Network(leader.endpoint) as network,
        ReplicationFollower(tmp_path / "follower", network.endpoint, limits=LIMITS) as follower,
    ):
        for _ in range(TIMES):
            for number in range(300):
                last = journal.append(b"record %d" % number * 20)
            assert follower.wait_for(lambda status: status.next_index > last - 200, WAIT_S)  # noqa: B023 - ends here
            interrupt(network)
            journal.append(bytes(3_000_000))
            last = journal.append(b"after the interruption")
            assert follower.wait_for(lambda status: status.next_index > last, WAIT_S)  # noqa: B023
            assert leader.wait_for_replicated(last, WAIT_S)
        assert follower.status.failure_count >= TIMES
    assert segments_of(tmp_path / "leader") == segments_of(tmp_path / "follower")
