"""Real multicast with both kinds of sockets; in a network namespace where one can be made, else on the loopback
interface. The first tests hold for any sender and any receiver."""

from __future__ import annotations

import logging
import socket
from array import array
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import zmq

from tandemfeed.feedcore.wire.output_packet import DATAGRAM_SIZE_DEFAULT
from tandemfeed.transport.multicast import udp
from tandemfeed.transport.multicast.groups import BadGroup, check_interface, parse_group
from tandemfeed.transport.multicast.sizes import DatagramTooLong
from tandemfeed.transport.multicast.sockets import Datagrams, Multicast, MulticastReceiver, MulticastSender

LOCAL = "127.0.0.1"
GROUP, OTHER, SAME_PORT = "239.192.77.1:17001", "239.192.77.2:17002", "239.192.77.3:17001"
KINDS: tuple[Datagrams, ...] = get_args(Datagrams)
WAIT_MS = 10_000


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    made: zmq.Context[Any] = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture(params=KINDS)
def receiving(request: pytest.FixtureRequest) -> Multicast:
    return Multicast(LOCAL, request.param)


@pytest.fixture(params=KINDS)
def sending(request: pytest.FixtureRequest) -> Multicast:
    return Multicast(LOCAL, request.param)


def has_arrived(receiver: MulticastReceiver, wait_ms: int = WAIT_MS) -> bool:
    return bool(zmq.zmq_poll([(receiver.socket, zmq.POLLIN)], wait_ms))


def receive(receiver: MulticastReceiver) -> bytes:
    assert has_arrived(receiver)
    datagram = receiver.receive()
    assert datagram is not None
    return datagram


def await_joined(sender: MulticastSender, *receivers: MulticastReceiver) -> None:
    """libzmq joins a group a little later, in another thread: send until a first datagram arrives."""
    for receiver in receivers:
        while not has_arrived(receiver, 20):
            sender.send(receiver.group.encode(), b"joined?")
    for receiver in receivers:
        while has_arrived(receiver, 50):
            assert receiver.receive() == b"joined?"


def test_a_datagram_reaches_every_receiver_of_its_group_and_no_other_group(
    context: zmq.Context[Any], receiving: Multicast, sending: Multicast
) -> None:
    first, second = (receiving.receiver(context, GROUP) for _ in range(2))
    other = receiving.receiver(context, OTHER)
    sender = sending.sender(context, datagram_size_max=DATAGRAM_SIZE_DEFAULT)
    await_joined(sender, first, second, other)
    sender.send(GROUP.encode(), b"for the group")
    sender.send(OTHER.encode(), b"for the other")
    assert [receive(each) for each in (first, second, other)] == [b"for the group", b"for the group", b"for the other"]
    assert first.receive() is None
    for each in (first, second, other, sender):
        each.close()


def test_receivers_of_both_kinds_receive_a_group_side_by_side(context: zmq.Context[Any], sending: Multicast) -> None:
    receivers = [Multicast(LOCAL, kind).receiver(context, GROUP) for kind in KINDS]
    sender = sending.sender(context, datagram_size_max=DATAGRAM_SIZE_DEFAULT)
    await_joined(sender, *receivers)
    sender.send(GROUP.encode(), b"for both")
    assert [receive(each) for each in receivers] == [b"for both"] * len(KINDS)
    for each in receivers:
        each.close()


def test_a_receiver_reports_the_address_of_the_last_datagrams_sender(
    context: zmq.Context[Any], receiving: Multicast
) -> None:
    receiver = receiving.receiver(context, GROUP)
    assert receiver.last_sender == ""
    assert receiver.receive() is None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        plain.bind((LOCAL, 0))
        plain.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOCAL))
        plain.sendto(b"from here", ("239.192.77.1", 17001))
        while not has_arrived(receiver, 20):
            plain.sendto(b"from here", ("239.192.77.1", 17001))
        assert receive(receiver) == b"from here"
        assert receiver.last_sender == f"{LOCAL}:{plain.getsockname()[1]}"
    receiver.close()


def test_a_receiver_that_may_have_more_says_so(context: zmq.Context[Any], receiving: Multicast) -> None:
    receiver, sender = (
        receiving.receiver(context, GROUP),
        receiving.sender(context, datagram_size_max=DATAGRAM_SIZE_DEFAULT),
    )
    await_joined(sender, receiver)
    sender.send(GROUP.encode(), b"x")
    assert has_arrived(receiver)
    assert receiver.may_have_more()
    receiver.close()


def test_a_datagram_over_the_limit_is_refused_and_the_next_one_is_sent(
    context: zmq.Context[Any], receiving: Multicast, sending: Multicast
) -> None:
    receiver = receiving.receiver(context, GROUP)
    sender = sending.sender(context, datagram_size_max=8_192)
    await_joined(sender, receiver)
    for size in (8_193, 65_000, 1_000_000):
        with pytest.raises(DatagramTooLong):
            sender.send(GROUP.encode(), bytes(size))
    sender.send(GROUP.encode(), b"x" * 8_192)
    assert receive(receiver) == b"x" * 8_192
    receiver.close()


def test_a_limit_that_libzmq_cannot_carry_is_refused(context: zmq.Context[Any], sending: Multicast) -> None:
    for size in (0, 8_193):
        with pytest.raises(DatagramTooLong, match="at most 8192 bytes"):
            sending.sender(context, datagram_size_max=size)


@pytest.mark.parametrize("group", ["", "239.1.1.1", "10.0.0.1:5000", "239.1.1.1:0", "239.1.1.1:70000", "group:5000"])
def test_a_bad_group_is_refused_by_name(group: str) -> None:
    with pytest.raises(BadGroup, match=r"multicast|IPV4:PORT|port"):
        parse_group(group)


@pytest.mark.parametrize("kind", KINDS)
def test_the_error_for_an_unknown_interface_names_its_address(context: zmq.Context[Any], kind: Datagrams) -> None:
    elsewhere = Multicast("203.0.113.9", kind)
    with pytest.raises(BadGroup, match=r"203\.0\.113\.9"):
        elsewhere.receiver(context, GROUP)
    with pytest.raises(BadGroup, match=r"203\.0\.113\.9"):
        elsewhere.sender(context, datagram_size_max=DATAGRAM_SIZE_DEFAULT)


def test_a_sender_refuses_an_invalid_group(context: zmq.Context[Any], sending: Multicast) -> None:
    sender = sending.sender(context, datagram_size_max=DATAGRAM_SIZE_DEFAULT)
    for group in (b"", b"239.1.1.1", b"127.0.0.1:5000", b"\xff\xfe:1"):
        with pytest.raises(BadGroup):
            sender.send(group, b"x")


def test_the_receive_queue_is_bounded_and_continues_after_an_overflow(
    context: zmq.Context[Any], receiving: Multicast
) -> None:
    """The limit counts full datagrams, approximately; the kernel's own buffer has some hundred more than libzmq's."""
    receiver = receiving.receiver(context, GROUP, receive_queue_count_max=100)
    other = receiving.receiver(context, GROUP)
    sender = receiving.sender(context, datagram_size_max=DATAGRAM_SIZE_DEFAULT)
    await_joined(sender, receiver, other)
    for _ in range(1_000):
        sender.send(GROUP.encode(), bytes(1_400))
        receive(other)  # paces the sender: every datagram sent so far has arrived
    kept = 0
    while has_arrived(receiver, 200):
        assert receiver.receive() is not None
        kept += 1
    assert 90 <= kept < 500
    sender.send(GROUP.encode(), b"after")
    assert receive(receiver) == b"after"
    for each in (receiver, other):
        each.close()


def test_an_empty_datagram_arrives_empty(context: zmq.Context[Any], receiving: Multicast, sending: Multicast) -> None:
    receiver, sender = (
        receiving.receiver(context, GROUP),
        sending.sender(context, datagram_size_max=DATAGRAM_SIZE_DEFAULT),
    )
    await_joined(sender, receiver)
    sender.send(GROUP.encode(), b"")
    assert receive(receiver) == b""
    receiver.close()


def test_an_interface_that_is_not_an_address_is_refused_with_what_to_name() -> None:
    with pytest.raises(BadGroup, match="interface 'eth0' is not an IPv4 address; name the interface by its address"):
        check_interface("eth0")


# ---- the kernel's own sockets ----


def test_a_udp_receiver_gets_nothing_of_another_group_with_the_same_port(context: zmq.Context[Any]) -> None:
    kernel = Multicast(LOCAL, "udp")
    receiver, other = (kernel.receiver(context, group) for group in (GROUP, SAME_PORT))
    sender = kernel.sender(context, datagram_size_max=DATAGRAM_SIZE_DEFAULT)
    sender.send(SAME_PORT.encode(), b"for the other group")
    sender.send(GROUP.encode(), b"for this one")
    assert receive(receiver) == b"for this one"
    assert receive(other) == b"for the other group"
    for each in (receiver, other):
        each.close()


def test_a_udp_receiver_cuts_a_datagram_that_is_too_long_to_be_opened() -> None:
    receiver = udp.UdpReceiver(LOCAL, GROUP)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        plain.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOCAL))
        plain.sendto(bytes(20_000), ("239.192.77.1", 17001))
    assert len(receive(receiver)) == 8_193
    receiver.close()


class StuckSocket:
    """A socket whose interface takes nothing until `is_stuck` is False. It records the flags of each attempt."""

    def __init__(self, error: OSError) -> None:
        self.error, self.is_stuck, self.flags = error, True, list[int]()

    def sendto(self, datagram: bytes, flags: int, _address: tuple[str, int]) -> int:
        self.flags.append(flags)
        if self.is_stuck:
            raise self.error
        return len(datagram)


@pytest.mark.parametrize("error", [BlockingIOError(11, "full"), OSError(101, "unreachable"), PermissionError(1, "nft")])
def test_what_the_network_does_not_take_is_lost_and_nothing_waits_for_a_stuck_interface_twice(error: OSError) -> None:
    sender = udp.UdpSender(LOCAL)
    stuck = StuckSocket(error)
    sender._sendto = stuck.sendto  # type: ignore[assignment]
    for _ in range(3):
        sender.send(GROUP.encode(), b"lost")
    stuck.is_stuck = False
    for _ in range(2):
        sender.send(GROUP.encode(), b"sent")
    assert stuck.flags == [0, socket.MSG_DONTWAIT, socket.MSG_DONTWAIT, socket.MSG_DONTWAIT, 0]
    sender.close()


def test_a_full_send_buffer_is_waited_for_no_longer_than_a_few_milliseconds() -> None:
    sender = udp.UdpSender(LOCAL)
    found = sender._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16)
    seconds, microseconds = array("l", found)
    assert 0 < seconds * 1_000_000 + microseconds <= 10_000  # rounded up to the kernel's ticks
    sender.close()


def test_a_small_receive_buffer_is_reported_once_with_what_to_raise(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    udp._warn_of_small_buffer.cache_clear()
    monkeypatch.setattr(
        udp, "_request_buffer", lambda made, *_: made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    )
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            udp.UdpReceiver(LOCAL, GROUP).close()
    (warning,) = caplog.records
    assert "raise net.core.rmem_max" in warning.message
    udp._warn_of_small_buffer.cache_clear()
