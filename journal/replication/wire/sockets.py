"""Sockets for leader and follower: options, a wake-up by other threads, and events of broken connections."""

from __future__ import annotations

import contextlib
import os
import threading

import zmq
from zmq.utils.monitor import recv_monitor_message

from tandemfeed.journal.replication.limits import FRAME_SIZE_MAX

BROKEN_EVENTS = {
    zmq.Event.DISCONNECTED: "the connection broke",
    zmq.Event.CLOSED: "the connection was refused",
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL: "the connection's handshake failed",
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL: "the connection's handshake failed: wrong keys, or not a ZeroMQ peer",
    zmq.Event.HANDSHAKE_FAILED_AUTH: "the connection's handshake failed: this key is not allowed",
}
FAILED_HANDSHAKES = frozenset(
    {
        zmq.Event.HANDSHAKE_FAILED_NO_DETAIL,
        zmq.Event.HANDSHAKE_FAILED_PROTOCOL,
        zmq.Event.HANDSHAKE_FAILED_AUTH,
    }
)
FRAMES_AT_ONCE = 64  # received before timers, other sockets and the wake-up are checked


class WakeUp:
    """Wakes a polling thread. Any thread may set it at any time, also when it is closed already."""

    def __init__(self) -> None:
        self._closing = threading.Lock()  # a closed descriptor's number may belong to another file
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._fd

    def set(self) -> None:
        """Wake the thread."""
        with self._closing, contextlib.suppress(BlockingIOError):  # the counter is full, so it is already set
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Reset it; only for the polling thread."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)

    def close(self) -> None:
        """Close the descriptor. Further calls do nothing."""
        with self._closing:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1


def new_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int, endpoint: str) -> zmq.Socket[bytes]:
    """A socket that queues without limit, because the window bounds the queue, and drops its queue when closed."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, FRAME_SIZE_MAX)
    socket.setsockopt(zmq.IPV6, "[" in endpoint)  # otherwise a dual-stack port reports itself as ::ffff:a.b.c.d
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    return socket


def watch(socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """A socket that receives events about this one's broken connections. Close both with `close_watched`."""
    return socket.get_monitor_socket(sum(BROKEN_EVENTS))


def close_watched(socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes] | None) -> None:
    """Close a socket and its monitor, also if something still refers to them, such as a traceback.

    An open socket would keep its context from ending.
    """
    if monitor is not None:
        with contextlib.suppress(zmq.ZMQError):  # the socket is closed already
            socket.disable_monitor()
        monitor.close(linger=0)
    socket.close(linger=0)


def broken_events(monitor: zmq.Socket[bytes]) -> list[zmq.Event]:
    """The events since the last call."""
    found = []
    while monitor.poll(0):
        found.append(zmq.Event(recv_monitor_message(monitor)["event"]))
    return found


def timeout_ms(deadline_ns: int | None, now_ns: int, timeout_ms_max: int) -> int:
    """How long to poll: up to the deadline, rounded up to milliseconds."""
    if deadline_ns is None:
        return timeout_ms_max
    return min(max(-(-(deadline_ns - now_ns) // 1_000_000), 0), timeout_ms_max)
