"""Processes are killed at random moments while a client contributes: each message reaches subscribers once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemfeed.client_lib import Batch, Filled, connect
from tandemfeed.deploy.cluster.cluster import Cluster
from tandemfeed.deploy.cluster.topology import CONTRIBUTOR, SUBSCRIBER, Shape
from tests.kill_rounds import kill_rounds

PATIENCE_S = 240.0
MESSAGES_PER_ROUND = 150
SEED = 20261123


class Reader:
    """A subscriber in a thread of its own. Attributes: sequences: of the trades that were delivered."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        state = cluster.folder / "admin"
        secret = (state / "secrets" / f"{SUBSCRIBER}.secret").read_text().strip()
        self._client = connect(admin=cluster.admin, ca=state / "ca.pem", identity=SUBSCRIBER, secret=secret)
        self._subscription = self._client.subscribe(topic, start="first")
        self.sequences: list[int] = []
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def await_count(self, count: int, check: Callable[[], None]) -> None:
        """Wait until that many messages were delivered; `check` raises if they never will be."""
        give_up_at_s = time.monotonic() + PATIENCE_S
        with self._changed:
            while len(self.sequences) < count:
                self._changed.wait(1.0)
                check()
                assert time.monotonic() < give_up_at_s, f"{len(self.sequences)} of {count} messages were delivered"

    def close(self) -> None:
        self._subscription.stop()
        self._thread.join()
        self._client.close()

    def _read(self) -> None:
        while not self._subscription.is_closed:
            items = [each.batch if isinstance(each, Filled) else each for each in self._subscription.poll(0.5)]
            with self._changed:
                for batch in items:
                    if isinstance(batch, Batch):
                        self.sequences += [message.sequence for message in batch.messages()]
                self._changed.notify_all()


class Contributor:
    """`tandemfeed contribute` with a file of messages; after a kill it resumes. Attributes: acknowledged: lines."""

    def __init__(self, cluster: Cluster, topic: str, file: Path) -> None:
        state = cluster.folder / "admin"
        self._command = [sys.executable, "-m", "tandemfeed.deploy.command", "contribute", topic, "--resume"]
        self._command += ["--admin", cluster.admin, "--ca", str(state / "ca.pem"), "--timeout", str(PATIENCE_S)]
        self._command += ["--identity", CONTRIBUTOR, "--secret-file", str(state / "secrets" / f"{CONTRIBUTOR}.secret")]
        self._file, self.acknowledged = file, list[int]()
        self.start()

    def start(self) -> None:
        """Start, or start again."""
        with self._file.open() as lines:
            self.process = subprocess.Popen(self._command, stdin=lines, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read, args=(self.process.stdout,))
        self._thread.start()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()
        self._thread.join()

    def check(self) -> None:
        """Fail if the process ended with an error."""
        assert self.process.poll() in (None, 0), "the contributor failed"

    def _read(self, output: Any) -> None:
        for line in output:
            self.acknowledged.append(json.loads(line)["line"])


@pytest.mark.processes
@pytest.mark.long
def test_each_acknowledged_message_is_delivered_once_whatever_is_killed(tmp_path: Path) -> None:
    rounds, chosen = kill_rounds(6), random.Random(SEED)
    total = MESSAGES_PER_ROUND * (rounds + 1)
    file = tmp_path / "trades.jsonl"
    file.write_text(
        "".join(
            f'{{"message": "Trade", "symbol": "ACME", "sequence": {number}, "price": 1.5, "kind": "Regular"}}\n'
            for number in range(1, total + 1)
        )
    )
    with Cluster(tmp_path, Shape(backups=1, contributed=1)) as cluster:
        (feed,) = cluster.feeds
        cluster.start_admin()
        cluster.start_contribution_gateway(feed)
        for name in "ab":
            cluster.start_adapter(feed, name)
        cluster.watches[feed.feed_id].await_healthy(PATIENCE_S)
        reader = Reader(cluster, feed.topic(1))
        contributor = Contributor(cluster, feed.topic(1), file)
        try:
            victims = ["adapter", "contributor", "gateway"] * (rounds // 3 + 1)
            for at in range(rounds):
                reader.await_count(MESSAGES_PER_ROUND * at + chosen.randrange(MESSAGES_PER_ROUND), contributor.check)
                kill(victims[at], cluster, contributor)
            reader.await_count(total, contributor.check)
            assert contributor.process.wait(PATIENCE_S) == 0
        finally:
            contributor.kill()
            reader.close()
    assert sorted(reader.sequences) == list(range(1, total + 1))
    assert sorted(contributor.acknowledged) == sorted(set(contributor.acknowledged))


def kill(victim: str, cluster: Cluster, contributor: Contributor) -> None:
    """SIGKILL a process, and start it again."""
    (feed,) = cluster.feeds
    if victim == "contributor":
        contributor.kill()
        contributor.start()
    elif victim == "gateway":
        cluster.kill(feed.gateway)
        cluster.start_contribution_gateway(feed)
    else:
        watch = cluster.watches[feed.feed_id]
        watch.await_healthy(PATIENCE_S)  # the other one can take over
        active = watch.active
        cluster.kill(feed.adapter(active))
        cluster.start_adapter(feed, active)
