"""The thread that answers libzmq's question who may connect (ZAP, RFC 27), and counts the open connections.

Only a caller that knows the server's key gets as far as that question, and the admin server gives this key to the
feed's adapters and subscribers alone. The thread works in small portions with pauses, so that a flood of handshakes
takes little time from the thread that sends packets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import zmq
from zmq.utils.monitor import recv_monitor_message

from tandemfeed.runtime.threads import mark_unhealthy, start_thread

ZAP_ENDPOINT = "inproc://zeromq.zap.01"  # the name that libzmq asks at, in every context
CONNECTION_COUNT_MAX = 256  # one I/O thread encrypts for them; and far below the usual limit of 1,024 open files
CONNECTION_COUNT_ROOM = CONNECTION_COUNT_MAX * 3 // 4  # new ones are accepted again below this
# A client may connect before the order that admits it arrives. Its question waits, because a refused client asks again
# only when its handshake has timed out.
PARKED_NS = 1_000_000_000
PARKED_COUNT_MAX = 64
PORTION = 16  # questions, then a pause: at most about a thousand a second
PAUSE_S = 0.015
IDLE_POLL_MS = 100
PARKED_POLL_MS = 20
_ADMITTED, _REFUSED = (b"200", b"OK"), (b"300", b"not admitted; the client may ask again")
_EVENTS = zmq.Event.ACCEPTED | zmq.Event.DISCONNECTED


class _Question(NamedTuple):
    """Whether a client may connect. Attributes: until_ns: when it is answered at the latest."""

    asker: bytes
    version: bytes
    request_id: bytes
    client_key: bytes
    until_ns: int


class Doorkeeper:
    """Its thread runs from `start` until `stop`, and owns both sockets from then on.

    Args:
        context: of the socket; it has no other socket that listens.
        publisher: the socket, not bound yet. Only its monitor is used here.
        is_admitted: whether the client with this CURVE public key may connect.
        on_crowd: called with whether there are too many connections, when that has changed.
        now_ns: the monotonic clock.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        publisher: zmq.Socket[bytes],
        is_admitted: Callable[[bytes], bool],
        on_crowd: Callable[[bool], None],
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._is_admitted, self._on_crowd, self._now_ns = is_admitted, on_crowd, now_ns
        self._zap: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        try:
            self._zap.linger = 0
            self._zap.bind(ZAP_ENDPOINT)
            self._monitor = publisher.get_monitor_socket(_EVENTS)
        except BaseException:
            self._zap.close(linger=0)
            raise
        self._open: set[int] = set()  # file descriptors
        self._parked: dict[tuple[bytes, bytes], _Question] = {}  # the oldest first
        self._is_stopping = threading.Event()
        self._is_crowded = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to answer. If the thread fails, no further client is admitted, and the process is unhealthy."""
        self._thread = start_thread(self._run, "unicast-doorkeeper", mark_unhealthy)

    def stop(self) -> None:
        """End the thread, and close the sockets."""
        self._is_stopping.set()
        if self._thread is not None:
            self._thread.join()
        else:
            self._close()

    # ---- inside ----

    def _run(self) -> None:
        try:
            self._answer_until_stopped()
        finally:
            self._close()

    def _answer_until_stopped(self) -> None:
        poller = zmq.Poller()
        poller.register(self._zap, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        while not self._is_stopping.is_set():
            poller.poll(PARKED_POLL_MS if self._parked else IDLE_POLL_MS)
            self._count_connections()
            if self._take_questions() == PORTION:
                self._is_stopping.wait(PAUSE_S)
            self._answer_parked(self._now_ns())

    def _close(self) -> None:
        self._zap.close(linger=0)
        self._monitor.close(linger=0)

    def _count_connections(self) -> None:
        while True:
            try:
                event = recv_monitor_message(self._monitor, zmq.NOBLOCK)
            except zmq.ZMQError:  # nothing more
                break
            change = self._open.add if event["event"] == zmq.Event.ACCEPTED else self._open.discard
            change(event["value"])
        limit = CONNECTION_COUNT_ROOM if self._is_crowded else CONNECTION_COUNT_MAX
        if (len(self._open) >= limit) != self._is_crowded:
            self._is_crowded = not self._is_crowded
            self._on_crowd(self._is_crowded)

    def _take_questions(self) -> int:
        """Take up to PORTION questions; return how many."""
        for count in range(PORTION):
            try:
                frames = self._zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return count
            asker, _, version, request_id, _domain, _address, _identity, _mechanism, client_key = frames
            question = _Question(asker, version, request_id, client_key, self._now_ns() + PARKED_NS)
            self._parked[asker, request_id] = question
        return PORTION

    def _answer_parked(self, now_ns: int) -> None:
        excess = len(self._parked) - PARKED_COUNT_MAX
        for place, question in enumerate(list(self._parked.values())):
            if self._is_admitted(question.client_key):
                self._answer(question, *_ADMITTED, user_id=question.client_key.hex())
            elif place < excess or question.until_ns <= now_ns:
                self._answer(question, *_REFUSED)

    def _answer(self, question: _Question, status: bytes, text: bytes, user_id: str = "") -> None:
        asker, version, request_id, *_ = question
        del self._parked[asker, request_id]
        answer = [asker, b"", version, request_id, status, text, user_id.encode(), b""]
        self._zap.send_multipart(answer, zmq.NOBLOCK)
