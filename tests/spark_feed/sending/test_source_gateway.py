"""The gateway as a process, with a real admin server: real multicast, real gap fills, real restarts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
import zmq

from tandemfeed.admin_server.alerts import Alert, Level, Thresholds, alerts_of
from tandemfeed.feedcore.wire.source_packet import SourceFlag, SourcePacket, decode_source_packet
from tandemfeed.runtime.threads import EXIT_THREAD_FAILED
from tandemfeed.spark_feed.sending.gateway import listen_address
from tandemfeed.spark_feed.sending.sessions.sent_session import GatewayError
from tandemfeed.transport.calls.channels import BearerFor, open_channel
from tandemfeed.transport.calls.login import login
from tandemfeed.transport.calls.server_names import ADMIN_SERVER, source_gateway
from tandemfeed.transport.multicast.zeromq import ZeromqReceiver
from tandemfeed.transport.sealing.source_sealing import SourceOpener
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc, common_pb2, replay_pb2, replay_pb2_grpc
from tests.spark_feed.source_material import (
    FEED,
    ROOT,
    SOURCE_FORMAT,
    assert_gapless,
    frames_in,
    journal_without_spark,
    make_recording,
    packets_of,
)

pytestmark = pytest.mark.processes

GATEWAY_COMMAND = "tandemfeed.spark_feed.sending.command:main"
GROUPS = {1: "239.192.7.1:5701", 2: "239.192.7.2:5702"}
CLUSTER = f"""
[[feed]]
feed_id = 1
name = "equities"
session = 20261121
message_model = "{SOURCE_FORMAT.parent / "message-model.xml"}"
source_replay_endpoint = "127.0.0.1:7411"
[[feed.channel]]
channel_id = 1
topic = "equities.ticks"
source_stream_ids = [1, 2]
[[feed.source_stream]]
source_stream_id = 1
name = "A-M"
group = "{GROUPS[1]}"
[[feed.source_stream]]
source_stream_id = 2
name = "N-Z"
group = "{GROUPS[2]}"
[[feed.adapter]]
adapter_id = 1
name = "a"
identity = "adapter-a"
groups = {{ 1 = "239.192.7.3:5703" }}
"""
BONDS = f"""
[[feed]]
feed_id = 9
name = "bonds"
session = 20261121
message_model = "{SOURCE_FORMAT.parent / "message-model.xml"}"
source_replay_endpoint = "127.0.0.1:7412"
[[feed.channel]]
channel_id = 1
topic = "bonds.ticks"
source_stream_ids = [1]
[[feed.source_stream]]
source_stream_id = 1
name = "all"
group = "239.192.7.4:5704"
[[feed.adapter]]
adapter_id = 1
name = "b"
identity = "adapter-b"
groups = {{ 1 = "239.192.7.5:5705" }}
"""
POLICY = """
[identity.adapter-a]
roles = ["adapter"]
[identity.adapter-b]
roles = ["adapter"]
[identity.source]
roles = ["source"]
[identity.operator]
roles = ["admin"]
"""
PATIENCE_S = 60.0
GATEWAY = source_gateway("equities")


def _command(entry: str, *arguments: str) -> list[str]:
    module, function = entry.split(":")
    code = f"import sys; from {module} import {function} as run; sys.exit(run(sys.argv[1:]))"
    return [sys.executable, "-c", code, *arguments]


@contextmanager
def _process(folder: Path, entry: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    with (folder / "processes.log").open("ab") as log:
        process = subprocess.Popen(
            _command(entry, *arguments),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (folder / "processes.log").read_text()[-4_000:]
        yield process, json.loads(line)
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "cluster.toml").write_text(CLUSTER + BONDS)
    (tmp_path / "policy.toml").write_text(POLICY)
    arguments = ["--cluster", str(tmp_path / "cluster.toml"), "--policy", str(tmp_path / "policy.toml")]
    arguments += ["--state", str(tmp_path / "state"), "--listen", "127.0.0.1:0"]
    with _process(tmp_path, "tandemfeed.admin_server.command.server_command:main", *arguments) as (_, ready):
        yield ready["admin"]


def _gateway_arguments(folder: Path, admin: str, *more: str) -> list[str]:
    state = folder / "state"
    return [
        *("--feed", "equities", "--journal", str(folder / "journal"), "--admin", admin, "--identity", "source"),
        *("--ca", str(state / "ca.pem"), "--secret-file", str(state / "secrets" / "source.secret")),
        *("--tls-cert", str(state / "certs" / "source.crt"), "--tls-key", str(state / "certs" / "source.key")),
        *more,
    ]


class _Listener:
    """Receives the source streams like an adapter."""

    def __init__(self, folder: Path, admin: str) -> None:
        self._opener = SourceOpener(FEED.feed_id)
        self._opener.use_keys({key.key_id: key.key for key in _source_keys(folder, admin, "source")})
        self._context: zmq.Context[Any] = zmq.Context()
        self._receivers = [ZeromqReceiver(self._context, "127.0.0.1", group) for group in GROUPS.values()]
        self._poller = zmq.Poller()
        for receiver in self._receivers:
            self._poller.register(receiver.socket, zmq.POLLIN)
        self.packets: list[SourcePacket] = []
        self.heartbeats: list[SourcePacket] = []

    def listen_until(self, condition: Any) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition(self):
            assert time.monotonic() < deadline, "too few packets arrived in time"
            self._poller.poll(1_000)
            for receiver in self._receivers:
                while (datagram := receiver.receive()) is not None:
                    assert len(datagram) <= FEED.datagram_size_max
                    packet = decode_source_packet(self._opener.open(datagram), FEED.feed_id)
                    (self.heartbeats if packet.flags & SourceFlag.HEARTBEAT else self.packets).append(packet)

    def ended_streams(self) -> set[int]:
        return {beat.source_stream_id for beat in self.heartbeats if beat.flags & SourceFlag.END_OF_STREAM}

    def close(self) -> None:
        for receiver in self._receivers:
            receiver.close()
        self._context.term()


def _source_keys(folder: Path, admin: str, identity: str) -> list[common_pb2.StreamKey]:
    state = folder / "state"
    ca_pem = (state / "ca.pem").read_bytes()
    session = login(admin, ca_pem, identity, (state / "secrets" / f"{identity}.secret").read_text().strip())
    with open_channel(admin, ca_pem, ADMIN_SERVER, session.bearer) as channel:
        request = admin_pb2.SourceKeysRequest(feed="equities")
        return list(admin_pb2_grpc.AdapterRegistryStub(channel).GetSourceKeys(request, timeout=PATIENCE_S).keys)


def test_only_the_source_may_fetch_source_keys(tmp_path: Path, admin: str) -> None:
    (key,) = _source_keys(tmp_path, admin, "source")
    assert (key.channel_id, len(key.key)) == (0, 32)
    with pytest.raises(grpc.RpcError, match="no feed 'equities'; available to you: bonds") as refused:
        _source_keys(tmp_path, admin, "adapter-b")
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.fixture
def listener(tmp_path: Path, admin: str) -> Iterator[_Listener]:
    made = _Listener(tmp_path, admin)
    yield made
    made.close()


def _fill(folder: Path, admin: str, endpoint: str, stream: int, *ranges: tuple[int, int]) -> list[SourcePacket]:
    state = folder / "state"
    ca_pem = (state / "ca.pem").read_bytes()
    session = login(admin, ca_pem, "adapter-a", (state / "secrets" / "adapter-a.secret").read_text().strip())
    request = replay_pb2.FillRequest(
        source_stream_id=stream,
        ranges=[common_pb2.SequenceRange(first_seq=first, last_seq=last) for first, last in ranges],
    )
    with open_channel(endpoint, ca_pem, GATEWAY, session.bearer) as channel:
        chunks = replay_pb2_grpc.SourceReplayStub(channel).Fill(request, timeout=PATIENCE_S)
        return [decode_source_packet(datagram, FEED.feed_id) for chunk in chunks for datagram in chunk.datagrams]


def test_a_gateway_with_faults_loses_packets_and_fills_them(tmp_path: Path, admin: str, listener: _Listener) -> None:
    make_recording(tmp_path / "recording", 2_000, 1_000)
    journal_without_spark(tmp_path / "recording", tmp_path / "journal")
    faults = ("--fault", "loss=0.5", "--fault", "reorder=0.1")
    arguments = _gateway_arguments(tmp_path, admin, "--rate", "20000", "--wait-for-start", *faults)
    with _process(tmp_path, GATEWAY_COMMAND, *arguments) as (gateway, ready):
        listener.listen_until(lambda heard: {beat.source_stream_id for beat in heard.heartbeats} == {1, 2})
        assert gateway.stdin is not None
        gateway.stdin.write("start\n")
        gateway.stdin.flush()
        listener.listen_until(lambda heard: heard.ended_streams() == {1, 2})
        journaled = {packet[:2]: packet for packet in packets_of(tmp_path / "journal")}
        heard = {packet[:2] for packet in listener.packets}
        assert heard < journaled.keys()
        counts = assert_gapless(list(journaled.values()))
        filled = [packet for each in (1, 2) for packet in _fill(tmp_path, admin, ready["rpc"], each, (1, counts[each]))]
        assert [packet[:2] for packet in filled] == sorted(journaled)


def test_the_gateway_multicasts_and_fills_what_the_journal_contains(
    tmp_path: Path, admin: str, listener: _Listener
) -> None:
    make_recording(tmp_path / "recording", 4_000, 1_000)
    journal_without_spark(tmp_path / "recording", tmp_path / "journal")
    arguments = _gateway_arguments(tmp_path, admin, "--rate", "8000", "--wait-for-start")
    with _process(tmp_path, GATEWAY_COMMAND, *arguments) as (gateway, ready):
        listener.listen_until(lambda heard: {beat.source_stream_id for beat in heard.heartbeats} == {1, 2})
        assert {beat.first_source_seq for beat in listener.heartbeats} == {1}
        assert not listener.packets
        assert _fill(tmp_path, admin, ready["rpc"], 1, (1, 100)) == []
        assert gateway.stdin is not None
        assert gateway.stdout is not None
        gateway.stdin.write("start\n")
        gateway.stdin.flush()
        listener.listen_until(lambda heard: heard.ended_streams() == {1, 2})
        counts = assert_gapless(sorted(listener.packets, key=lambda packet: packet[:2]))
        sent = json.loads(gateway.stdout.readline())
        assert sent == {
            "event": "sent",
            "session": FEED.session,
            "messages": 4_000,
            "per_stream": {str(k): v for k, v in counts.items()},
        }
        journaled = {packet[:2]: packet for packet in packets_of(tmp_path / "journal")}
        assert len(journaled) == len(listener.packets)
        for packet in listener.packets:
            assert frames_in(packet) == frames_in(journaled[packet[:2]])
        stamps = [packet.sent_at_ns for packet in sorted(listener.packets, key=lambda packet: packet.sent_at_ns)]
        assert 0.3 < (stamps[-1] - stamps[0]) / 1e9 < 30  # 4,000 messages at 8,000 per second take half a second
        heard = [packet for packet in listener.packets if packet.source_stream_id == 2]
        filled = _fill(tmp_path, admin, ready["rpc"], 2, (1, counts[2] + 50))
        assert [frames_in(packet) for packet in filled] == [frames_in(packet) for packet in heard]
        assert [packet.sent_at_ns for packet in filled] == [packet.sent_at_ns for packet in heard]
        assert {packet.flags for packet in filled} == {SourceFlag.RETRANSMISSION}
        two = _fill(tmp_path, admin, ready["rpc"], 1, (5, 5), (900, 901))
        assert two[0].first_source_seq <= 5 < two[0].end_source_seq
        assert any(p.first_source_seq <= 901 < p.end_source_seq for p in two)
        overlapping = _fill(tmp_path, admin, ready["rpc"], 1, (30, 90), (5, 40), (30, 90), (91, 95))
        assert_gapless_within(overlapping, 5, 96)
        _assert_refusals(tmp_path, admin, ready["rpc"])
    assert gateway.returncode == 0


def assert_gapless_within(packets: list[SourcePacket], first_seq: int, end_seq: int) -> None:
    """Check that the packets cover the range, with each message once and in order."""
    assert packets[0].first_source_seq <= first_seq
    assert packets[-1].end_source_seq >= end_seq
    assert all(before.end_source_seq == after.first_source_seq for before, after in pairwise(packets))


def _assert_refusals(folder: Path, admin: str, endpoint: str) -> None:
    with pytest.raises(grpc.RpcError) as unknown:
        _fill(folder, admin, endpoint, 9, (1, 1))
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.RpcError, match="first is 9 and end 5") as backwards:
        _fill(folder, admin, endpoint, 1, (1, 3), (9, 4))
    assert backwards.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    ca_pem = (folder / "state" / "ca.pem").read_bytes()

    def bearer_of(identity: str) -> BearerFor:
        return login(
            admin, ca_pem, identity, (folder / "state" / "secrets" / f"{identity}.secret").read_text().strip()
        ).bearer

    for bearer, code in (
        (None, grpc.StatusCode.UNAUTHENTICATED),
        (bearer_of("source"), grpc.StatusCode.PERMISSION_DENIED),
        (bearer_of("adapter-b"), grpc.StatusCode.PERMISSION_DENIED),  # an adapter of another feed
    ):
        with open_channel(endpoint, ca_pem, GATEWAY, bearer) as channel:
            with pytest.raises(grpc.RpcError) as refused:
                list(replay_pb2_grpc.SourceReplayStub(channel).Fill(replay_pb2.FillRequest(source_stream_id=1)))
            assert refused.value.code() is code


def test_a_killed_gateway_resumes_with_the_same_numbers(tmp_path: Path, admin: str, listener: _Listener) -> None:
    make_recording(tmp_path / "recording", 6_000, 1_000)
    journal_without_spark(tmp_path / "recording", tmp_path / "journal")
    arguments = _gateway_arguments(tmp_path, admin, "--rate", "6000")
    with _process(tmp_path, GATEWAY_COMMAND, *arguments) as (gateway, _):
        listener.listen_until(lambda heard: len(heard.packets) > 100)
        os.kill(gateway.pid, signal.SIGKILL)
        gateway.wait()
    before = len(listener.packets)
    with _process(tmp_path, GATEWAY_COMMAND, *arguments) as (_, ready):
        listener.listen_until(lambda heard: heard.ended_streams() == {1, 2})
        distinct = {packet[:2]: packet for packet in listener.packets}
        assert len(distinct) > before
        assert len(listener.packets) - len(distinct) < 100  # a few packets were sent twice
        for packet in listener.packets:
            assert frames_in(packet) == frames_in(distinct[packet[:2]])
        assert sum(assert_gapless([distinct[key] for key in sorted(distinct)]).values()) == 6_000
        assert _fill(tmp_path, admin, ready["rpc"], 1, (1, 1))[0].sent_at_ns == 0  # sent before the restart


def _await_source(folder: Path, admin: str, is_as_expected: Callable[[admin_pb2.SourceStatus], bool]) -> list[Alert]:
    """Wait until the only source of the feed has this status; return what is wrong with the feed."""
    state = folder / "state"
    ca_pem, secret = (state / "ca.pem").read_bytes(), (state / "secrets" / "operator.secret").read_text().strip()
    session = login(admin, ca_pem, "operator", secret)
    deadline = time.monotonic() + PATIENCE_S
    with open_channel(admin, ca_pem, ADMIN_SERVER, session.bearer) as channel:
        operations = admin_pb2_grpc.OperationsStub(channel)
        while True:
            (feed,) = operations.GetStatus(admin_pb2.GetStatusRequest(feed="equities")).feeds
            if len(feed.sources) == 1 and is_as_expected(feed.sources[0]):
                return alerts_of(feed, Thresholds())
            assert time.monotonic() < deadline, feed.sources
            time.sleep(0.1)


def test_the_status_shows_what_a_gateway_sends_and_when_it_is_killed_or_stopped(tmp_path: Path, admin: str) -> None:
    make_recording(tmp_path / "recording", 4_000, 1_000)
    journal_without_spark(tmp_path / "recording", tmp_path / "journal")
    arguments = _gateway_arguments(tmp_path, admin, "--rate", "100000", "--wait-for-start")
    with _process(tmp_path, GATEWAY_COMMAND, *arguments) as (gateway, _):
        _await_source(tmp_path, admin, lambda source: source.report.unsent_record_count > 100)
        assert gateway.stdin is not None
        gateway.stdin.write("start\n")
        gateway.stdin.flush()

        def has_sent_all(source: admin_pb2.SourceStatus) -> bool:
            sent = sum(seq - 1 for seq in source.report.next_source_seqs.values())
            return source.report.has_sent_all and sent == 4_000 and source.report.unsent_record_count == 0

        alerts = _await_source(tmp_path, admin, has_sent_all)
        assert not any("gateway" in alert.text for alert in alerts)
        os.kill(gateway.pid, signal.SIGKILL)
        gateway.wait()
        alerts = _await_source(tmp_path, admin, lambda source: source.is_dead)
        (dead,) = (alert for alert in alerts if f"(process {gateway.pid} on " in alert.text)
        assert dead.level is Level.CRITICAL
        assert "is dead: last heard at" in dead.text
    with _process(tmp_path, GATEWAY_COMMAND, *arguments) as (gateway, _):
        _await_source(tmp_path, admin, lambda source: source.report.process_id == gateway.pid)
    alerts = _await_source(tmp_path, admin, lambda source: source.report.is_stopping)
    assert [alert.level for alert in alerts if "was stopped at" in alert.text] == [Level.WARNING]


def _run_gateway(folder: Path, admin: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Run a gateway that is expected to end soon."""
    command = _command(GATEWAY_COMMAND, *_gateway_arguments(folder, admin, *more))
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)


def test_a_journal_of_another_session_is_refused(tmp_path: Path, admin: str) -> None:
    make_recording(tmp_path / "recording", 200, 200)
    journal_without_spark(tmp_path / "recording", tmp_path / "journal")
    done = _run_gateway(tmp_path, admin, "--session=20261122")
    assert done.returncode == 2
    assert "use the journal of this session" in done.stderr


def test_a_certificate_that_the_adapters_would_refuse_is_refused(tmp_path: Path, admin: str) -> None:
    certificate = tmp_path / "state" / "certs" / "adapter-a"
    done = _run_gateway(tmp_path, admin, f"--tls-cert={certificate}.crt", f"--tls-key={certificate}.key")
    assert done.returncode == 2
    assert f"the TLS certificate must name {GATEWAY}" in done.stderr


def test_a_gateway_whose_reports_fail_unexpectedly_ends_with_a_sentence_and_a_status(
    tmp_path: Path, admin: str
) -> None:
    module = tmp_path / "a_bug.py"
    module.write_text(
        "import sys\n"
        "from tandemfeed.deploy import command\n"
        "from tandemfeed.spark_feed.sending.source_reports import SourceReporter\n"
        "def _bug(*_):\n    raise LookupError('a test says so')\n"
        "SourceReporter._report_to = _bug\n"
        "def main(arguments):\n    sys.argv[1:] = ['source-gateway', *arguments]\n    return command.main()\n"
    )
    done = subprocess.run(
        _command("a_bug:main", *_gateway_arguments(tmp_path, admin)), cwd=ROOT, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )  # fmt: skip
    assert done.returncode == EXIT_THREAD_FAILED
    assert "ended because thread source-reports failed: a test says so" in done.stderr


def test_a_second_gateway_of_a_journal_is_refused_in_one_sentence(tmp_path: Path, admin: str) -> None:
    with _process(tmp_path, GATEWAY_COMMAND, *_gateway_arguments(tmp_path, admin)):
        done = _run_gateway(tmp_path, admin)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert f"another gateway sends from {tmp_path / 'journal'}; stop that one first" in line


def test_a_gateway_says_that_its_journal_does_not_exist_and_waits_for_it(
    tmp_path: Path, admin: str, listener: _Listener
) -> None:
    with _process(tmp_path, GATEWAY_COMMAND, *_gateway_arguments(tmp_path, admin)):
        warning = f"{tmp_path / 'journal'} does not exist yet; waiting for the source job"
        assert warning in (tmp_path / "processes.log").read_text()
        make_recording(tmp_path / "recording", 200, 200)
        journal_without_spark(tmp_path / "recording", tmp_path / "journal")
        listener.listen_until(lambda heard: heard.ended_streams() == {1, 2})


def test_a_gateway_listens_where_the_adapters_request_gap_fills_and_nowhere_else(tmp_path: Path, admin: str) -> None:
    with _process(tmp_path, GATEWAY_COMMAND, *_gateway_arguments(tmp_path, admin)) as (
        _,
        ready,
    ):
        assert ready["rpc"] == "127.0.0.1:7411"
    done = _run_gateway(tmp_path, admin, "--rpc-listen", "127.0.0.1:7500")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "adapters of feed equities request gap fills at 127.0.0.1:7411" in line


@pytest.mark.parametrize(
    ("asked", "is_right"),
    [
        ("0.0.0.0:7411", True),
        ("[::]:7411", True),
        ("localhost:7411", True),
        ("127.0.0.2:7411", False),
        ("0.0.0.0:7412", False),
        ("no-such-host.invalid:7411", False),
    ],
)
def test_the_listening_address_may_be_written_differently(asked: str, is_right: bool) -> None:
    description = common_pb2.FeedDescription(name="equities", source_replay_endpoint="127.0.0.1:7411")
    if is_right:
        assert listen_address(asked, description) == asked
    else:
        with pytest.raises(GatewayError, match=f"--rpc-listen is {re.escape(asked)}"):
            listen_address(asked, description)
