"""A topic of a real Kafka broker as a feed source, through Spark's connector."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.spark_feed.journaling.committed_records import last_commit
from tests.spark_feed.kafka.kafka_broker import KafkaBroker, running_broker
from tests.spark_feed.kafka.kafka_jars import needs_kafka
from tests.spark_feed.source_material import SOURCE_FORMAT, assert_gapless, frames_in, packets_of

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(900), needs_kafka]
PATIENCE_S = 300.0
CLUSTER = (
    '[[feed]]\nfeed_id = 1\nname = "equities"\nsession = 20261121\n'
    "[[feed.source_stream]]\nsource_stream_id = 1\n[[feed.source_stream]]\nsource_stream_id = 2\n"
)
PROGRAM = [sys.executable, "-m", "tests.spark_feed.kafka.kafka_feed"]


def send(broker: KafkaBroker, first: int, end: int) -> None:
    subprocess.run([*PROGRAM, "send", broker.address, str(first), str(end)], check=True, timeout=PATIENCE_S)


@contextmanager
def feeding(broker: KafkaBroker, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A driver that appends what the topic has; at the end, it is killed with its JVM."""
    driver = subprocess.Popen([*PROGRAM, "feed", broker.address, str(folder)], process_group=0)
    try:
        yield driver
    finally:
        subprocess.run(["kill", "-KILL", "--", f"-{driver.pid}"], check=False)
        driver.wait(PATIENCE_S)


def wait_until_committed(journal: Path, count: int, driver: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while (commit := last_commit(journal) if journal.is_dir() else None) is None or commit.next_record_index < count:
        assert driver.poll() is None, "the driver ended"
        assert time.monotonic() < end_s, commit
        time.sleep(0.05)


def sizes_by_stream(journal: Path) -> dict[int, list[int]]:
    message = load_source_format(SOURCE_FORMAT).messages["trade"]
    packets = packets_of(journal)
    assert_gapless(packets)
    found: dict[int, list[int]] = {1: [], 2: []}
    for packet in packets:
        rows = [np.frombuffer(frame, message.dtype)[0] for frame in frames_in(packet)]
        found[packet.source_stream_id].extend(int(row["size"]) for row in rows)
    return found


def test_each_message_of_a_topic_is_sent_once_and_in_order_over_kills_of_driver_and_broker(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    journal = tmp_path / "journal"
    with running_broker(tmp_path / "broker") as broker:
        send(broker, 0, 1_000)
        with feeding(broker, tmp_path) as driver:
            wait_until_committed(journal, 300, driver)
        with feeding(broker, tmp_path) as driver:
            wait_until_committed(journal, 1_000, driver)
            broker.kill()
            broker.start()
            send(broker, 1_000, 1_200)
            wait_until_committed(journal, 1_200, driver)
    sizes = sizes_by_stream(journal)
    assert all(sizes.values())
    assert sorted(size for stream in sizes.values() for size in stream) == list(range(1_200))
    assert all(stream == sorted(stream) for stream in sizes.values())
