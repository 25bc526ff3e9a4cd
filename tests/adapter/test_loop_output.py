"""What the loop sends, by real sockets: the same datagrams by multicast and unicast, journaled before, and nothing
superfluous."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import zmq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandemfeed.adapter.idle_channels import IdleChannels
from tandemfeed.adapter.loop import PACKETS_MAX, AdapterLoop
from tandemfeed.adapter.mailbox import Mailbox
from tandemfeed.adapter.records.output_journal import OutputJournal
from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.replica.config import EngineConfig, PublishMode, ReplicaConfig
from tandemfeed.feedcore.replica.effects import AdapterEffect, AppendToJournal, Publish, ReleaseLease, Transmit
from tandemfeed.feedcore.replica.engine import AdapterEngine
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.lineage import EpochStart, Lineage
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket, encode_runs
from tandemfeed.feedcore.wire.position import Run
from tandemfeed.transport.multicast.zeromq import ZeromqReceiver, ZeromqSender
from tandemfeed.transport.process_shell import StopSignal
from tandemfeed.transport.sealing.announced_starts import SALT_SIZE, AnnouncedStart
from tandemfeed.transport.sealing.opening import Opener
from tandemfeed.transport.sealing.sealing import Sealer
from tandemfeed.transport.sealing.start_keys import SealingKey
from tandemfeed.transport.unicast.admitted_clients import RETURN_NS, AdmittedClients
from tandemfeed.transport.unicast.publisher import UnicastPublisher
from tandemfeed.transport.unicast.receiver import UnicastReceiver
from tandemfeed.transport.unicast.wire import CurveKeys
from tandemfeed.v1.admin_pb2 import AdmittedClient, SubscriptionsChanged

FEED_ID, CHANNEL, SESSION, GROUP = 1, 1, 20261121, "239.192.78.1:17811"
INTERFACE = "127.0.0.1"
WAIT_S = 60.0
LINEAGE = Lineage((EpochStart(1, 1, 1),)).encode(1_000)


def heartbeat() -> OutputPacket:
    return OutputPacket(OutputFlag.HEARTBEAT, FEED_ID, CHANNEL, 1, SESSION, 1, 1, 1, 0, (), 0, 0, LINEAGE)


def packet() -> OutputPacket:
    return OutputPacket(0, FEED_ID, CHANNEL, 1, SESSION, 1, 1, 1, 0, (), 0, 0, b"")


def decided(input_seq: int) -> OutputPacket:
    """A packet of one decision without a message."""
    runs = (Run(1, input_seq, 1, 1, input_seq, 1, 0),)
    return packet()._replace(first_input_seq=input_seq, runs=runs, payload=encode_runs(runs))


class Adapter:
    """A loop without an engine's channels, a multicast receiver, and an admitted unicast client."""

    def __init__(
        self, folder: Path, *, state: ReplicaState | None = None, publish: PublishMode = PublishMode.ASYNC
    ) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        private_key = Ed25519PrivateKey.generate()
        start = AnnouncedStart(1, 1, bytes(SALT_SIZE), private_key.public_key().public_bytes_raw())
        sealer = Sealer(FEED_ID, start, private_key)
        sealer.use_key(SealingKey(1, CHANNEL, bytes(32), bytes(32)))
        admitted, client, server = AdmittedClients(), CurveKeys.generate(), CurveKeys.generate()
        admitted.change(SubscriptionsChanged(admitted=[AdmittedClient(client_key=client.public, channel_ids=[1])]), 0)
        self.log: list[str] = []
        self.unicast = UnicastPublisher(f"{INTERFACE}:0", server, [CHANNEL], admitted)
        self.unicast.keep(0)
        idle_channels = None
        if state is not None:
            idle_channels = IdleChannels([CHANNEL], lambda _channel_id: state)
            idle_channels.on_subscriber_counts({}, time.monotonic_ns() - RETURN_NS)
        self.stop, self.journal = StopSignal(), OutputJournal(folder)
        self.loop = AdapterLoop(
            AdapterEngine(
                EngineConfig(FEED_ID, 1, SESSION, (), lease_ttl_ns=10**9, replica=ReplicaConfig(publish=publish)),
                {},
                CounterSet(),
                0,
            ),
            CounterSet(),
            sources=[],
            sender=ZeromqSender(self.context, INTERFACE),
            groups={CHANNEL: GROUP},
            sealer=sealer,
            opener=Opener(FEED_ID),
            journal=self.journal,
            mailbox=Mailbox(),
            peers=None,
            stop=self.stop,
            ask_server=lambda request: self.log.append(type(request).__name__),
            on_report_due=lambda: None,
            report_interval_ns=100_000_000,
            unicast=self.unicast,
            idle_channels=idle_channels,
        )
        self.group = ZeromqReceiver(self.context, INTERFACE, GROUP)
        self.client = UnicastReceiver(self.context, self.unicast.endpoint, server.public, client, [CHANNEL])
        self._await_receivers()

    def _await_receivers(self) -> None:
        """Send until the group is joined and the client connected, then drop what arrived."""
        give_up_at = time.monotonic() + WAIT_S
        heard: set[object] = set()
        while heard != {self.group, self.client}:
            assert time.monotonic() < give_up_at
            self.client.socket.poll(10)
            self.loop._receive(self.unicast.socket, 0)
            self.loop.perform([Transmit(heartbeat())])
            heard |= {each for each in (self.group, self.client) if each.receive() is not None}
        while self.group.socket.poll(200) and self.group.receive():
            pass
        while self.client.socket.poll(200) and self.client.receive():
            pass

    def sent(self, *packets: OutputPacket) -> tuple[list[bytes], list[bytes]]:
        """What arrives by multicast and by unicast."""
        self.loop.perform([Transmit(each) for each in packets])
        return self._received(self.group), self._received(self.client)

    def logged(self, *effects: AdapterEffect) -> list[str]:
        """What happens, in order: datagrams sent, each with the number of packets in the journal, and requests."""
        send, self.log = self.loop._sender.send, []

        def send_and_log(group: bytes, datagram: bytes) -> None:
            self.log.append(f"sent with {len(list(self.journal.replay(CHANNEL, 1, 1_000)))} in the journal")
            send(group, datagram)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.loop._sender, "send", send_and_log)
            self.loop.perform(list(effects))
        return self.log

    @staticmethod
    def _received(receiver: ZeromqReceiver | UnicastReceiver) -> list[bytes]:
        found = []
        while receiver.socket.poll(500) and (datagram := receiver.receive()) is not None:
            found.append(datagram)
        return found

    def close(self) -> None:
        self.loop.close()
        self.unicast.close()
        self.journal.close()
        self.context.destroy(linger=0)


@pytest.fixture
def adapter(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Adapter]:
    made = Adapter(tmp_path / "journal", state=getattr(request, "param", None))
    yield made
    made.close()


def test_unicast_clients_get_the_very_datagrams_that_are_multicast(adapter: Adapter) -> None:
    by_multicast, by_unicast = adapter.sent(*(packet() for _ in range(100)), heartbeat())
    assert by_unicast == by_multicast
    assert len(by_multicast) > 101  # and signatures


@pytest.mark.parametrize("adapter", [ReplicaState.SYNCHRONIZED], indirect=True)
def test_a_backup_sends_only_heartbeats_on_a_channel_without_subscribers(adapter: Adapter) -> None:
    by_multicast, _ = adapter.sent(packet(), packet())
    assert by_multicast == []
    by_multicast, _ = adapter.sent(heartbeat())
    assert by_multicast


@pytest.mark.parametrize("adapter", [ReplicaState.ACTIVE], indirect=True)
def test_the_active_sends_everything_even_without_subscribers(adapter: Adapter) -> None:
    by_multicast, _ = adapter.sent(packet(), packet())
    assert len(by_multicast) >= 2


def test_packets_are_journaled_together_before_any_of_them_is_sent(adapter: Adapter) -> None:
    log = adapter.logged(Publish([decided(1), decided(2)]), Transmit(heartbeat()), Publish([decided(3)]))
    assert log[:4] == ["sent with 3 in the journal"] * 4


def test_an_effect_of_another_kind_comes_after_the_packets_before_it(adapter: Adapter) -> None:
    log = adapter.logged(Publish([decided(1)]), ReleaseLease(1), Publish([decided(2)]))
    request = log.index("ReleaseLease")
    assert set(log[:request]) == {"sent with 1 in the journal"}
    assert set(log[request + 1 :]) == {"sent with 2 in the journal"}


def test_packets_that_waited_for_an_acknowledgement_are_journaled_in_small_segments(adapter: Adapter) -> None:
    half, append_all, sizes = 2 * PACKETS_MAX - 1, adapter.journal.append_all, list[int]()

    def append_and_note(packets: Sequence[OutputPacket]) -> None:
        sizes.append(len(packets))
        append_all(packets)

    waited = [decided(number) for number in range(1, 2 * half + 1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapter.journal, "append_all", append_and_note)
        adapter.loop.perform([Publish(waited[:half])])
        adapter.loop.perform([AppendToJournal(each) for each in waited[half:]])
    assert sizes == [PACKETS_MAX, PACKETS_MAX - 1] * 2
    assert len(list(adapter.journal.replay(CHANNEL, 1, 1_000))) == len(waited)


def test_the_first_of_many_packets_do_not_wait_for_the_last(adapter: Adapter) -> None:
    log = adapter.logged(*(Publish([decided(number)]) for number in range(1, 2 * PACKETS_MAX + 1)))
    assert log[0] == f"sent with {PACKETS_MAX} in the journal"
    assert log[-1] == f"sent with {2 * PACKETS_MAX} in the journal"


@pytest.mark.parametrize("publish", PublishMode)
def test_a_backup_that_cannot_journal_what_it_applied_does_not_acknowledge_it(
    tmp_path: Path, publish: PublishMode
) -> None:
    """Its packets and heartbeats are the acknowledgements (protocol 5.6)."""
    adapter = Adapter(tmp_path / "journal", publish=publish)
    provisional = decided(9)._replace(flags=OutputFlag.PROVISIONAL)
    assert "sent with 1 in the journal" in adapter.logged(Publish([decided(1)]), Transmit(heartbeat()))
    adapter.journal._fail("the disk refused a flush")
    is_withheld = publish is PublishMode.ACKED
    sent = adapter.logged(Publish([decided(2)]), Transmit(heartbeat()))
    assert (sent == []) == is_withheld
    assert adapter.logged(Publish([provisional]))  # which acknowledges nothing
    adapter.loop._engine.on_lease_granted(1, time.monotonic_ns() + 10**12, time.monotonic_ns())
    assert adapter.logged(Publish([decided(3)]))  # the active's decisions
    adapter.close()
