"""The tool that makes system calls of a process fail."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.failing_calls import SHORT, Fault, Injection, failing_calls, why_no_failing_calls

pytestmark = pytest.mark.skipif(bool(why_no_failing_calls()), reason=why_no_failing_calls() or "possible")
WRITES = """
import json, os, sys, threading
path = sys.argv[1]
file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
results = []
def step(call, *arguments):
    try:
        results.append(call(*arguments))
    except OSError as failed:
        results.append(failed.strerror)
"""
REPORT = "\nprint(json.dumps(results))"


@contextmanager
def running(steps: str, fault: Fault, path: Path) -> Iterator[tuple[list[Any], Injection]]:
    """Yields the results of the steps of a process, after its end."""
    command = [sys.executable, "-c", WRITES + steps + REPORT, str(path)]
    with failing_calls(command, fault, stdout=subprocess.PIPE) as (process, injection):
        out, _ = process.communicate(timeout=60)
    yield json.loads(out), injection


def test_the_n_th_call_fails_and_the_others_are_made(tmp_path: Path) -> None:
    path = tmp_path / "file"
    steps = "for _ in range(5): step(os.fsync, file)"
    with running(steps, Fault("fsync", errno.EIO, when=2, count=2), path) as (results, injection):
        assert results == [None, "Input/output error", "Input/output error", None, None]
    assert injection.calls == 5


def test_only_calls_about_the_path_count(tmp_path: Path) -> None:
    (tmp_path / "chosen").mkdir()
    steps = """
other = os.open(os.path.dirname(os.path.dirname(path)) + "/other", os.O_RDWR | os.O_CREAT)
for each in (other, file, other, file): step(os.write, each, b"x")
"""
    fault = Fault("write", errno.ENOSPC, when=2, of="/chosen/")
    with running(steps, fault, tmp_path / "chosen" / "file") as (results, injection):
        assert results == [1, 1, 1, "No space left on device"]
    assert injection.failed == [str(tmp_path / "chosen" / "file")]


def test_a_path_that_is_opened_counts(tmp_path: Path) -> None:
    steps = "step(os.open, path + '-a', 0)\nstep(os.open, path, 0)\nstep(os.open, path, 0)"
    with running(steps, Fault("open", errno.EMFILE, when=2, count=2, of="file"), tmp_path / "file") as (results, _):
        assert results[:2] == ["Too many open files"] * 2


def test_a_short_write_writes_the_first_half_at_the_present_position(tmp_path: Path) -> None:
    path = tmp_path / "file"
    steps = "step(os.write, file, b'head'); step(os.write, file, b'abcdef'); step(os.write, file, b'tail')"
    with running(steps, Fault("write", SHORT, when=2, of=str(path)), path) as (results, _):
        assert results == [4, 3, 4]
    assert path.read_bytes() == b"headabctail"


def test_a_short_write_at_an_offset_leaves_the_position(tmp_path: Path) -> None:
    path = tmp_path / "file"
    steps = "step(os.pwrite, file, b'abcdef', 10); step(os.lseek, file, 0, 1)"
    with running(steps, Fault("write", SHORT, of=str(path)), path) as (results, _):
        assert results == [3, 0]
    assert path.read_bytes() == bytes(10) + b"abc"


def test_calls_of_threads_and_children_are_counted_together(tmp_path: Path) -> None:
    steps = """
def flush(): step(os.fsync, file)
for _ in range(2):
    thread = threading.Thread(target=flush); thread.start(); thread.join()
child = os.fork()
if not child:
    step(os.fsync, file)
    os._exit(results[-1] is not None)
results.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
flush()
"""
    with running(steps, Fault("fsync", errno.EIO, when=3), tmp_path / "file") as (results, injection):
        assert results == [None, None, 1, None]
    assert injection.calls == 4


def test_sockets_are_told_apart_by_their_kind(tmp_path: Path) -> None:
    steps = """
import socket
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("127.0.0.1", 0))
step(datagrams.sendto, b"abc", datagrams.getsockname())
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
step(client.send, b"abcd")
step(client.send, b"abcd")
"""
    with running(steps, Fault("send", errno.ECONNRESET, of="socket:stream"), tmp_path / "file") as (results, _):
        assert results == [3, "Connection reset by peer", 4]


def test_a_process_that_waits_for_ever_is_killed_at_the_end() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    began_s = time.monotonic()
    with failing_calls(command, Fault("fsync", errno.EIO)) as (process, _):
        assert process.poll() is None
    assert process.returncode == -9
    assert time.monotonic() - began_s < 60


def test_calls_fail_only_while_it_is_armed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    code = WRITES + "sys.stdin.readline()\nstep(os.fsync, file)\nprint(json.dumps(results))"
    command = [sys.executable, "-c", code, str(path)]
    with failing_calls(command, Fault("fsync", errno.EIO), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as made:
        process, injection = made
        injection.is_armed = False
        out, _ = process.communicate(b"\n", timeout=60)
    assert (json.loads(out), injection.calls) == ([None], 0)
