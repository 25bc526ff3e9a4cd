"""A real Kafka broker for tests: one node that is its own controller, with a folder and ports of its own."""

from __future__ import annotations

import base64
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.spark_feed.kafka.kafka_jars import broker_class_path

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60


class KafkaBroker:
    """A broker on 127.0.0.1.

    Attributes:
        address: host:port, the same after a restart.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        port, controller_port = _free_ports()
        self.address = f"127.0.0.1:{port}"
        self._settings = folder / "server.properties"
        self._settings.write_text(
            "process.roles=broker,controller\nnode.id=1\ncontroller.listener.names=CONTROLLER\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller_port}\n"
            f"listeners=PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller_port}\n"
            f"advertised.listeners=PLAINTEXT://{self.address}\n"
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
            f"log.dirs={folder / 'data'}\nnum.partitions=1\noffsets.topic.replication.factor=1\n"
        )
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = self._java("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self._settings))
        subprocess.run(command, check=True, capture_output=True, timeout=START_TIMEOUT_S)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def _java(self, main: str, *arguments: str) -> list[str]:
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]  # a test's broker shares the machine
        return ["java", *options, "-cp", broker_class_path(), main, *arguments]

    def start(self) -> None:
        """Start or restart the broker; return when it serves."""
        log = self._folder / "broker.log"
        begun_at = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(self._settings)), stdout=output, stderr=output
            )
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while not self._serves():
            text = log.read_bytes()[begun_at:].decode(errors="replace")
            assert self._process.poll() is None, text
            assert time.monotonic() < give_up_at, text
            time.sleep(0.1)

    def _serves(self) -> bool:
        host, port = self.address.split(":")
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """Kill the broker; its data stays on the disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None


def _free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        return first.getsockname()[1], second.getsockname()[1]


@contextmanager
def running_broker(folder: Path) -> Iterator[KafkaBroker]:
    """A broker for one test."""
    broker = KafkaBroker(folder)
    try:
        yield broker
    finally:
        broker.kill()
