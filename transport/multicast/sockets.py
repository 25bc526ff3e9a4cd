"""How a process multicasts: on which interface, and with whose sockets. The rest of the code knows only these shapes.

Every process imports this, also one that never multicasts, so the sockets themselves are imported when one is made.

`zeromq`: libzmq's ZMQ_DGRAM (`zeromq`). `udp`: the kernel's own (`udp`), which save two switches of threads for each
datagram, and keep fewer of them for a slow reader. The datagrams are the same, so processes may differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

Datagrams: TypeAlias = Literal["zeromq", "udp"]
LOOPBACK = "127.0.0.1"
RECEIVE_QUEUE_COUNT_MAX = 100_000  # about 150 MB at worst


class MulticastReceiver(Protocol):
    """Receives one group on one interface.

    Attributes:
        group: "239.x.y.z:port".
        socket: what to poll: a ZeroMQ socket, or a descriptor.
    """

    group: str
    socket: Any

    def receive(self) -> bytes | None:
        """The next datagram's body, or None if there is none. Never blocks."""

    def may_have_more(self) -> bool:
        """False if no other datagram waits, and finding that out so costs less than to receive none."""

    @property
    def last_sender(self) -> str:
        """The "IPV4:PORT" of the last datagram's sender, as the network gives it; empty before the first.

        It proves nothing, because any host can send from any address. It may tell people, or the code, where to look
        first; it is never a reason to believe a packet.
        """

    def close(self) -> None:
        """Leave the group."""


class MulticastSender(Protocol):
    """Sends datagrams to any group from one interface."""

    def send(self, group: bytes, datagram: bytes) -> None:
        """Send one datagram to b"239.x.y.z:port".

        Raises:
            DatagramTooLong, BadGroup: nothing was sent.
        """

    def close(self) -> None:
        """Close the socket and drop unsent datagrams."""


@dataclass(frozen=True, slots=True)
class Multicast:
    """Makes a process's sockets.

    Attributes:
        interface: IP address of the interface.
        datagrams: whose sockets.
    """

    interface: str = LOOPBACK
    datagrams: Datagrams = "zeromq"

    def receiver(
        self, context: Any, group: str, *, receive_queue_count_max: int = RECEIVE_QUEUE_COUNT_MAX
    ) -> MulticastReceiver:
        """Join a group.

        Args:
            context: the process's ZeroMQ context.
            group: "239.x.y.z:port".
            receive_queue_count_max: datagrams kept for a slow reader; later ones are dropped, as networks do.

        Raises:
            BadGroup: it cannot be joined on this interface.
        """
        if self.datagrams == "udp":
            from tandemfeed.transport.multicast.udp import UdpReceiver

            return UdpReceiver(self.interface, group, receive_queue_count_max=receive_queue_count_max)
        from tandemfeed.transport.multicast.zeromq import ZeromqReceiver

        return ZeromqReceiver(context, self.interface, group, receive_queue_count_max=receive_queue_count_max)

    def sender(self, context: Any, *, datagram_size_max: int) -> MulticastSender:
        """A socket to send from.

        Args:
            context: the process's ZeroMQ context.
            datagram_size_max: bytes; a longer datagram is refused.

        Raises:
            BadGroup: this host does not have the interface.
            DatagramTooLong: not every receiver could take so long a datagram.
        """
        if self.datagrams == "udp":
            from tandemfeed.transport.multicast.udp import UdpSender

            return UdpSender(self.interface, datagram_size_max=datagram_size_max)
        from tandemfeed.transport.multicast.zeromq import ZeromqSender

        return ZeromqSender(context, self.interface, datagram_size_max=datagram_size_max)
