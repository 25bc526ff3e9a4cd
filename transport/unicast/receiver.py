"""The client's end: receives the channels of one start of an adapter. It reconnects by itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import zmq
from zmq.utils import z85

from tandemfeed.transport.multicast.sockets import RECEIVE_QUEUE_COUNT_MAX
from tandemfeed.transport.unicast.wire import MESSAGE_SIZE_MAX, TOPIC_SIZE, CurveKeys, topic_of

RECONNECT_MS, RECONNECT_MS_MAX = 100, 2_000
HANDSHAKE_MS = 2_000  # also the pause after a refusal
HEARTBEAT_MS, SILENCE_MS_MAX = 1_000, 5_000  # a host that vanished is noticed after that


class UnicastReceiver:
    """Receives what one start of an adapter sends.

    Args:
        endpoint: "IPV4:PORT" of the adapter.
        server_key: the CURVE public key of this start; no other server is believed.
        keys: the client's, which the adapter admits.
        receive_queue_count_max: datagrams kept for a slow reader. Then TCP slows the adapter down for this client, and
            the adapter drops what does not fit into its own queue.

    Attributes:
        group: empty: it is not a multicast group.
    """

    group = ""

    def __init__(
        self,
        context: zmq.Context[Any],
        endpoint: str,
        server_key: bytes,
        keys: CurveKeys,
        channel_ids: Iterable[int],
        *,
        receive_queue_count_max: int = RECEIVE_QUEUE_COUNT_MAX,
    ) -> None:
        self.endpoint = endpoint
        self.socket: zmq.Socket[bytes] = context.socket(zmq.SUB)
        self._channel_ids: frozenset[int] = frozenset()
        try:
            self.socket.linger = 0
            self.socket.curve_serverkey = z85.encode(server_key)
            self.socket.curve_publickey, self.socket.curve_secretkey = z85.encode(keys.public), z85.encode(keys.secret)
            self.socket.setsockopt(zmq.RCVHWM, receive_queue_count_max)
            self.socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_SIZE_MAX)
            self.socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
            self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX)
            self.socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
            self.socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
            self.socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS_MAX)
            self.set_channels(channel_ids)
            self.socket.connect(f"tcp://{endpoint}")
        except BaseException:
            self.socket.close(linger=0)
            raise
        self._recv = self.socket.recv
        self._polled = [(self.socket, zmq.POLLIN)]

    def set_channels(self, channel_ids: Iterable[int]) -> None:
        """Receive these channels from now on."""
        wanted = frozenset(channel_ids)
        for channel_id in wanted - self._channel_ids:
            self.socket.subscribe(topic_of(channel_id))
        for channel_id in self._channel_ids - wanted:
            self.socket.unsubscribe(topic_of(channel_id))
        self._channel_ids = wanted

    def receive(self) -> bytes | None:
        """The next datagram, or None if there is none. Never blocks."""
        try:
            message: bytes = self._recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return message[TOPIC_SIZE:]

    def may_have_more(self) -> bool:
        """True if another datagram waits: cheaper than to receive none, or to ask for the socket's events."""
        return bool(zmq.zmq_poll(self._polled, 0))

    @property
    def last_sender(self) -> str:
        """The adapter's address, as of `MulticastReceiver`."""
        return self.endpoint

    def close(self) -> None:
        """Disconnect; what was not read is dropped."""
        self.socket.close()
