"""A real-time feed and its delayed twin on one source journal: the delayed one's client receives nothing too early."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from tandemfeed.client_lib import AuthorizationRefused, Batch, connect
from tandemfeed.feedcore.wire.source_packet import SourceFlag, decode_source_packet
from tandemfeed.transport.multicast.zeromq import ZeromqReceiver
from tests.adapter.processes.adapter_processes import GROUPS, AdapterUnderTest
from tests.adapter.processes.gateway_process import start_gateway
from tests.admin_server.cluster_files import Server, ca_of, running_server, secret_of
from tests.admin_server.policy.test_symbol_rights import BOTH, SOME
from tests.spark_feed.source_material import journal_without_spark, make_recording

pytestmark = pytest.mark.processes

DELAY_S = 1.5
CLUSTER = BOTH.replace("delay_s = 900", f"delay_s = {DELAY_S}").replace("lease_ttl_ms = 300", "lease_ttl_ms = 5000")
POLICY = SOME.replace("minimum_age_s = 900", f"minimum_age_s = {DELAY_S}")
MESSAGE_COUNT = 2_000
PATIENCE_S = 120.0


@contextmanager
def _gateway(server: Server, feed: str, journal: Path) -> Iterator[subprocess.Popen[str]]:
    """A gateway process that waits for its start."""
    process = start_gateway(server, feed, 2_000, "--wait-for-start", journal=journal)
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "ready"
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


class _RealTime:
    """When each source message of the real-time feed was sent."""

    def __init__(self) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._receivers = [ZeromqReceiver(self._context, "127.0.0.1", group.decode()) for group in GROUPS.values()]
        self.sent_at_ns: dict[tuple[int, int], int] = {}

    def receive(self) -> None:
        for receiver in self._receivers:
            while (datagram := receiver.receive()) is not None:
                packet = decode_source_packet(datagram, 1)
                if not packet.flags & SourceFlag.HEARTBEAT:
                    for seq in range(packet.first_source_seq, packet.end_source_seq):
                        self.sent_at_ns.setdefault((packet.source_stream_id, seq), packet.sent_at_ns)

    def close(self) -> None:
        for receiver in self._receivers:
            receiver.close()
        self._context.term()


def test_a_client_of_the_delayed_feed_receives_everything_and_nothing_before_its_time(tmp_path: Path) -> None:
    make_recording(tmp_path / "recording", MESSAGE_COUNT, 500)
    journal = tmp_path / "source-journal"
    journal_without_spark(tmp_path / "recording", journal)
    with ExitStack() as opened:
        server = opened.enter_context(running_server(tmp_path / "server", cluster_text=CLUSTER, policy_text=POLICY))
        for feed in ("equities", "equities-delayed"):
            adapter = AdapterUnderTest(server, "a", tmp_path / feed, feed=feed)
            opened.callback(adapter.stop)
            adapter.await_state("active")
        gateways = [opened.enter_context(_gateway(server, feed, journal)) for feed in ("equities", "equities-delayed")]
        heard = _RealTime()
        opened.callback(heard.close)
        secret = secret_of(server, "stranger")
        client = opened.enter_context(
            connect(admin=server.endpoint, ca=ca_of(server), identity="stranger", secret=secret)
        )
        with pytest.raises(AuthorizationRefused, match="available to you: equities-delayed"):
            client.subscribe(feed="equities")
        subscription = client.subscribe(feed="equities-delayed", start="first")
        assert subscription.grant.delay_ns == DELAY_S * 1e9
        for gateway in gateways:
            assert gateway.stdin is not None
            gateway.stdin.write("start\n")
            gateway.stdin.flush()
        delivered: dict[tuple[int, int], int] = {}
        give_up_at = time.monotonic() + PATIENCE_S
        while len(delivered) < MESSAGE_COUNT:
            assert time.monotonic() < give_up_at, f"{len(delivered)} of {MESSAGE_COUNT} messages arrived"
            items = subscription.poll(0.01)
            heard.receive()
            for item in items:
                if isinstance(item, Batch):
                    for each in item.messages():
                        delivered[each.origin.source_stream_id, each.origin.source_seq] = item.received_at_ns
    assert len(heard.sent_at_ns) == MESSAGE_COUNT
    ages_s = [(delivered[message] - sent_at_ns) / 1e9 for message, sent_at_ns in heard.sent_at_ns.items()]
    assert min(ages_s) >= DELAY_S
