"""A reader in a process of its own, which a test can stop, kill, or let do something special.

The process runs Python code that finds `feed`, a client of the toy cluster, and `say`, which writes a line to the test.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast

from tests.client_lib.toy_cluster import IDENTITY, INTERFACE, SECRET, ToyCluster

ROOT = Path(__file__).resolve().parents[2]
GIVE_UP_S = 60.0
PROLOGUE = """
import json, os, sys
import tandemfeed
from tandemfeed.client_lib import *
from tests.client_lib.toy_cluster import TOPIC

given = json.loads(sys.argv[1])

def connect_again():
    return tandemfeed.client_lib.connect(given["admin"], ca=given["ca"].encode(), identity=given["identity"],
        secret=given["secret"], interface=given["interface"], datagrams=given["datagrams"])

def say(*what):
    os.write(1, (json.dumps(what) + "\\n").encode())

feed = connect_again()
"""


class ReaderProcess:
    """Runs code as another process; leave the block to kill it.

    Attributes:
        said: every line so far.
    """

    def __init__(self, cluster: ToyCluster, code: str) -> None:
        given = {
            "admin": cluster.admin_rpc.endpoint,
            "ca": cluster.ca_pem.decode(),
            "identity": IDENTITY,
            "secret": SECRET,
            "interface": INTERFACE,
            "datagrams": cluster.datagrams,
        }
        self.said: list[Any] = []
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROLOGUE + code, json.dumps(given)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        self._process.kill()
        _, errors = self._process.communicate()
        if error is not None:
            sys.stderr.write(errors.decode())

    def hears(self, what: Any, give_up_s: float = GIVE_UP_S) -> bool:
        """Wait until it says this; False if it ends, or the time is over, before."""
        give_up_at_s = time.monotonic() + give_up_s
        while what not in self.said and time.monotonic() < give_up_at_s:
            if not self.listen(0.05) and self._process.poll() is not None:
                break
        return what in self.said

    def listen(self, wait_s: float = 0.0) -> bool:
        """Take the lines that it has written; False if there is none."""
        pipe = cast("IO[bytes]", self._process.stdout)
        if not select.select([pipe], [], [], wait_s)[0]:
            return False
        data = os.read(pipe.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.said += map(json.loads, lines)
        return bool(data)

    def wait(self, give_up_s: float = GIVE_UP_S) -> int:
        """Wait until it ends by itself; returns the status."""
        status = self._process.wait(give_up_s)
        while self.listen():
            pass
        return status

    def errors(self) -> str:
        """What it wrote to the standard error stream; it has ended."""
        return cast("IO[bytes]", self._process.stderr).read().decode()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop it for the block."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)
