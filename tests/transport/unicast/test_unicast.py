"""An adapter's publisher and clients' receivers over real TCP connections with CURVE."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from tandemfeed.transport.unicast import doorkeeper, publisher
from tandemfeed.transport.unicast.admitted_clients import RETURN_NS, AdmittedClients
from tandemfeed.transport.unicast.listener import Listener
from tandemfeed.transport.unicast.publisher import (
    LISTEN_AGAIN_NS,
    SEND_QUEUE_COUNT_MAX,
    SPARE_MESSAGES,
    UnicastPublisher,
    _Connection,
)
from tandemfeed.transport.unicast.receiver import UnicastReceiver
from tandemfeed.transport.unicast.wire import BadUnicastAddress, CurveKeys, parse_unicast_address, topic_of
from tandemfeed.v1.admin_pb2 import AdmittedClient, SubscriptionsChanged

WAIT_S = 60.0
CHANNEL, OTHER = 1, 2
SERVER, CLIENT, STRANGER = CurveKeys.generate(), CurveKeys.generate(), CurveKeys.generate()


def only(*clients: CurveKeys, channels: tuple[int, ...] = (CHANNEL,), is_whole: bool = False) -> SubscriptionsChanged:
    admitted = [AdmittedClient(client_key=client.public, channel_ids=channels) for client in clients]
    return SubscriptionsChanged(is_whole=is_whole, admitted=admitted)


class Cluster:
    """One publisher and its receivers; turns the loop that an adapter and the clients have."""

    def __init__(self) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.admitted = AdmittedClients()
        self.publisher = UnicastPublisher("127.0.0.1:0", SERVER, (CHANNEL, OTHER), self.admitted)
        self.publisher.keep(0)

    def receiver(
        self, client: CurveKeys = CLIENT, server_key: bytes = SERVER.public, **options: int
    ) -> UnicastReceiver:
        return UnicastReceiver(self.context, self.publisher.endpoint, server_key, client, (CHANNEL, OTHER), **options)

    def turn(self) -> None:
        self.publisher.socket.poll(10)
        self.publisher.read_subscriptions()
        self.publisher.keep(time.monotonic_ns())

    def until(self, condition: Callable[[], object], *receivers: UnicastReceiver) -> None:
        give_up_at = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < give_up_at
            self.turn()
            for receiver in receivers:
                receiver.socket.poll(0)  # libzmq sends subscriptions again in the thread that uses the socket

    def change(self, changed: SubscriptionsChanged, now_ns: int = 0) -> None:
        self.publisher.disconnect(self.admitted.change(changed, now_ns))

    def received(self, receiver: UnicastReceiver, channel_id: int = CHANNEL) -> bytes:
        """Send numbered datagrams until one arrives."""
        found: list[bytes] = []

        def try_once() -> bool:
            self.publisher.send([(channel_id, b"datagram")])
            found.extend(filter(None, [receiver.receive()]))
            return bool(found)

        self.until(try_once, receiver)
        return found[0]

    def close(self) -> None:
        self.publisher.close()
        self.context.destroy(linger=0)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.close()


def test_an_admitted_client_receives_the_datagrams_of_its_channels_in_order(cluster: Cluster) -> None:
    cluster.change(only(CLIENT))
    receiver = cluster.receiver()
    cluster.until(lambda: cluster.publisher.wants, receiver)
    sent = [b"%d" % number for number in range(500)]
    cluster.publisher.send([(CHANNEL, datagram) for datagram in sent])
    arrived: list[bytes] = []

    def has_all() -> bool:
        while (datagram := receiver.receive()) is not None:
            arrived.append(datagram)
        return len(arrived) >= len(sent)

    cluster.until(has_all)
    assert arrived == sent


def test_a_client_receives_no_channel_that_it_is_not_granted(cluster: Cluster) -> None:
    cluster.change(only(CLIENT))
    receiver = cluster.receiver()
    cluster.until(lambda: len(cluster.publisher._topics) == 2, receiver)
    cluster.publisher.send([(OTHER, b"secret")])
    assert cluster.received(receiver) == b"datagram"


def test_a_client_whose_channels_grow_receives_the_new_one(cluster: Cluster) -> None:
    cluster.change(only(CLIENT))
    receiver = cluster.receiver()
    cluster.received(receiver)
    cluster.change(only(CLIENT, channels=(CHANNEL, OTHER)))
    cluster.received(receiver, OTHER)


def test_a_client_may_connect_before_it_is_admitted(cluster: Cluster) -> None:
    receiver = cluster.receiver()
    cluster.until(lambda: cluster.publisher._doorkeeper._parked, receiver)
    cluster.change(only(CLIENT))
    assert cluster.received(receiver) == b"datagram"


def test_a_stranger_receives_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorkeeper, "PARKED_NS", 0)
    refused = []
    answer = doorkeeper.Doorkeeper._answer
    monkeypatch.setattr(
        doorkeeper.Doorkeeper,
        "_answer",
        lambda self, *args, **more: (refused.append(args[1]), answer(self, *args, **more))[1],
    )
    cluster.change(only(CLIENT))
    without_key, with_wrong_server = cluster.receiver(STRANGER), cluster.receiver(CLIENT, STRANGER.public)
    cluster.until(lambda: refused, without_key, with_wrong_server)
    assert set(refused) == {b"300"}
    cluster.received(cluster.receiver())
    assert without_key.receive() is None
    assert with_wrong_server.receive() is None


def test_a_removed_client_is_disconnected_and_its_neighbour_is_not(cluster: Cluster) -> None:
    neighbour_keys = CurveKeys.generate()
    cluster.change(only(CLIENT, neighbour_keys))
    revoked, neighbour = cluster.receiver(), cluster.receiver(neighbour_keys)
    cluster.received(revoked)
    cluster.received(neighbour)
    connections = dict(cluster.publisher._connections)
    cluster.change(SubscriptionsChanged(removed_client_keys=[CLIENT.public]))
    cluster.until(lambda: cluster.publisher._counts[CHANNEL] == 1)  # libzmq reports the end of one connection
    while revoked.receive() is not None:
        pass  # what was sent before
    for _ in range(10):
        assert cluster.received(neighbour) == b"datagram"
    assert revoked.receive() is None
    assert len(connections) == 2
    assert cluster.publisher._connections.items() <= connections.items()  # the neighbour's is the same


def test_a_file_descriptor_that_now_belongs_to_another_connection_is_left_alone(cluster: Cluster) -> None:
    one, other = socket.socketpair()
    with one, other:
        inode = os.fstat(one.fileno()).st_ino
        cluster.publisher._connections[one.fileno()] = _Connection(inode, CLIENT.public)
        cluster.publisher.disconnect({CLIENT.public})
        one.send(b"alive")
        assert other.recv(5) == b"alive"


def test_a_publisher_without_clients_sends_nothing(cluster: Cluster) -> None:
    cluster.change(only(CLIENT))
    assert not cluster.publisher.wants
    receiver = cluster.receiver()
    cluster.received(receiver)
    assert cluster.publisher.connection_count == 1
    receiver.close()
    cluster.until(lambda: not cluster.publisher.wants)
    cluster.until(lambda: cluster.publisher.connection_count == 0)


def test_a_client_that_subscribes_and_unsubscribes_without_end_is_disconnected(cluster: Cluster) -> None:
    cluster.change(only(CLIENT))
    receiver = cluster.receiver()
    cluster.received(receiver)
    (inode,) = {connection.inode for connection in cluster.publisher._connections.values()}
    for number in range(2 * SPARE_MESSAGES):
        receiver.socket.subscribe(b"%d" % number)
    cluster.until(
        lambda: {connection.inode for connection in cluster.publisher._connections.values()} != {inode}, receiver
    )


def test_a_client_that_repeats_a_subscription_or_its_end_does_not_silence_its_neighbour(cluster: Cluster) -> None:
    neighbour_keys = CurveKeys.generate()
    cluster.change(only(CLIENT, neighbour_keys))
    restless, neighbour = cluster.receiver(), cluster.receiver(neighbour_keys)
    cluster.received(restless)
    cluster.received(neighbour)
    assert cluster.publisher._counts == {CHANNEL: 2, OTHER: 2}
    publisher, client = cluster.publisher, next(iter(cluster.publisher._connections.items()))
    for is_begin in (True, False, False, False, True, True, False):
        publisher._on_subscription(topic_of(CHANNEL), client[1].client_key, client[0], is_begin=is_begin)
    assert cluster.publisher._counts == {CHANNEL: 1, OTHER: 2}


def test_a_slow_client_loses_datagrams_and_the_publisher_goes_on(cluster: Cluster) -> None:
    cluster.change(only(CLIENT))
    slow = cluster.receiver(receive_queue_count_max=10)
    cluster.until(lambda: cluster.publisher.wants, slow)
    datagram = bytes(1_472)
    count = SEND_QUEUE_COUNT_MAX * 4
    for _ in range(count // 100):
        cluster.publisher.send([(CHANNEL, datagram)] * 100)  # never blocks, although nothing is read
    arrived = 0
    while slow.socket.poll(500) and slow.receive() is not None:
        arrived += 1
    assert 0 < arrived < count


@pytest.fixture
def patient_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Its publisher waits long for the handshake of a silent connection."""
    monkeypatch.setattr(publisher, "HANDSHAKE_MS", round(WAIT_S * 1e3))
    made = Cluster()
    yield made
    made.close()


def test_a_crowd_of_silent_connections_keeps_newcomers_out_and_does_not_harm_clients(
    patient_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = patient_cluster
    cluster.change(only(CLIENT))
    receiver = cluster.receiver()
    cluster.received(receiver)
    monkeypatch.setattr(doorkeeper, "CONNECTION_COUNT_MAX", 8)
    monkeypatch.setattr(doorkeeper, "CONNECTION_COUNT_ROOM", 6)
    host, port = parse_unicast_address(cluster.publisher.endpoint)
    on_crowd = cluster.publisher._on_crowd
    deaf: list[bool] = []
    cluster.publisher._doorkeeper._on_crowd = lambda is_crowd: (deaf.append(is_crowd), on_crowd(is_crowd))[1]
    silent = [socket.create_connection((host, port)) for _ in range(7)]  # the eighth is the receiver's
    cluster.until(lambda: deaf == [True])
    with pytest.raises(TimeoutError):
        socket.create_connection((host, port), timeout=0.1)
    assert cluster.received(receiver) == b"datagram"
    assert len(cluster.publisher._connections) == 1  # it has not connected again
    for connection in silent:
        connection.close()
    cluster.until(lambda: deaf == [True, False])
    newcomer = cluster.receiver()
    assert cluster.received(newcomer) == b"datagram"


def test_an_address_in_use_is_tried_again() -> None:
    former = Listener("127.0.0.1:0")
    publisher = UnicastPublisher(former.endpoint, SERVER, (CHANNEL,), AdmittedClients())
    publisher.keep(1)
    assert publisher.endpoint == ""
    former.close()
    publisher.keep(LISTEN_AGAIN_NS)
    assert publisher.endpoint == ""
    publisher.keep(LISTEN_AGAIN_NS + 1)
    assert publisher.endpoint == former.endpoint
    publisher.close()


@pytest.mark.parametrize("address", ["10.0.0.5", "host:7450", "239.1.1.1:7450", "0.0.0.0:7450", "10.0.0.5:65536"])
def test_an_address_that_clients_could_not_connect_to_is_refused(address: str) -> None:
    with pytest.raises(BadUnicastAddress):
        parse_unicast_address(address)


def test_clients_stay_admitted_while_a_restarted_server_waits_for_their_return() -> None:
    clients = AdmittedClients()
    clients.change(only(CLIENT, STRANGER, is_whole=True), 0)
    assert clients.change(only(CLIENT, is_whole=True), 0) == set()
    assert clients.expire(RETURN_NS - 1) == set()
    assert clients.channels_of(STRANGER.public) == {CHANNEL}
    assert clients.expire(RETURN_NS) == {STRANGER.public}
    assert clients.channels_of(STRANGER.public) is None
    assert clients.channels_of(CLIENT.public) == {CHANNEL}


def test_a_client_that_returned_does_not_expire() -> None:
    clients = AdmittedClients()
    clients.change(only(CLIENT, is_whole=True), 0)
    clients.change(only(is_whole=True), 0)
    assert clients.change(only(CLIENT), 1) == set()
    assert clients.expire(RETURN_NS * 2) == set()
