"""If the feed's source seals its packets, adapters accept nothing else from the source's groups."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import zmq

from tandemfeed.client_lib import Batch, connect
from tandemfeed.deploy.cluster.ports import free_ports
from tandemfeed.transport.sealing.source_sealing import SourceSealer
from tests.adapter.processes.adapter_processes import AdapterUnderTest, SourceByHand
from tests.adapter.processes.test_adapter_processes import metrics_at
from tests.admin_server.cluster_files import PATIENT, running_server, secret_of

pytestmark = pytest.mark.processes


class SealingSource(SourceByHand):
    """A source that seals its packets; without a key it sends them in clear."""

    sealer: SourceSealer | None = None

    def send_raw(self, stream: int, datagram: bytes) -> None:
        super().send_raw(stream, datagram if self.sealer is None else self.sealer.seal(datagram))


def test_only_packets_sealed_with_the_source_key_are_accepted(tmp_path: Path) -> None:
    (metrics_port,) = free_ports(socket.SOCK_STREAM, 1)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sealed = PATIENT.replace('source_lines = "open"', 'source_lines = "sealed"')
    with running_server(tmp_path, cluster_text=sealed) as server:
        source, forger = SealingSource(context), SealingSource(context)
        adapter = AdapterUnderTest(server, "a", tmp_path, metrics_port=metrics_port)
        try:
            adapter.await_state("active")
            (key,) = server.brokers["equities"].key_ring.source_keys()
            source.sealer = SourceSealer(1)
            source.sealer.use_key(key.key_id, key.key)
            ca = (server.folder.path / "ca.pem").read_bytes()
            with (
                connect(admin=server.endpoint, ca=ca, identity="reader", secret=secret_of(server, "reader")) as client,
                client.subscribe(feed="equities", start="first") as subscription,
            ):
                assert key.key not in {granted.sealing.key for granted in subscription.grant.keys.values()}
                forger.send(1, 7)
                forger.sealer = SourceSealer(1)
                forger.sealer.use_key(key.key_id, bytes(32))
                forger.send(1, 7)
                source.send(1, 3)
                delivered: list[tuple[int, int]] = []
                while sum(count for _, count in delivered) < 3:
                    items = subscription.poll(20)
                    assert items
                    spans = [span for item in items if isinstance(item, Batch) for span in item.sources()]
                    delivered += [
                        (span.first_source_seq, span.end_source_seq - span.first_source_seq) for span in spans
                    ]
                assert delivered == [(1, 3)]
            metrics = metrics_at(metrics_port)
            assert metrics['tandemfeed_refused_packets_total{reason="foreign"}'] == 1
            assert metrics['tandemfeed_refused_packets_total{reason="forged"}'] == 1
        finally:
            assert adapter.stop() == 0
            for each in (source, forger):
                each.close()
    context.term()
