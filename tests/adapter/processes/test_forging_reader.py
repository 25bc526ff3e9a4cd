"""A subscriber with a valid key sends forged packets as the adapters: no adapter moves, and the stream continues."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
import zmq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandemfeed.client_lib import Batch, connect
from tandemfeed.client_lib.login.grant import Grant
from tandemfeed.deploy.cluster.ports import free_ports
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tandemfeed.feedcore.wire.position import FIRST_SEQ
from tandemfeed.transport.multicast.zeromq import ZeromqSender
from tandemfeed.transport.sealing.sealing import COUNTER_MAX, Sealer
from tandemfeed.transport.sealing.start_keys import SealingKey
from tests.adapter.processes.adapter_processes import OUTPUT_GROUPS, AdapterUnderTest, SourceByHand
from tests.adapter.processes.test_adapter_processes import metrics_at
from tests.admin_server.cluster_files import PATIENT, running_server, secret_of

pytestmark = pytest.mark.processes
HUGE_EPOCH = 2**32 - 2
SESSION = 20261121


class Forger:
    """Sends packets in the name of both adapters, sealed with the key granted to a subscriber; all else is invented."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], grant: Grant) -> None:
        self._grant = grant
        self._sender = ZeromqSender(context, "127.0.0.1")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ended.wait(0.002):
            number += 1
            for adapter in self._grant.adapters.values():
                counter = (number, 10_000 + number, COUNTER_MAX - 1 - number)[number % 3]
                sealer = Sealer(
                    self._grant.feed_id, adapter.starts[-1], Ed25519PrivateKey.generate(), first_counter=counter
                )
                (key,) = self._grant.keys.values()
                sealer.use_key(SealingKey(key.sealing.key_id, key.sealing.channel_id, key.sealing.key, bytes(32)))
                group = OUTPUT_GROUPS["ab"[adapter.adapter_id - 1]].encode()
                self._sender.send(group, sealer.seal(self._heartbeat(adapter.adapter_id), 0))
                self._sender.send(group, sealer.sign(key.sealing.channel_id, 0))

    def _heartbeat(self, adapter_id: int) -> OutputPacket:
        lineage = Lineage().opened(HUGE_EPOCH, FIRST_SEQ, FIRST_SEQ)
        flags = OutputFlag.HEARTBEAT | OutputFlag.FROM_ACTIVE
        return OutputPacket(
            flags, 1, 1, adapter_id, SESSION, HUGE_EPOCH, FIRST_SEQ, FIRST_SEQ, 0, (), 0, 0, lineage.encode(1_000)
        )

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._sender.close()


def test_heartbeats_with_a_huge_epoch_stop_neither_the_adapters_nor_the_client(tmp_path: Path) -> None:
    (metrics_port,) = free_ports(socket.SOCK_STREAM, 1)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with running_server(tmp_path, cluster_text=PATIENT) as server:
        source = SourceByHand(context)
        adapters = {
            "a": AdapterUnderTest(server, "a", tmp_path),
            "b": AdapterUnderTest(server, "b", tmp_path, metrics_port=metrics_port),
        }
        try:
            adapters["a"].await_state("active")
            adapters["b"].await_state("synchronized")
            ca = (server.folder.path / "ca.pem").read_bytes()
            with (
                connect(admin=server.endpoint, ca=ca, identity="reader", secret=secret_of(server, "reader")) as client,
                client.subscribe(feed="equities", start="first") as subscription,
            ):
                forger = Forger(context, subscription.grant)
                delivered: list[int] = []
                while len(delivered) < 600:
                    source.send(1, 5)
                    source.beat()
                    delivered += [
                        seq
                        for item in subscription.poll(0.01)
                        if isinstance(item, Batch)
                        for run in item.sources()
                        for seq in range(run.first_source_seq, run.end_source_seq)
                    ]
                forger.close()
                assert delivered == list(range(1, len(delivered) + 1))
                statistics = subscription.statistics()
                assert statistics.channels[1].epoch < HUGE_EPOCH
                assert statistics.refusals["bad_signature"] > 0
                assert statistics.refusals["out_of_window"] > 0
            metrics = metrics_at(metrics_port)
            assert metrics['tandemfeed_refused_packets_total{reason="untagged"}'] > 0
            assert metrics['tandemfeed_forged_packets_total{impersonated_adapter_id="1"}'] > 0
            assert metrics['tandemfeed_epoch{channel="1"}'] < HUGE_EPOCH
            assert metrics['tandemfeed_replica_state{state="synchronized"}'] == 1
            assert adapters["a"].moves()[-1] == "active"
            assert adapters["b"].moves()[-1] == "synchronized"
        finally:
            assert [adapter.stop() for adapter in adapters.values()] == [0, 0]
            source.close()
    context.term()
