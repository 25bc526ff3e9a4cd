"""The parts of a one-machine cluster (feeds, channels, source streams, adapters, clients) and its settings files.

Pure: addresses and ports are arguments. Adapters are named a, b, c, … in every feed; names of the second feed end in
-2, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tandemfeed.adapter.conversion.formats import document

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "ticks"
SESSION = 20261121
ADMIN, OPERATOR, SUBSCRIBER, CONTRIBUTOR = "admin", "operator", "demo-client", "contributor"
ADAPTER_NAMES = "abcdefgh"
NOWHERE = "127.0.0.1:1"  # a feed that has only contributions has no source gateway
TABLE = "ticks"  # the converter table, which adapters get from the admin server


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a cluster.

    Attributes:
        feeds: number of feeds, each with its own adapters, source and client.
        channels: per feed.
        streams_per_channel: source streams that one channel merges; with 1 a channel needs no decisions.
        backups: adapters per feed, without the active one.
        lease_ttl_ms: term of a lease.
        contribution_gateways, acknowledge_contributions: of each feed that takes contributions.
        contributed: how many of the feeds, the last ones, take contributions; their channels have one source stream.
    """

    feeds: int = 1
    channels: int = 1
    streams_per_channel: int = 2
    backups: int = 1
    lease_ttl_ms: int = 500
    contributed: int = 0
    contribution_gateways: int = 1
    acknowledge_contributions: str = "available"

    def __post_init__(self) -> None:
        for name, count, most in (
            ("feeds", self.feeds, 8),
            ("channels", self.channels, 8),
            ("streams per channel", self.streams_per_channel, 8),
            ("backups", self.backups, len(ADAPTER_NAMES) - 1),
            ("contribution gateways", self.contribution_gateways, 2),
        ):
            if not 1 <= count <= most:
                raise ValueError(f"the number of {name} is {count}; it must be 1 to {most}")
        if not 0 <= self.contributed <= self.feeds:
            raise ValueError(f"the number of contributed feeds is {self.contributed}; it must be 0 to {self.feeds}")

    @property
    def stream_count(self) -> int:
        """Source streams of a feed."""
        return self.channels * self.streams_per_channel

    @property
    def adapter_names(self) -> tuple[str, ...]:
        """The names of each feed's adapters."""
        return tuple(ADAPTER_NAMES[: self.backups + 1])

    def feed_layouts(self) -> tuple[FeedLayout, ...]:
        """The feeds, by number."""
        return tuple(FeedLayout(number + 1, self) for number in range(self.feeds))


@dataclass(frozen=True, slots=True)
class FeedLayout:
    """One feed and the names of its processes. A process, its host and its log have the same name."""

    feed_id: int
    shape: Shape

    @property
    def takes_contributions(self) -> bool:
        """Whether its source is a contribution gateway."""
        return self.feed_id > self.shape.feeds - self.shape.contributed

    @property
    def stream_count(self) -> int:
        """Its source streams."""
        return self.shape.channels if self.takes_contributions else self.shape.stream_count

    @property
    def suffix(self) -> str:
        """Distinguishes the names of this feed from those of the first feed."""
        return "" if self.feed_id == 1 else f"-{self.feed_id}"

    @property
    def name(self) -> str:
        """The feed's name."""
        return f"ticks{self.suffix}"

    @property
    def gateway(self) -> str:
        """The process that sends the source streams."""
        return f"source-gateway{self.suffix}"

    @property
    def gateways(self) -> tuple[str, ...]:
        """The processes of which one at a time sends the source streams."""
        count = self.shape.contribution_gateways if self.takes_contributions else 1
        return tuple(self.gateway + ("" if number == 0 else f"-{number + 1}") for number in range(count))

    @property
    def job(self) -> str:
        """The Spark driver."""
        return f"source-job{self.suffix}"

    @property
    def client(self) -> str:
        """The subscriber that records what it receives."""
        return f"client{self.suffix}"

    @property
    def forger(self) -> str:
        """The subscriber that sends forged packets; it runs on the client's host."""
        return f"forger{self.suffix}"

    @property
    def observer(self) -> str:
        """The reader that catches up and is paused; it runs on the client's host."""
        return f"observer{self.suffix}"

    @property
    def adapters(self) -> tuple[str, ...]:
        """The adapters' processes."""
        return tuple(self.adapter(name) for name in self.shape.adapter_names)

    def adapter(self, name: str) -> str:
        """The process of the adapter with this name; its identity has the same name."""
        return f"adapter-{name}{self.suffix}"

    def topic(self, channel_id: int) -> str:
        """The topic of a channel, which the policy grants."""
        return f"demo.{self.name}" if self.shape.channels == 1 else f"demo.{self.name}.{channel_id}"

    def streams_of(self, channel_id: int) -> list[int]:
        """The source streams of a channel."""
        count = 1 if self.takes_contributions else self.shape.streams_per_channel
        return list(range((channel_id - 1) * count + 1, channel_id * count + 1))


def host_names(shape: Shape) -> list[str]:
    """The names of all processes that need a host, the admin server first. The Spark job needs no network."""
    feeds = shape.feed_layouts()
    return [ADMIN, *(name for feed in feeds for name in (*feed.gateways, *feed.adapters, feed.client))]


def render_cluster(
    shape: Shape, addresses: Mapping[str, str], source_ports: Mapping[str, int], next_port: Callable[[], int]
) -> str:
    """The text of `cluster.toml`.

    Args:
        addresses: of each process.
        source_ports: the port on which each gateway serves gap fills.
        next_port: returns a new port for each multicast group.
    """
    lines: list[str] = []
    for feed in shape.feed_layouts():
        model, source_format, table = _documents(feed)
        endpoints = [f"{addresses[each]}:{source_ports[each]}" for each in feed.gateways]
        lines += [
            "[[feed]]",
            f"feed_id = {feed.feed_id}",
            f'name = "{feed.name}"',
            f"session = {SESSION}",
            f'message_model = "{model}"',
            f'source_replay_endpoint = "{endpoints[0] if not feed.takes_contributions else NOWHERE}"',
            f"lease_ttl_ms = {shape.lease_ttl_ms}",
            "sync_interval_ms = 100",
        ]
        if feed.takes_contributions:
            lines.append(f'acknowledge_contributions = "{shape.acknowledge_contributions}"')
        lines += _channels_and_streams(feed, next_port, endpoints)
        lines += ["[[feed.table]]", f'id = "{TABLE}"', f'file = "{table}"']
        lines += [f'source_format = "{source_format}"']
        for adapter_id, name in enumerate(shape.adapter_names, 1):
            groups = ", ".join(
                f'{channel} = "239.192.{20 + feed.feed_id}.{adapter_id * 10 + channel}:{next_port()}"'
                for channel in range(1, shape.channels + 1)
            )
            lines += ["[[feed.adapter]]", f"adapter_id = {adapter_id}", f'name = "{name}"']
            lines += [f'identity = "{feed.adapter(name)}"', f"groups = {{ {groups} }}"]
            lines += [f'unicast = "{addresses[feed.adapter(name)]}:0"']
    return "\n".join(lines) + "\n"


def _documents(feed: FeedLayout) -> tuple[Path, Path, Path]:
    """(message model, source format, converter table)"""
    if feed.takes_contributions:
        return document("tick.xml"), document("contribution.xml"), document("contribution-to-tick.xml")
    return EXAMPLES / "message-model.xml", EXAMPLES / "source-format.xml", EXAMPLES / "converter-table.xml"


def _channels_and_streams(feed: FeedLayout, next_port: Callable[[], int], endpoints: Sequence[str]) -> Iterator[str]:
    for channel in range(1, feed.shape.channels + 1):
        yield "[[feed.channel]]"
        yield f"channel_id = {channel}"
        yield f'topic = "{feed.topic(channel)}"'
        yield f"source_stream_ids = {feed.streams_of(channel)}"
        yield f'table = "{TABLE}"'
    for stream in range(1, feed.stream_count + 1):
        yield "[[feed.source_stream]]"
        yield f"source_stream_id = {stream}"
        yield f'name = "part {stream} of {feed.stream_count}"'
        yield f'group = "239.192.{10 + feed.feed_id}.{stream}:{next_port()}"'
        if feed.takes_contributions:
            addresses = ", ".join(f'"{each}"' for each in endpoints)
            yield f"contributions = {addresses if len(endpoints) == 1 else f'[{addresses}]'}"


def render_policy(shape: Shape) -> str:
    """The text of `policy.toml`."""
    lines = []
    for feed in shape.feed_layouts():
        for identity in feed.adapters:
            lines += [f"[identity.{identity}]", 'roles = ["adapter"]']
    lines += ["[identity.source]", 'roles = ["source"]']
    lines += [f"[identity.{SUBSCRIBER}]", 'roles = ["client"]', 'subscribe = ["demo.#"]']
    if shape.contributed:
        lines += [f"[identity.{CONTRIBUTOR}]", 'contribute = ["demo.#"]']
    lines += [f"[identity.{OPERATOR}]", 'roles = ["admin"]']
    return "\n".join(lines) + "\n"
