"""`tandemfeed journal replay`: pacing without a clock; sockets and files with real receivers."""

from __future__ import annotations

import signal
import socket
import struct
import threading
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.journal.commands.cli import main
from tandemfeed.journal.commands.pacing import Pacer, parse_speed
from tandemfeed.journal.format.roll_cycle import format_index
from tests.journal.journals_made import BEGIN_NS, STEP_NS, Process, made, numbered

HOUR_NS = 3_600_000_000_000


def test_at_speed_1_due_times_have_the_distances_of_the_events() -> None:
    pacer = Pacer(Fraction(1))
    assert [pacer.due_ns(at, now) for at, now in [(500, 9_000), (700, 9_001), (1_500, 20_000)]] == [
        9_000, 9_200, 10_000
    ]  # fmt: skip


def test_at_speed_10_due_times_have_a_tenth_of_the_distances() -> None:
    pacer = Pacer(Fraction(10))
    assert [pacer.due_ns(at, 0) for at in (1_000, 2_000, 11_000)] == [0, 100, 1_000]


def test_at_maximum_speed_every_event_is_due_immediately() -> None:
    pacer = Pacer(None)
    assert [pacer.due_ns(at, now) for at, now in [(0, 5), (HOUR_NS, 6)]] == [5, 6]


@given(st.lists(st.integers(0, 10**18), min_size=1), st.integers(0, 10**18), st.fractions(Fraction(1, 100), 1_000))
def test_due_times_never_go_back_and_never_drift(events: list[int], now_ns: int, speed: Fraction) -> None:
    events.sort()
    pacer = Pacer(speed)
    due = [pacer.due_ns(at, now_ns + place) for place, at in enumerate(events)]
    assert due == sorted(due)
    assert due[-1] == now_ns + int((events[-1] - events[0]) / speed)


@pytest.mark.parametrize(
    ("text", "speed"), [("1", Fraction(1)), ("10x", Fraction(10)), ("0.5", Fraction(1, 2)), ("max", None)]
)
def test_a_speed_is_a_factor_or_max(text: str, speed: Fraction | None) -> None:
    assert parse_speed(text) == speed


@pytest.mark.parametrize("text", ["0", "-1", "fast", "1/0", ""])
def test_an_invalid_speed_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a speed"):
        parse_speed(text)


class Receiver:
    """Accepts one connection and stores what it receives."""

    def __init__(self, listener: socket.socket) -> None:
        self.data = b""
        self._listener = listener
        self._thread = threading.Thread(target=self._receive)
        self._thread.start()

    def _receive(self) -> None:
        with self._listener, self._listener.accept()[0] as connection:
            while chunk := connection.recv(65_536):
                self.data += chunk

    def records(self) -> list[bytes]:
        """Wait for the end of the connection; return the received bytes."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return unframed(self.data)


def unframed(data: bytes) -> list[bytes]:
    """The records of a stream with lengths."""
    records, place = [], 0
    while place < len(data):
        (length,) = struct.unpack_from("<I", data, place)
        records.append(data[place + 4 : place + 4 + length])
        place += 4 + length
    return records


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    try:
        status: object = main([str(each) for each in arguments])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_tcp_receiver_gets_every_record_after_its_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [*numbered(25), b"", bytes(200_000)]
    indices = made(tmp_path, records)
    listener = socket.create_server(("127.0.0.1", 0))
    receiver, address = Receiver(listener), f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    assert main(["replay", str(tmp_path), "--to", address, "--speed", "max"]) == 0
    assert receiver.records() == records
    last = format_index(indices[-1])
    err = capsys.readouterr().err
    assert err.startswith(f"reached the end: 27 records sent to {address}; the last is {last} of 2026-11-18T11:06:42.6")


def test_a_unix_receiver_gets_a_range_of_records(tmp_path: Path) -> None:
    made(tmp_path / "j", numbered(25))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    receiver = Receiver(listener)
    arguments = ["--from-time", str(BEGIN_NS + 5 * STEP_NS), "--until-time", str(BEGIN_NS + 12 * STEP_NS)]
    assert main(["replay", str(tmp_path / "j"), "--to", f"unix:{tmp_path / 's'}", "--speed", "1000", *arguments]) == 0
    assert receiver.records() == numbered(7, 5)


def test_a_udp_receiver_gets_a_datagram_for_each_record(tmp_path: Path) -> None:
    made(tmp_path, [*numbered(25), b""])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(60)
        address = f"udp://127.0.0.1:{receiver.getsockname()[1]}"
        assert main(["replay", str(tmp_path), "--to", address, "--speed", "max"]) == 0
        assert [receiver.recv(65_536) for _ in range(26)] == [*numbered(25), b""]


def test_a_record_too_long_for_a_datagram_is_named_in_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (index,) = made(tmp_path, [bytes(70_000)])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        address = f"udp://127.0.0.1:{receiver.getsockname()[1]}"
        assert format_index(index) in refusal(capsys, "replay", tmp_path, "--to", address)


def test_a_file_gets_lengths_or_lines_and_is_overwritten_only_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path / "j", [*numbered(3), b"two\nlines"])
    target = tmp_path / "out"
    assert main(["replay", str(tmp_path / "j"), "--to", str(target), "--speed", "max", "--max", "3"]) == 0
    assert unframed(target.read_bytes()) == numbered(3)
    capsys.readouterr()
    assert "--overwrite" in refusal(capsys, "replay", tmp_path / "j", "--to", target)
    assert main(["replay", str(tmp_path / "j"), "--to", str(target), "--speed", "max", "--lines", "--overwrite"]) == 0
    assert target.read_text() == "record 0\nrecord 1\nrecord 2\ntwo\\nlines\n"


def test_an_invalid_or_unreachable_destination_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path / "j", numbered(3))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    folder = tmp_path / "j"
    assert "refused" in refusal(capsys, "replay", folder, "--to", f"tcp://127.0.0.1:{port}")
    assert "tcp://HOST:PORT" in refusal(capsys, "replay", folder, "--to", "ftp://127.0.0.1:1")
    assert "No such file" in refusal(capsys, "replay", folder, "--to", f"unix:{tmp_path}/none")
    assert "--lines" in refusal(capsys, "replay", folder, "--to", "udp://127.0.0.1:9", "--lines")
    assert "not a speed" in refusal(capsys, "replay", folder, "--to", "-", "--speed", "0")
    assert "--to" in refusal(capsys, "replay", folder)


def test_a_replay_ends_with_a_summary_when_the_receiver_disconnects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, [bytes(100_000)] * 200)
    listener = socket.create_server(("127.0.0.1", 0))

    def leave() -> None:
        with listener, listener.accept()[0] as connection:
            connection.recv(10)

    leaving = threading.Thread(target=leave)
    leaving.start()
    address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    assert main(["replay", str(tmp_path), "--to", address, "--speed", "max"]) == 1
    leaving.join()
    assert "the receiver is gone" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_wait_for_the_next_record_with_a_summary(tmp_path: Path, number: int) -> None:
    indices = made(tmp_path, numbered(3), step_ns=HOUR_NS, roll_cycle="DAILY")
    with Process("replay", tmp_path, "--to", "-", "--lines") as replay:
        assert replay.line() == "record 0"
        status, err = replay.end(number)
    assert status == 0
    assert err.startswith(f"interrupted: 1 record sent to -; the last is {format_index(indices[0])} of ")


def test_a_signal_ends_the_wait_for_a_receiver_that_does_not_read(tmp_path: Path) -> None:
    made(tmp_path, [bytes(150_000)] * 200)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        with Process("replay", tmp_path, "--to", address, "--speed", "max") as replay:
            connection, _ = listener.accept()
            status, err = replay.end(signal.SIGTERM)
            connection.close()
    assert (status, err.split(":")[0]) == (0, "interrupted")


def test_a_signal_ends_the_wait_for_a_pipe_without_a_reader(tmp_path: Path) -> None:
    indices = made(tmp_path, [b"0" * 100_000] * 50)
    with Process("replay", tmp_path, "--to", "-", "--lines", "--speed", "max") as replay:
        assert replay.line() == "0" * 100_000
        replay.process.send_signal(signal.SIGTERM)
        assert replay.process.wait(60) == 0
        err = replay.err.read().decode()
    assert err.startswith("interrupted: ")
    assert format_index(indices[-1]) not in err
