"""A real ZooKeeper server for tests, from Debian's package, with a separate folder and port; it can be stopped, paused
and restarted.

Tests that need it are skipped if Debian's package `zookeeper` or Java is not installed.
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

from tandemfeed.admin_server.records.zookeeper import RECONNECT

JAR = Path("/usr/share/java/zookeeper.jar")  # its manifest names the other jars in this folder
MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
TICK_MS = 100  # allows sessions from 200 ms, so that tests wait only briefly for their end
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60


def is_installed() -> bool:
    """True if a server can be started here."""
    return JAR.exists() and shutil.which("java") is not None


needs_zookeeper = pytest.mark.skipif(
    not is_installed(), reason="needs Debian's packages zookeeper and openjdk-17-jre-headless (./run test brings both)"
)


class ZooKeeperServer:
    """One server on 127.0.0.1.

    Attributes:
        hosts: host:port, the same after a restart.
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
        """Start or restart the server; return when it serves."""
        with (self._folder / "zookeeper.log").open("ab") as log:
            # Few threads and a small heap: a test's server shares the machine.
            options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
            # Tests stop only the process, so writes to the page cache suffice, and a slow disk cannot stall it.
            options.append("-Dzookeeper.forceSync=no")
            self._process = subprocess.Popen(
                ["java", *options, "-cp", str(JAR), MAIN, str(self._settings)], stdout=log, stderr=log
            )
        give_up_at = time.monotonic() + START_TIMEOUT_S
        client = KazooClient(self.hosts, 1.0, connection_retry=RECONNECT)
        try:
            client.start(timeout=give_up_at - time.monotonic())  # it retries until the server serves
        finally:
            client.stop()
            client.close()

    def stop(self) -> None:
        """Stop the server; its data stays on the disk."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None

    def pause(self) -> None:
        """Suspend the server: connections stay open, and it answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the server."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def running_zookeeper(folder: Path) -> Iterator[ZooKeeperServer]:
    """A separate server for one test."""
    server = ZooKeeperServer(folder)
    try:
        yield server
    finally:
        server.stop()
