"""ZeroMQ contexts are closed by name; one that was forgotten stops no thread."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from tandemfeed.runtime.zeromq import Context

ROOT = Path(__file__).resolve().parents[2]
# A message that waits for ever for its receiver, and a cycle that only the garbage collector can free, from a thread.
FORGOTTEN = """
import gc, threading, warnings, zmq
from {module} import Context
warnings.simplefilter("always")
gc.disable()

def forget():
    context = Context()
    socket = context.socket(zmq.PUSH)
    socket.connect("tcp://127.0.0.1:1")
    socket.send(b"for nobody")
    cycle = [context, socket]
    cycle.append(cycle)

forget()
collecting = threading.Thread(target=gc.collect)
collecting.start()
collecting.join()
print("collected")
"""


def run(module: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    script = FORGOTTEN.format(module=module)
    command = [sys.executable, "-c", script]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=True)


def test_a_forgotten_context_stops_neither_the_thread_that_collects_it_nor_the_end_of_the_process() -> None:
    done = run("tandemfeed.runtime.zeromq", 60)
    assert done.stdout == "collected\n"
    assert "was not closed; its threads and sockets stay" in done.stderr


def test_the_test_would_notice_a_context_that_waits() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run("zmq", 5)


def test_closing_closes_the_sockets_and_drops_what_they_have_not_sent() -> None:
    with Context() as context:
        socket = context.socket(zmq.PUSH)
        socket.connect("tcp://127.0.0.1:1")
        socket.send(b"for nobody")
    assert (context.closed, socket.closed) == (True, True)
    context.close()  # does nothing
