"""Real adapters and a real client under two real admin servers on a real ZooKeeper: no data is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import zmq

from tandemfeed.client_lib import Subscription, connect
from tandemfeed.deploy.cluster.ports import free_endpoint
from tandemfeed.feedcore.merge.effects import Takeover
from tests.adapter.processes.adapter_processes import AdapterUnderTest, SourceByHand
from tests.adapter.processes.source_replay import SourceReplay
from tests.adapter.processes.test_adapter_processes import collect
from tests.admin_server.cluster_files import PATIENT, SOURCE_REPLAY, ca_of, secret_of
from tests.admin_server.records.zookeeper_pair import Pair, await_serving
from tests.admin_server.records.zookeeper_server import ZooKeeperServer, needs_zookeeper, running_zookeeper

pytestmark = [pytest.mark.processes, needs_zookeeper]
ROUNDS = 20


class Feed:
    """Two adapters, a source, and a client that has delivered every message so far."""

    def __init__(self, pair: Pair, source: SourceByHand, subscription: Subscription, folder: Path) -> None:
        self.pair, self._source, self._subscription, self._folder = pair, source, subscription, folder
        self.adapters = {name: self.start(name) for name in "ab"}
        self._seen: list[tuple[int, int]] = []

    def start(self, name: str) -> AdapterUnderTest:
        server = self.pair.secret_folder
        return AdapterUnderTest(server, name, self._folder, admin=self.pair.addresses)  # type: ignore[arg-type]

    def flow(self) -> list[object]:
        """Send messages, check that each is delivered once and in order, and return the events in between."""
        for _ in range(ROUNDS):
            self._source.send(1, 5)
            self._source.send(2, 5)
        delivered, events = collect(self._subscription, ROUNDS * 10)
        self._seen += delivered
        for stream, end in self._source.next_seq.items():
            assert [seq for each, seq in self._seen if each == stream] == list(range(1, end))
        return events

    def moves(self, name: str) -> list[str]:
        """The states that an adapter has entered, in order."""
        return [log["new"] for log in self.adapters[name].logs if log.get("event") == "state moved"]

    def story(self) -> str:
        """The log lines of the adapters, for assertion messages."""
        rows = [(log.get("time", ""), name, log) for name, each in self.adapters.items() for log in each.logs]
        return "\n".join(f"{name} {log}" for _, name, log in sorted(rows, key=lambda row: row[:2]))


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with running_zookeeper(tmp_path / "zookeeper") as server:
        yield server


@contextmanager
def running_feed(folder: Path, zookeeper: ZooKeeperServer) -> Iterator[Feed]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with ExitStack() as opened:
        opened.callback(context.term)
        replay_at = free_endpoint()
        pair = Pair(folder, zookeeper, PATIENT.replace(SOURCE_REPLAY, replay_at), opened)
        source = SourceByHand(context)
        opened.callback(source.close)
        opened.callback(SourceReplay(source, replay_at, pair.secret_folder.folder.path).close)
        secret = secret_of(pair.secret_folder, "reader")
        client = opened.enter_context(
            connect(admin=pair.addresses, ca=ca_of(pair.secret_folder), identity="reader", secret=secret)
        )
        subscription = opened.enter_context(client.subscribe(feed="equities", start="first"))
        feed = Feed(pair, source, subscription, folder)
        opened.callback(lambda: [adapter.stop() for adapter in feed.adapters.values()])
        feed.adapters["a"].await_state("active")
        feed.adapters["b"].await_state("synchronized")
        yield feed


def test_when_the_active_admin_server_dies_data_continues_in_its_epoch_until_the_standby_serves(
    tmp_path: Path, zookeeper: ZooKeeperServer
) -> None:
    with running_feed(tmp_path, zookeeper) as feed:
        feed.flow()
        feed.pair.first.kill()
        events = feed.flow()  # no server is active until the session of the dead one ends
        await_serving(feed.pair.second)
        events += feed.flow()
        assert not any(isinstance(event, Takeover) for event in events), events
        assert feed.moves("a")[-1] == "active", feed.story()
        feed.adapters["a"].kill()  # the standby now serves as the active server
        feed.adapters["b"].await_state("active")
        assert any(isinstance(event, Takeover) for event in feed.flow())


def test_when_zookeeper_stops_and_returns_data_continues_in_its_epoch(
    tmp_path: Path, zookeeper: ZooKeeperServer
) -> None:
    with running_feed(tmp_path, zookeeper) as feed:
        feed.flow()
        zookeeper.stop()
        for server in (feed.pair.first, feed.pair.second):
            await_serving(server, is_serving=False)
        events = feed.flow()
        zookeeper.start()
        events += feed.flow()
        assert not any(isinstance(event, Takeover) for event in events), events
        assert feed.moves("a")[-1] == "active", feed.story()
