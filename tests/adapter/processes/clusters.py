"""Clusters of any shape for tests: settings made from a description, an admin server process that can be killed and
restarted at the same address, the adapters of several feeds, and methods that wait for events."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import zmq

from tandemfeed.client_lib import Batch, Subscription, connect
from tandemfeed.client_lib.items import Filled
from tandemfeed.client_lib.stream.sockets.transport_choice import Transport
from tandemfeed.deploy.cluster.ports import free_endpoint
from tandemfeed.v1 import admin_pb2
from tests.adapter.processes.adapter_processes import SESSION, WAIT_S, AdapterUnderTest, SourceByHand
from tests.adapter.processes.source_replay import SourceReplay
from tests.admin_server.cluster_files import channel_as, secret_of, write_settings
from tests.admin_server.subscriber_by_hand import grants

POLL_S = 20.0


@dataclass(frozen=True)
class Feed:
    """A feed of a test's cluster.

    Attributes:
        channels: channel_id -> the source streams that it owns.
        also_reads: channel_id -> source streams that it reads and others own.
        tables: channel_id -> the converter table that the admin server hands to the adapters; the source format is next
            to it.
        message_model: the file of the message model.
        adapters: the names of the adapters, one letter each; no two feeds may share a letter.
        options: more lines for the feed's section.
        source_replay: the address of the source's replay service.
        unicast_host: the address where the servers listen, and the adapters for unicast clients; empty: not for these.
    """

    adapters: str = "ab"
    channels: Mapping[int, tuple[int, ...]] = field(default_factory=lambda: {1: (1, 2)})
    also_reads: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    tables: Mapping[int, Path] = field(default_factory=dict)
    message_model: str | Path = "message-model.xml"
    feed_id: int = 1
    name: str = "equities"
    options: str = "lease_ttl_ms = 1000\nsync_interval_ms = 200"
    source_replay: str = field(default_factory=free_endpoint)
    unicast_host: str = ""

    def topic(self, channel_id: int) -> str:
        """The topic of a channel."""
        return f"equities.{self.name}-{channel_id}"

    def source_group(self, stream: int) -> str:
        """The multicast group of a source stream."""
        return f"239.192.{10 + self.feed_id}.{stream}:{5000 + 16 * self.feed_id + stream}"

    def output_group(self, adapter: str, channel_id: int) -> str:
        """The multicast group of an adapter and channel."""
        place = 16 * self.adapters.index(adapter) + channel_id
        return f"239.192.{20 + self.feed_id}.{place}:{5000 + 256 * self.feed_id + place}"

    def adapter_id(self, adapter: str) -> int:
        """The id of an adapter, by the position of its name."""
        return self.adapters.index(adapter) + 1

    @property
    def settings(self) -> str:
        """The text of the feed in the cluster file."""
        streams = sorted(stream for each in self.channels.values() for stream in each)
        lines = [
            f'[[feed]]\nfeed_id = {self.feed_id}\nname = "{self.name}"\nsession = {SESSION}',
            f'message_model = "{self.message_model}"\nsource_replay_endpoint = "{self.source_replay}"',
            f'source_lines = "open"\n{self.options}',
        ]
        for channel_id, fed_by in self.channels.items():
            lines.append(f'[[feed.channel]]\nchannel_id = {channel_id}\ntopic = "{self.topic(channel_id)}"')
            lines.append(
                f"source_stream_ids = {list(fed_by)}\nalso_reads = {list(self.also_reads.get(channel_id, ()))}"
            )
            if channel_id in self.tables:
                lines.append(f'table = "{self.tables[channel_id].stem}"')
        for stream in streams:
            group = f'group = "{self.source_group(stream)}"'
            lines.append(f'[[feed.source_stream]]\nsource_stream_id = {stream}\nname = "s{stream}"\n{group}')
        for adapter in self.adapters:
            groups = ", ".join(f'{each} = "{self.output_group(adapter, each)}"' for each in self.channels)
            lines.append(
                f'[[feed.adapter]]\nadapter_id = {self.adapter_id(adapter)}\nname = "{adapter}"\n'
                f'identity = "adapter-{adapter}"\ngroups = {{ {groups} }}'
            )
            if self.unicast_host:
                lines.append(f'unicast = "{self.unicast_host}:0"')
        for table in sorted(set(self.tables.values())):
            documents = f'file = "{table}"\nsource_format = "{table.parent / "source-format.xml"}"'
            lines.append(f'[[feed.table]]\nid = "{table.stem}"\n{documents}')
        return "\n".join(lines) + "\n"


class ServerProcess:
    """A `tandemfeed admin-server` process with a fixed address."""

    def __init__(self, folder: Path, feeds: tuple[Feed, ...]) -> None:
        policy = '[identity.source]\nroles = ["source"]\n'
        policy += '[identity.operator]\nroles = ["admin"]\n'
        policy += '[identity.reader]\nroles = ["client"]\nsubscribe = ["equities.#"]\n'
        policy += '[identity.stranger]\nroles = ["client"]\nsubscribe = ["futures.#"]\n'
        policy += "".join(
            f'[identity.adapter-{name}]\nroles = ["adapter"]\n' for feed in feeds for name in feed.adapters
        )
        files = write_settings(folder, "".join(feed.settings for feed in feeds), policy)
        self._command = [sys.executable, "-m", "tandemfeed.deploy.command", "admin-server"]
        self._command += ["--cluster", str(files[0]), "--policy", str(files[1]), "--state", str(folder / "state")]
        self.folder = SimpleNamespace(path=folder / "state")
        self.endpoint = free_endpoint().replace("127.0.0.1", feeds[0].unicast_host or "127.0.0.1")
        self.errors = folder / "admin-server.log"
        self.start()

    def start(self) -> None:
        """Start or restart the server."""
        command = [*self._command, "--listen", self.endpoint]
        with self.errors.open("a") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), self.errors.read_text()

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        self.process.kill()
        self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Cluster:
    """A server, its feeds' adapters, and a source for each feed. Made by `running_cluster`."""

    def __init__(self, folder: Path, feeds: tuple[Feed, ...], context: zmq.Context[Any]) -> None:
        self.folder, self.feeds = folder, feeds
        self.server = ServerProcess(folder, feeds)
        self.adapters: dict[str, AdapterUnderTest] = {}
        self.sources = {feed.name: self._source(feed, context) for feed in feeds}
        self._replays = [
            SourceReplay(self.sources[feed.name], feed.source_replay, self.server.folder.path) for feed in feeds
        ]

    @property
    def source(self) -> SourceByHand:
        """The source of the only feed."""
        (source,) = self.sources.values()
        return source

    def start_adapters(self, names: str) -> None:
        """Start adapters together, the first one slightly earlier, so that it becomes active."""
        feed_of = {name: feed for feed in self.feeds for name in feed.adapters}

        def start(name: str) -> None:
            feed = feed_of[name]
            extra = ["--rpc-listen", f"{feed.unicast_host}:0"] if feed.unicast_host else []
            self.adapters[name] = AdapterUnderTest(
                self.server, name, self.folder, feed=feed.name, extra=extra, has_own_documents=not feed.tables
            )

        with ThreadPoolExecutor() as pool:
            list(pool.map(start, names))

    def kill(self, name: str) -> None:
        """Kill an adapter with SIGKILL."""
        self.adapters[name].kill()

    def await_active(self, feed: str, other_than: int = 0, synchronized_count: int = 0) -> admin_pb2.Grant:
        """Wait until the server reports a different active and at least this number of synchronized backups."""

        def is_there(grant: admin_pb2.Grant) -> bool:
            backups = [each for each in grant.adapters if each.replica_state == "synchronized"]
            return grant.active.adapter_id not in (0, other_than) and len(backups) >= synchronized_count

        return self.await_update(feed, is_there)

    def await_update(self, feed: str, is_there: Callable[[admin_pb2.Grant], bool]) -> admin_pb2.Grant:
        """Wait until the server sends subscribers a grant that satisfies the condition."""
        last: admin_pb2.Grant | None = None
        with (
            channel_as(self.server, "reader") as channel,
            closing(grants(channel, feed=feed, timeout_s=WAIT_S)) as heard,
        ):
            for last in heard:
                if is_there(last):
                    return last
        raise AssertionError(f"the last grant: {last}")

    @contextmanager
    def subscription(
        self, feed: str = "equities", identity: str = "reader", transport: Transport = "multicast"
    ) -> Iterator[Subscription]:
        """The subscription of a real client, from the first message on."""
        ca = (self.server.folder.path / "ca.pem").read_bytes()
        secret = secret_of(self.server, identity)
        with (
            connect(admin=self.server.endpoint, ca=ca, identity=identity, secret=secret) as client,
            client.subscribe(feed=feed, start="first", transport=transport) as subscription,
        ):
            yield subscription

    def story(self) -> str:
        """The log lines of all adapters in order of time, for assertion messages."""
        lines = [
            (str(log.get("time")), name, {key: log[key] for key in log if key not in ("time", "level", "component")})
            for name, adapter in self.adapters.items()
            for log in list(adapter.logs)
        ]
        return "\n".join(f"{at} {name} {log}" for at, name, log in sorted(lines, key=lambda line: line[:2]))

    def close(self) -> None:
        """Stop everything."""
        for adapter in self.adapters.values():
            if adapter.process.poll() is None:
                adapter.kill()
        self.server.kill()
        for replay in self._replays:
            replay.close()
        for source in self.sources.values():
            source.close()

    @staticmethod
    def _source(feed: Feed, context: zmq.Context[Any]) -> SourceByHand:
        streams = [stream for each in feed.channels.values() for stream in each]
        groups = {stream: feed.source_group(stream).encode() for stream in streams}
        return SourceByHand(context, feed_id=feed.feed_id, groups=groups)


@contextmanager
def running_cluster(folder: Path, *feeds: Feed) -> Iterator[Cluster]:
    """A running cluster without adapters; the test starts them."""
    with ExitStack() as stack:
        context: zmq.Context[Any] = zmq.Context()
        stack.callback(context.destroy, 0)
        cluster = Cluster(folder, feeds, context)
        stack.callback(cluster.close)
        yield cluster


class Reader:
    """Collects what a subscription delivers."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self.delivered: list[tuple[int, int]] = []  # (source_stream_id, source_seq)
        self.adapter_ids: set[int] = set()  # the senders of delivered copies, since last cleared
        self.events: list[object] = []

    def take(self, count: int) -> None:
        """Take `count` more messages."""
        wanted = len(self.delivered) + count
        while len(self.delivered) < wanted:
            items = self._subscription.poll(POLL_S)
            assert items, f"{wanted - len(self.delivered)} messages are missing: {self.events[-20:]}"
            self._note(items)
        assert len(self.delivered) == wanted, "received more messages than were sent"

    def take_until(self, kind: type) -> None:
        """Take items until there is an event of this kind."""
        end_s = time.monotonic() + POLL_S
        while not any(isinstance(event, kind) for event in self.events):
            assert time.monotonic() < end_s, self.events[-20:]
            self._note(self._subscription.poll(POLL_S))

    def assert_everything_once_and_in_order(self, next_seqs: Mapping[int, int]) -> None:
        """Check that every sent message of each source stream was delivered once and in order."""
        for stream, end in next_seqs.items():
            assert [seq for which, seq in self.delivered if which == stream] == list(range(1, end)), stream

    def _note(self, items: list[Any]) -> None:
        for item in items:
            batch = item.batch if isinstance(item, Filled) else item
            if not isinstance(batch, Batch):
                self.events.append(item)
                continue
            self.adapter_ids.add(batch.adapter_id)
            for run in batch.sources():
                seqs = range(run.first_source_seq, run.end_source_seq)
                self.delivered += [(run.source_stream_id, seq) for seq in seqs]
