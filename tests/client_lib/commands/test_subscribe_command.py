"""`tandemfeed subscribe`, run as a process."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet
import pytest

from tandemfeed.client_lib.recording.record import DeliveryRecord
from tandemfeed.feedcore.wire.output_packet import OutputFlag
from tests.client_lib.toy_cluster import IDENTITY, SECRET, ToyCluster, heartbeat, packet

Start = Callable[..., "subprocess.Popen[str]"]
pytestmark = pytest.mark.processes


@pytest.fixture
def start(cluster: ToyCluster, tmp_path: Path) -> Start:
    """Start the command against the toy cluster."""
    (tmp_path / "ca.pem").write_bytes(cluster.ca_pem)
    (tmp_path / "secret").write_text(SECRET + "\n")

    def run(*options: str, secret: str = SECRET, command: str = "subscribe") -> subprocess.Popen[str]:
        (tmp_path / "secret").write_text(secret + "\n")
        connection = ["--admin", cluster.admin_rpc.endpoint, "--ca", str(tmp_path / "ca.pem"), "--identity", IDENTITY]
        return subprocess.Popen(
            [
                sys.executable, "-m", "tandemfeed.deploy.command", command,
                "--feed", "equities", *connection, "--secret-file", str(tmp_path / "secret"), *options,
            ],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    return run


def feed_until_it_ends(cluster: ToyCluster, process: subprocess.Popen[str]) -> tuple[str, str]:
    """Send ten messages and announce the end until the process exits; replay supplies messages that it missed."""
    cluster.adapters[0].lose(packet(1, 1, 5), packet(6, 6, 5))
    while True:
        cluster.adapters[0].send(heartbeat(11, flags=OutputFlag.END_OF_STREAM | OutputFlag.FROM_ACTIVE))
        try:
            return process.communicate(timeout=0.1)
        except subprocess.TimeoutExpired:
            if process.poll() is not None:  # the process has exited
                return process.communicate()


def test_the_command_records_until_the_end_and_prints_json_lines(
    cluster: ToyCluster, start: Start, tmp_path: Path
) -> None:
    process = start("--start", "first", "--json", "--until-end", "--record", str(tmp_path / "record.npz"))
    output, errors = feed_until_it_ends(cluster, process)
    assert process.returncode == 0, errors
    lines = [json.loads(line) for line in output.splitlines()]
    assert lines[0]["event"] == "ready"
    assert lines[-1]["messages"] == 10
    assert lines[-1]["channels"]["1"]["next_source_seqs"] == {"1": 11}
    figures = DeliveryRecord.load(tmp_path / "record.npz").figures({1: 10})
    assert (figures.delivered, figures.missing, figures.duplicated) == (10, 0, 0)


def test_the_command_prints_messages(cluster: ToyCluster, start: Start) -> None:
    process = start("--start", "first", "--as", "text", "--count", "10")
    output, errors = feed_until_it_ends(cluster, process)
    assert process.returncode == 0, errors
    assert "10 1:10 Note(number=1000010, text='note-001000010')" in output.splitlines()


def test_count_is_exact_though_a_packet_has_more_messages(cluster: ToyCluster, start: Start, tmp_path: Path) -> None:
    for output_option in ("--as=text", "--json"):
        record = tmp_path / output_option
        process = start("--start", "first", output_option, "--count", "7", "--record", str(record))
        output, errors = feed_until_it_ends(cluster, process)
        assert process.returncode == 0, errors
        lines = output.splitlines()
        if output_option == "--as=text":
            assert [int(line.split()[0]) for line in lines if not line.startswith("#")] == [1, 2, 3, 4, 5, 6, 7]
        else:
            assert json.loads(lines[-1])["messages"] == 7
        assert DeliveryRecord.load(record).figures({1: 7}).delivered == 7


def test_a_count_that_the_feed_does_not_reach_is_in_the_exit_status(cluster: ToyCluster, start: Start) -> None:
    process = start("--start", "first", "--as=text", "--count", "11", "--until-end")
    output, errors = feed_until_it_ends(cluster, process)
    assert process.returncode == 3, errors
    assert [int(line.split()[0]) for line in output.splitlines() if not line.startswith("#")] == list(range(1, 11))
    assert "the feed ended after 10 of 11 messages" in errors


def test_a_count_is_of_the_messages_that_are_printed(cluster: ToyCluster, start: Start) -> None:
    process = start("--start", "first", "--as=text", "--count", "3", "--kind", "Note")
    output, errors = feed_until_it_ends(cluster, process)
    assert process.returncode == 0, errors
    lines = [line for line in output.splitlines() if not line.startswith("#")]
    assert len(lines) == 3
    assert all(" Note(" in line for line in lines)


@pytest.mark.parametrize(("command", "options"), [("subscribe", []), ("snapshot", ["--by", "number"]), ("replay", [])])
def test_a_kind_that_the_feed_does_not_have_is_refused(
    cluster: ToyCluster, start: Start, command: str, options: list[str]
) -> None:
    process = start("--as=text", "--kind", "Knot", *options, command=command)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"tandemfeed {command}: --kind Knot: the feed has no such message; it has " in errors


def test_a_count_must_be_positive(start: Start) -> None:
    _, errors = start("--count", "0").communicate(timeout=30)
    assert "'0' is not a number of messages; expected 1, 2, 3" in errors


def test_a_second_process_that_records_to_the_same_file_is_refused(
    cluster: ToyCluster, start: Start, tmp_path: Path
) -> None:
    first = start("--json", "--record", str(tmp_path / "record"))
    assert first.stdout is not None
    assert json.loads(first.stdout.readline())["event"] == "ready"
    second = start("--json", "--record", str(tmp_path / "record"))
    _, errors = second.communicate(timeout=30)
    assert second.returncode == 2
    assert errors == (f"tandemfeed subscribe: another process records to {tmp_path / 'record'}; choose another file\n")
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=30)
    assert first.returncode == 0


def test_a_record_that_cannot_be_written_is_refused_at_the_start(start: Start, tmp_path: Path) -> None:
    process = start("--json", "--record", str(tmp_path / "no" / "record"))
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "No such file or directory" in errors
    assert "Traceback" not in errors


def test_the_live_view_ends_cleanly_on_sigterm(cluster: ToyCluster, start: Start) -> None:
    process = start()
    assert cluster.admin.subscribed.acquire(timeout=30)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_that_is_still_connecting_ends_on_a_signal(start: Start, number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = start("--json", "--admin", f"127.0.0.1:{silent.getsockname()[1]}")
        connection, _ = silent.accept()
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
        connection.close()
    assert (process.returncode, errors) == (0, "")


def test_a_refusal_is_reported_in_one_line(start: Start) -> None:
    process = start(secret="wrong")
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "AuthenticationRefused" in errors
    assert "Traceback" not in errors


def test_a_divergence_raises_an_alarm(cluster: ToyCluster, start: Start) -> None:
    process = start("--start", "first", "--json", "--until-end")
    assert process.stdout is not None
    a, b = cluster.adapters
    honest = packet(1, 1, 5)
    evil = honest._replace(payload=honest.payload.replace(b"note", b"evil"))
    is_heard = threading.Event()

    def send() -> None:
        while not is_heard.wait(0.05):
            a.send(heartbeat(6), honest)
            b.send(evil)

    sender = threading.Thread(target=send)
    sender.start()
    figures = {"diverged": 0}
    while not figures["diverged"]:
        figures = {"diverged": 0} | json.loads(process.stdout.readline())
    is_heard.set()
    sender.join()
    while process.poll() is None:
        a.send(heartbeat(6, flags=OutputFlag.END_OF_STREAM | OutputFlag.FROM_ACTIVE))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "ALARM: adapters" in errors
    assert "sent different content at channel 1" in str(figures["alarm"])


def test_history_is_replayed_into_a_table(cluster: ToyCluster, start: Start, tmp_path: Path) -> None:
    table = tmp_path / "notes.parquet"
    output, errors = feed_until_it_ends(cluster, start("--as", "parquet", "-o", str(table), command="replay"))
    assert (output, errors) == ("", "")
    assert pyarrow.parquet.read_table(table).column("number").to_pylist() == list(range(1_000_001, 1_000_011))


def test_a_snapshot_is_printed(cluster: ToyCluster, start: Start) -> None:
    process = start("--by", "text", "--as", "json", "--kind", "Note", command="snapshot")
    output, errors = feed_until_it_ends(cluster, process)
    assert process.returncode == 0, errors
    assert [json.loads(line)["message_seq"] for line in output.splitlines() if "Note" in line] == list(range(1, 11))
