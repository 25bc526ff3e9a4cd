"""What both ends of a unicast connection agree on: addresses, keys, and the topic in front of each datagram.

A message has one frame: two bytes of topic, the channel_id, then the very datagram that is multicast. ZeroMQ compares a
subscription with a message's first bytes, so a separate topic frame would only be sent and encrypted in addition.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

from tandemfeed.feedcore.wire.output_packet import DATAGRAM_SIZE_MAX

CURVE_KEY_SIZE = 32
_TOPIC = struct.Struct("<H")
TOPIC_SIZE = _TOPIC.size
MESSAGE_SIZE_MAX = TOPIC_SIZE + DATAGRAM_SIZE_MAX


class BadUnicastAddress(ValueError):
    """The address of a unicast socket is invalid; the text says why."""


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """A CURVE key pair, made for one start of an adapter or for one subscription."""

    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> CurveKeys:
        """A new random pair."""
        public, secret = zmq.curve_keypair()
        return cls(z85.decode(public), z85.decode(secret))


def topic_of(channel_id: int) -> bytes:
    """The bytes in front of each datagram of a channel."""
    return _TOPIC.pack(channel_id)


def channel_of(topic: bytes) -> int | None:
    """The channel that a subscription names; None if it names none."""
    return _TOPIC.unpack(topic)[0] if len(topic) == TOPIC_SIZE else None


def parse_unicast_address(address: str) -> tuple[str, int]:
    """Split and check "IPV4:PORT", where an adapter listens; port 0 stands for any free port.

    Raises:
        BadUnicastAddress: the text says what is wrong.
    """
    host, _, port = address.rpartition(":")
    try:
        ip, number = ipaddress.IPv4Address(host), int(port)
    except ValueError:
        raise BadUnicastAddress(f"{address!r} is not IPV4:PORT, such as 10.0.0.5:7450") from None
    if ip.is_multicast or ip.is_unspecified:
        raise BadUnicastAddress(f"{address!r}: {host} is not the address of one interface, to which clients connect")
    if not 0 <= number < 65_536:
        raise BadUnicastAddress(f"{address!r}: the port is {number}; it must be from 0 (any free port) to 65535")
    return host, number
