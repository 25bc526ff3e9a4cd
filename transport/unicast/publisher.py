"""The adapter's end: sends every datagram to the clients that connected for its channel. Never blocks.

A client that reads too slowly loses datagrams, as by multicast: it sees a gap and requests a replay. Its queue is
bounded, and clients share the datagrams in their queues.

ZeroMQ closes no connection of a socket like this one by itself, so `disconnect` shuts down the client's TCP
connection. libzmq says which that is with each subscription. An inode, which no other socket gets, shows whether the
file descriptor still belongs to the connection.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import zmq
from zmq.utils import z85

from tandemfeed.runtime.zeromq import Context
from tandemfeed.transport.unicast.admitted_clients import AdmittedClients
from tandemfeed.transport.unicast.doorkeeper import Doorkeeper
from tandemfeed.transport.unicast.listener import Listener
from tandemfeed.transport.unicast.wire import CurveKeys, channel_of, parse_unicast_address, topic_of

LOG = logging.getLogger("tandemfeed.transport.unicast")
SEND_QUEUE_COUNT_MAX = 10_000  # datagrams for each client
INCOMING_SIZE_MAX = 1_024  # nothing that a client sends is longer, and the handshake is about 300 bytes
HANDSHAKE_MS = 3_000  # a connection that has not introduced itself by then is closed
HEARTBEAT_MS, SILENCE_MS_MAX = 5_000, 30_000  # the queue of a client whose host vanished is freed after that
DRAIN_COUNT_MAX = 64  # subscriptions a turn
LISTEN_AGAIN_NS = 1_000_000_000
_BEGINS = b"\1"  # the first byte of a subscription; that of its end is 0
# A client subscribes once to each channel. One that sends much more takes time from the loop, and is disconnected.
SPARE_MESSAGES = 16


@dataclass(slots=True)
class _Connection:
    """Attributes: channel_ids: those that it subscribed to, refused or not; message_count: what it has sent."""

    inode: int
    client_key: bytes = field(repr=False)
    channel_ids: set[int] = field(default_factory=set)
    message_count: int = 0


class UnicastPublisher:
    """One adapter's unicast socket, for one thread.

    Args:
        listen: "IPV4:PORT"; port 0: any.
        admitted: who may connect.
    """

    def __init__(self, listen: str, keys: CurveKeys, channel_ids: Iterable[int], admitted: AdmittedClients) -> None:
        parse_unicast_address(listen)
        self._address = listen
        self._listener: Listener | None = None
        self._admitted = admitted
        self._counts = dict.fromkeys(channel_ids, 0)  # subscriptions
        self._message_count_max = SPARE_MESSAGES + 2 * len(self._counts)
        self._topics: dict[int, bytes] = {}  # of the channels that have any
        self._connections: dict[int, _Connection] = {}  # by file descriptor
        self._listen_at_ns = 0
        # A context of its own, so that handshakes do not delay the I/O thread that multicasts.
        self._context = Context()
        try:
            self.socket = _make_socket(self._context, keys)
            self._send = super(zmq.Socket, self.socket).send  # as in `transport.multicast.zeromq`
            self._doorkeeper = Doorkeeper(
                self._context, self.socket, lambda key: admitted.channels_of(key) is not None, self._on_crowd
            )
            self._doorkeeper.start()
        except BaseException:
            self._context.close()
            raise

    @property
    def endpoint(self) -> str:
        """Where clients connect; empty until it listens."""
        return "" if self._listener is None else self._listener.endpoint

    @property
    def connection_count(self) -> int:
        """How many connections that have subscribed are open. Any thread."""
        known = list(self._connections.items())  # also those that have ended since
        return sum(_inode_of(descriptor) == connection.inode for descriptor, connection in known)

    @property
    def wants(self) -> bool:
        """Whether any client has subscribed. Without clients, sending costs no more than this question."""
        return bool(self._topics)

    def send(self, datagrams: Iterable[tuple[int, bytes]]) -> None:
        """Send datagrams, each with its channel_id, to the channel's subscribers."""
        topics, send = self._topics, self._send
        for channel_id, datagram in datagrams:
            topic = topics.get(channel_id)
            if topic is not None:
                send(topic + datagram, zmq.NOBLOCK)

    def read_subscriptions(self) -> None:
        """Take what clients subscribed to, and the ends of connections. Call it when `socket` is readable."""
        for _ in range(DRAIN_COUNT_MAX):
            try:
                frame = self.socket.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            is_begin, topic = frame.bytes.startswith(_BEGINS), frame.bytes[1:]
            client = _client_of(frame)
            if client is not None:
                self._on_subscription(topic, *client, is_begin=is_begin)
            else:  # libzmq's own: a connection with this subscription has ended
                self._count(channel_of(topic), -1)

    def disconnect(self, client_keys: Collection[bytes]) -> None:
        """Shut down the connections of these clients, which are not admitted any more."""
        if not client_keys:
            return
        for descriptor, connection in list(self._connections.items()):
            if connection.client_key in client_keys:
                del self._connections[descriptor]
                self._shut_down(descriptor, connection.inode)

    def keep(self, now_ns: int) -> None:
        """Listen, and end what has expired. Call it a few times a second."""
        self.disconnect(self._admitted.expire(now_ns))
        if self._listener is None and now_ns >= self._listen_at_ns:
            self._listen(now_ns)

    def close(self) -> None:
        """Close the socket and end the thread; unsent datagrams are dropped."""
        self.socket.disable_monitor()
        self._doorkeeper.stop()
        self.socket.close(linger=0)
        self._context.close()
        if self._listener is not None:
            self._listener.close()

    # ---- inside ----

    def _listen(self, now_ns: int) -> None:
        try:
            self._listener = Listener(self._address)
        except OSError as refused:
            if not self._listen_at_ns:  # once; an earlier process may still have the port
                why = f"{refused}; retrying every second"
                LOG.warning("cannot listen for unicast clients", extra={"address": self._address, "why": why})
            self._listen_at_ns = now_ns + LISTEN_AGAIN_NS
            return
        self.socket.setsockopt(zmq.USE_FD, self._listener.for_libzmq())
        self.socket.bind(f"tcp://{self._listener.endpoint}")

    def _on_crowd(self, is_crowd: bool) -> None:
        assert self._listener is not None
        self._listener.set_deaf(is_crowd)
        if is_crowd:
            LOG.warning("too many unicast connections; no more are accepted", extra={"endpoint": self.endpoint})

    def _on_subscription(self, topic: bytes, client_key: bytes, descriptor: int, *, is_begin: bool) -> None:
        """Accept a subscription to a channel that the client may have; ignore any other. Or end one."""
        channel_id = channel_of(topic)
        connection = self._connection_of(descriptor, client_key)
        had_it = connection is not None and channel_id in connection.channel_ids
        if is_begin != had_it:
            self._count(channel_id, +1 if is_begin else -1)  # even if it is refused: libzmq will report its end
        if connection is None:
            return
        granted = self._admitted.channels_of(client_key)
        if granted is None or connection.message_count > self._message_count_max:
            self._shut_down(descriptor, connection.inode)
        elif channel_id in self._counts:
            (connection.channel_ids.add if is_begin else connection.channel_ids.discard)(channel_id)
            if channel_id in granted:  # for the connection that the last message came from
                self.socket.setsockopt(zmq.SUBSCRIBE if is_begin else zmq.UNSUBSCRIBE, topic)

    def _connection_of(self, descriptor: int, client_key: bytes) -> _Connection | None:
        """The connection that sent a message; None if it has ended meanwhile."""
        inode = _inode_of(descriptor)
        if inode is None:
            return None
        connection = self._connections.get(descriptor)
        if connection is None or connection.inode != inode:
            connection = self._connections[descriptor] = _Connection(inode, client_key)
        connection.message_count += 1
        return connection

    def _shut_down(self, descriptor: int, inode: int) -> None:
        """Shut down a connection, unless it has ended and its file descriptor belongs to something else."""
        assert self._listener is not None
        with contextlib.suppress(OSError), socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as connection:
            # `fromfd` makes a copy, so that the number cannot be used again between the comparison and the end.
            is_own = connection.getsockname() == self._listener.name
            if is_own and os.fstat(connection.fileno()).st_ino == inode:
                connection.shutdown(socket.SHUT_RDWR)

    def _count(self, channel_id: int | None, change: int) -> None:
        if channel_id not in self._counts:
            return
        self._counts[channel_id] = max(0, self._counts[channel_id] + change)
        if self._counts[channel_id]:
            self._topics[channel_id] = topic_of(channel_id)
        else:
            self._topics.pop(channel_id, None)


def _make_socket(context: zmq.Context[Any], keys: CurveKeys) -> zmq.Socket[bytes]:
    made: zmq.Socket[bytes] = context.socket(zmq.XPUB)
    made.linger = 0
    made.curve_server = True
    made.curve_secretkey = z85.encode(keys.secret)
    made.setsockopt(zmq.ZAP_DOMAIN, b"unicast")
    made.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    made.setsockopt(zmq.XPUB_MANUAL, 1)  # no subscription counts before it is accepted here
    made.setsockopt(zmq.SNDHWM, SEND_QUEUE_COUNT_MAX)
    made.setsockopt(zmq.MAXMSGSIZE, INCOMING_SIZE_MAX)
    made.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    made.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    made.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS_MAX)
    return made


def _inode_of(descriptor: int) -> int | None:
    """The inode of an open file descriptor."""
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return None


def _client_of(frame: zmq.Frame) -> tuple[bytes, int] | None:
    """The key and the file descriptor of the client that a subscription came from; None: it came from libzmq."""
    try:
        return bytes.fromhex(str(frame.get("User-Id"))), int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return None
