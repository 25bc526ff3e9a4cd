"""A real ZooKeeper server for tests: Debian's, in a folder and on a port of its own; it can stop, pause, start again.

It installs nothing: where Debian's package `zookeeper` or Java is missing, what asks for it is skipped.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from admin_server.zookeeper import RECONNECT

JAR = Path("/usr/share/java/zookeeper.jar")  # its manifest names what else it needs, beside it
MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
TICK_MS = 100  # sessions from 200 ms: a test need not wait for one for long
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 20


def is_installed() -> bool:
    """True if a server can be started here."""
    return JAR.exists() and shutil.which("java") is not None


needs_zookeeper = pytest.mark.skipif(
    not is_installed(), reason="needs Debian's packages zookeeper and openjdk-17-jre-headless (./run test brings both)"
)


class ZooKeeperServer:
    """One server on 127.0.0.1.

    Attributes:
        hosts: host:port, the same in every life.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "data").mkdir(parents=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.hosts = f"127.0.0.1:{port}"
        self._settings = folder / "zoo.cfg"
        self._settings.write_text(
            f"tickTime={TICK_MS}\ndataDir={folder / 'data'}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
            "admin.enableServer=false\nmaxClientCnxns=0\nmaxSessionTimeout=60000\n"
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start (again); returns when it serves."""
        with (self._folder / "zookeeper.log").open("ab") as log:
            # Few threads and a small heap: a test's server shares the machine.
            options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
            # What a test stops is the process: what it wrote is in the page cache, and another's disk cannot stall it.
            options.append("-Dzookeeper.forceSync=no")
            self._process = subprocess.Popen(
                ["java", *options, "-cp", str(JAR), MAIN, str(self._settings)], stdout=log, stderr=log
            )
        give_up_at = time.monotonic() + START_TIMEOUT_S
        client = KazooClient(self.hosts, 1.0, connection_retry=RECONNECT)
        try:
            client.start(timeout=give_up_at - time.monotonic())  # it tries again until the server serves
        finally:
            client.stop()
            client.close()

    def stop(self) -> None:
        """End it; what it was told is on its disk."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None

    def pause(self) -> None:
        """It is there, and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It answers again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def running_zookeeper(folder: Path) -> Iterator[ZooKeeperServer]:
    """A server of its own for one test."""
    server = ZooKeeperServer(folder)
    try:
        yield server
    finally:
        server.stop()
