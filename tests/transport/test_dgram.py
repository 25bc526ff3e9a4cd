"""Real multicast through ZeroMQ; in a network namespace where one can be made, else on the loopback interface."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from tandemfeed.transport.dgram import (
    BadGroup,
    DatagramTooLong,
    MulticastReceiver,
    MulticastSender,
    check_interface,
    parse_group,
)

GROUP, OTHER = "239.192.77.1:17001", "239.192.77.2:17002"
WAIT_MS = 10_000


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    made: zmq.Context[Any] = zmq.Context()
    yield made
    made.destroy(linger=0)


def receive(receiver: MulticastReceiver) -> bytes:
    assert receiver.socket.poll(WAIT_MS)
    datagram = receiver.receive()
    assert datagram is not None
    return datagram


def test_a_datagram_reaches_every_receiver_of_its_group_and_no_other_group(context: zmq.Context[Any]) -> None:
    first, second = (MulticastReceiver(context, "127.0.0.1", GROUP) for _ in range(2))
    other = MulticastReceiver(context, "127.0.0.1", OTHER)
    sender = MulticastSender(context, "127.0.0.1")
    sender.send(GROUP.encode(), b"for the group")
    sender.send(OTHER.encode(), b"for the other")
    assert [receive(each) for each in (first, second, other)] == [b"for the group", b"for the group", b"for the other"]
    assert first.receive() is None


def test_a_receiver_reports_the_address_of_the_last_datagrams_sender(context: zmq.Context[Any]) -> None:
    receiver = MulticastReceiver(context, "127.0.0.1", GROUP)
    assert receiver.last_sender == ""
    assert receiver.receive() is None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        plain.bind(("127.0.0.1", 0))
        plain.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        plain.sendto(b"from here", ("239.192.77.1", 17001))
        while not receiver.socket.poll(20):  # libzmq joins the group a little later, in another thread
            plain.sendto(b"from here", ("239.192.77.1", 17001))
        assert receive(receiver) == b"from here"
        assert receiver.last_sender == f"127.0.0.1:{plain.getsockname()[1]}"


def test_a_datagram_over_the_limit_is_refused_and_the_next_one_is_sent(context: zmq.Context[Any]) -> None:
    receiver = MulticastReceiver(context, "127.0.0.1", GROUP)
    sender = MulticastSender(context, "127.0.0.1", datagram_size_max=8_192)
    for size in (8_193, 65_000, 1_000_000):
        with pytest.raises(DatagramTooLong):
            sender.send(GROUP.encode(), bytes(size))
    sender.send(GROUP.encode(), b"x" * 8_192)
    assert receive(receiver) == b"x" * 8_192


def test_a_limit_that_libzmq_cannot_carry_is_refused(context: zmq.Context[Any]) -> None:
    for size in (0, 8_193):
        with pytest.raises(DatagramTooLong):
            MulticastSender(context, "127.0.0.1", datagram_size_max=size)


@pytest.mark.parametrize("group", ["", "239.1.1.1", "10.0.0.1:5000", "239.1.1.1:0", "239.1.1.1:70000", "group:5000"])
def test_a_bad_group_is_refused_by_name(group: str) -> None:
    with pytest.raises(BadGroup, match=r"multicast|IPV4:PORT|port"):
        parse_group(group)


def test_the_error_for_an_unknown_interface_names_its_address(context: zmq.Context[Any]) -> None:
    with pytest.raises(BadGroup, match=r"203\.0\.113\.9"):
        MulticastReceiver(context, "203.0.113.9", GROUP)


def test_the_sender_refuses_an_unknown_interface_and_an_invalid_group(context: zmq.Context[Any]) -> None:
    with pytest.raises(BadGroup, match=r"203\.0\.113\.9"):
        MulticastSender(context, "203.0.113.9")
    sender = MulticastSender(context, "127.0.0.1")
    for group in (b"", b"239.1.1.1", b"127.0.0.1:5000", b"\xff\xfe:1"):
        with pytest.raises(BadGroup):
            sender.send(group, b"x")


def test_the_receive_queue_is_bounded_and_continues_after_an_overflow(context: zmq.Context[Any]) -> None:
    """The limit counts datagrams in libzmq, approximately; the kernel's buffer has room for some hundred more."""
    receiver = MulticastReceiver(context, "127.0.0.1", GROUP, receive_queue_count_max=100)
    other = MulticastReceiver(context, "127.0.0.1", GROUP)
    sender = MulticastSender(context, "127.0.0.1")
    for _ in range(1_000):
        sender.send(GROUP.encode(), bytes(1_400))
        receive(other)  # paces the sender: every datagram sent so far has arrived
    kept = 0
    while receiver.socket.poll(200):
        assert receiver.receive() is not None
        kept += 1
    assert 100 <= kept < 500
    sender.send(GROUP.encode(), b"after")
    assert receive(receiver) == b"after"


def test_an_empty_datagram_arrives_empty(context: zmq.Context[Any]) -> None:
    receiver, sender = MulticastReceiver(context, "127.0.0.1", GROUP), MulticastSender(context, "127.0.0.1")
    sender.send(GROUP.encode(), b"")
    assert receive(receiver) == b""


def test_an_interface_that_is_not_an_address_is_refused_with_what_to_name() -> None:
    with pytest.raises(BadGroup, match="interface 'eth0' is not an IPv4 address; name the interface by its address"):
        check_interface("eth0")
