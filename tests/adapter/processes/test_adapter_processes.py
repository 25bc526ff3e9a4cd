"""Real adapter processes with the real admin server and client library, over real multicast."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path

import pytest

from tandemfeed.admin_server.server import AdminServer
from tandemfeed.client_lib import Batch, Subscription, connect
from tandemfeed.deploy.cluster.ports import free_ports
from tandemfeed.feedcore.merge.effects import Ended, Takeover
from tandemfeed.feedcore.wire.source_packet import SourceFlag
from tests.adapter.processes.adapter_processes import (
    AdapterUnderTest,
    SourceByHand,
    await_position,
    unknown_stream_packet,
)
from tests.admin_server.cluster_files import secret_of

pytestmark = pytest.mark.processes


def collect(subscription: Subscription, count: int) -> tuple[list[tuple[int, int]], list[object]]:
    """(source_stream_id, source_seq) of `count` messages as delivered, and the events between them."""
    delivered: list[tuple[int, int]] = []
    events: list[object] = []
    while len(delivered) < count:
        items = subscription.poll(20)
        assert items, f"only {len(delivered)} of {count}: {events}"
        for item in items:
            if isinstance(item, Batch):
                for run in item.sources():
                    seqs = range(run.first_source_seq, run.end_source_seq)
                    delivered += [(run.source_stream_id, seq) for seq in seqs]
            else:
                events.append(item)
    return delivered, events


def test_killing_the_active_loses_repeats_and_reorders_nothing(
    server: AdminServer, source: SourceByHand, tmp_path: Path
) -> None:
    adapters = {name: AdapterUnderTest(server, name, tmp_path) for name in "ab"}
    try:
        adapters["a"].await_state("active")
        adapters["b"].await_state("synchronized")
        ca = (server.folder.path / "ca.pem").read_bytes()
        with (
            connect(admin=server.endpoint, ca=ca, identity="reader", secret=secret_of(server, "reader")) as client,
            client.subscribe(feed="equities", start="first") as subscription,
        ):
            seen: list[tuple[int, int]] = []
            active = "a"
            for victim in "ab":
                assert active == victim
                for _ in range(50):
                    source.send(1, 20)
                    source.send(2, 10)
                found, before = collect(subscription, 1_500)
                seen += found
                source.send(1, 5)
                adapters[victim].kill()
                survivor = "b" if victim == "a" else "a"
                source.send(1, 5)
                source.send(2, 5)
                found, events = collect(subscription, 15)
                seen += found
                assert any(isinstance(event, Takeover) for event in (*before, *events))
                adapters[survivor].await_state("active")
                adapters[victim] = AdapterUnderTest(server, victim, tmp_path)
                adapters[victim].await_state("synchronized")
                active = survivor
            for stream, end in source.next_seq.items():
                assert [seq for each, seq in seen if each == stream] == list(range(1, end))
            source.beat(SourceFlag.END_OF_STREAM)
            items = subscription.poll(20)
            while not any(isinstance(item, Ended) for item in items):
                items = subscription.poll(20)
                assert items
    finally:
        statuses = [adapter.stop() for adapter in adapters.values()]
    assert statuses == [0, 0]


def test_a_restarted_adapter_continues_from_its_own_journal(
    server: AdminServer, source: SourceByHand, tmp_path: Path
) -> None:
    adapters = {name: AdapterUnderTest(server, name, tmp_path) for name in "ab"}
    try:
        adapters["a"].await_state("active")
        adapters["b"].await_state("synchronized")
        ca = (server.folder.path / "ca.pem").read_bytes()
        with (
            connect(admin=server.endpoint, ca=ca, identity="reader", secret=secret_of(server, "reader")) as client,
            client.subscribe(feed="equities", start="first") as subscription,
        ):
            for _ in range(20):
                source.send(1, 5)
                source.send(2, 5)
            delivered, _ = collect(subscription, 200)
            await_position(source.context, "b", 201)
            assert adapters["b"].stop() == 0
            adapters["b"] = AdapterUnderTest(server, "b", tmp_path)
            adapters["b"].await_state("synchronized")
            moves = [log for log in adapters["b"].logs if log.get("event") == "state moved"]
            assert "own journal at input_seq 201" in moves[0]["why"]
            adapters["a"].kill()
            adapters["b"].await_state("active")
            for _ in range(20):
                source.send(1, 5)
                source.send(2, 5)
            delivered += collect(subscription, 200)[0]
        for stream in (1, 2):
            assert [seq for which, seq in delivered if which == stream] == list(range(1, 201))
    finally:
        assert adapters["b"].stop() == 0
        adapters["a"].stop()


def test_an_adapter_that_waits_for_the_admin_server_stops_on_sigterm(server: AdminServer, tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # nothing listens on the port
        adapter = AdapterUnderTest(
            server, "a", tmp_path, admin=f"127.0.0.1:{unused.getsockname()[1]}", is_awaited=False
        )
        adapter.await_log("the admin server does not answer; retrying")
        assert adapter.stop() == 0


def test_bad_datagrams_are_counted_and_the_stream_continues(
    server: AdminServer, source: SourceByHand, tmp_path: Path
) -> None:
    (metrics_port,) = free_ports(socket.SOCK_STREAM, 1)
    adapter = AdapterUnderTest(server, "a", tmp_path, metrics_port=metrics_port)
    try:
        adapter.await_state("active")
        ca = (server.folder.path / "ca.pem").read_bytes()
        with (
            connect(admin=server.endpoint, ca=ca, identity="reader", secret=secret_of(server, "reader")) as client,
            client.subscribe(feed="equities", start="first") as subscription,
        ):
            datagram = source.send(1, 3)
            for bad in (b"", b"\xff" * 600, datagram[:-5], datagram[:20], unknown_stream_packet(), datagram + b"x"):
                source.send_raw(1, bad)
            source.send(1, 3)
            delivered, _ = collect(subscription, 6)
            assert delivered == [(1, seq) for seq in range(1, 7)]
        metrics = metrics_at(metrics_port)
        assert metrics['tandemfeed_refused_packets_total{reason="unknown_stream"}'] == 1
        assert metrics["tandemfeed_source_packets_total"] == 2
        assert metrics['tandemfeed_replica_state{state="active"}'] == 1
        assert (metrics["tandemfeed_is_active"], metrics["tandemfeed_is_abstaining"]) == (1, 0)
        assert metrics['tandemfeed_epoch{channel="1"}'] >= 1
        assert metrics['tandemfeed_next_message_seq{channel="1"}'] == 7
        assert metrics['tandemfeed_provisional{channel="1"}'] == 0
        assert 0 < metrics["tandemfeed_health_score"] <= 1
    finally:
        assert adapter.stop() == 0


def metrics_at(port: int) -> dict[str, float]:
    """The text of an adapter's Prometheus endpoint."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    samples = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {name: float(value) for name, _, value in samples}


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--table", "no-such-table.xml"),
        ("--secret-file", "no-such-secret"),
        ("--feed", "bonds"),
        ("--tls-cert", "reader.crt"),
    ],
)
def test_a_wrong_option_gives_a_clear_message_and_status_2(
    server: AdminServer, tmp_path: Path, option: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from tandemfeed.adapter.cli import main

    state = server.folder.path
    examples = Path(__file__).resolve().parents[3] / "deploy" / "examples" / "ticks"
    options = {
        "--feed": "equities",
        "--name": "a",
        "--source-format": str(examples / "source-format.xml"),
        "--table": str(examples / "converter-table.xml"),
        "--journal": str(tmp_path / "journal"),
        "--tls-cert": str(state / "certs" / "adapter-a.crt"),
        "--tls-key": str(state / "certs" / "adapter-a.key"),
        "--admin": server.endpoint,
        "--ca": str(state / "ca.pem"),
        "--identity": "adapter-a",
        "--secret-file": str(state / "secrets" / "adapter-a.secret"),
    }
    options[option] = text
    if option == "--tls-cert":
        options[option], text = str(state / "certs" / text), "must name a.adapter.equities.tandemfeed.internal"
    with pytest.raises(SystemExit) as ended:
        main([part for pair in options.items() for part in pair])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err
