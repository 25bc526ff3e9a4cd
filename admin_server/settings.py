"""The cluster file: feeds, channels and adapters. (`admin_server.policy.document` has the other file, the policy.)

The models here are the file's tables; `transport.settings_file` turns every mistake into an error with file, line and
key before the server serves anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from tandemfeed.admin_server.document_files import (
    ConverterTableFile,
    MessageModelFile,
    SourceFormatFile,
    read_document_file,
)
from tandemfeed.feedcore.documents.message_model import load_message_model
from tandemfeed.feedcore.documents.symbol_words import symbol_columns
from tandemfeed.feedcore.documents.versions import VersionedDocument
from tandemfeed.feedcore.wire.output_packet import DATAGRAM_SIZE_MAX
from tandemfeed.transport.multicast.groups import BadGroup, parse_group
from tandemfeed.transport.settings_file import InvalidSetting, Key, SettingsFile, shown
from tandemfeed.transport.unicast.wire import BadUnicastAddress, parse_unicast_address

MS = 1_000_000
CONTRIBUTION_GATEWAYS_MAX = 2
DATAGRAM_SIZE_MIN = 576  # every IPv4 host accepts this size, and a heartbeat's lineage and a signature fit

NAME_FORM = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z"  # identities become file names, feeds and adapters option values
NAME_RULE = "a name of at most 64 letters, digits, '.', '_' and '-' that begins with a letter or digit"
Name = Annotated[str, Meta(pattern=NAME_FORM, description=NAME_RULE)]
Endpoint = Annotated[str, Meta(pattern=r"^\S+:\d{1,5}\Z", description="an address HOST:PORT")]
Topic = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\Z",
        description="a topic: words of letters, digits, '_' and '-', separated by '.'",
    ),
]
Id = Annotated[int, Meta(ge=1, le=65_535)]
Groups = Annotated[Mapping[int, str], Meta(description='a table of channel_id = "GROUP:PORT"')]


ModelPath = Annotated[MessageModelFile, Meta(description="the path of an SBE message schema (XML)")]
FormatPath = Annotated[SourceFormatFile, Meta(description="the path of a source format (XML)")]
TablePath = Annotated[ConverterTableFile, Meta(description="the path of a converter table (XML)")]


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of a settings file."""


class ChannelSettings(_Table, frozen=True, kw_only=True):
    """An output channel.

    Attributes:
        topic: the name that the policy grants.
        source_stream_ids: the source streams that it owns: each has one owner, which its contributions go to.
        also_reads: source streams that it reads as well, and other channels own.
        table: the id of the feed's converter table for this channel; None: the adapters bring their own.
        symbol_field: the field of the messages that has the symbol; None: the feed's, or only the whole channel can be
            granted.
    """

    channel_id: Id
    topic: Topic
    source_stream_ids: tuple[int, ...] = ()
    also_reads: tuple[int, ...] = ()
    table: Name | None = None
    symbol_field: str | None = None

    @property
    def read_stream_ids(self) -> tuple[int, ...]:
        """Every source stream that it reads."""
        return self.source_stream_ids + self.also_reads


class TableSettings(_Table, frozen=True, kw_only=True):
    """A converter table and the source format that it is made for, which the server hands to the feed's adapters."""

    id: Name
    file: TablePath
    format_file: FormatPath = field(name="source_format")

    def __post_init__(self) -> None:
        wanted, found = self.file.source_format_name, self.format_file.title
        if wanted != found:
            reason = f'is the source format "{found}", but the table is made for "{wanted}"'
            raise InvalidSetting(reason, "source_format")

    @property
    def document(self) -> VersionedDocument:
        """The converter table, by the id that channels name."""
        found = self.file.document
        return VersionedDocument(found.kind, self.id, found.content, found.files)

    @property
    def source_format(self) -> VersionedDocument:
        """The source format that it is made for."""
        return self.format_file.document


class SourceStreamSettings(_Table, frozen=True, kw_only=True):
    """A source stream and the group it is multicast on.

    Attributes:
        contributions: its messages come from clients: where its contribution gateway serves them and fills gaps; of two
            gateways, each one. None: they come from the feed's source.
    """

    source_stream_id: Id
    name: str
    group: str
    contributions: Endpoint | tuple[Endpoint, ...] | None = None

    @property
    def contribution_endpoints(self) -> tuple[str, ...]:
        """Where its contribution gateways serve; empty: it has none."""
        if self.contributions is None:
            return ()
        return (self.contributions,) if isinstance(self.contributions, str) else self.contributions

    def __post_init__(self) -> None:
        _require_group(self.group, "group")
        if isinstance(self.contributions, tuple):
            found = len(self.contributions)
            if not 1 <= found <= CONTRIBUTION_GATEWAYS_MAX or len(set(self.contributions)) < found:
                reason = f"is {shown(self.contributions)}; expected an address, or a list of two different ones"
                raise InvalidSetting(reason, "contributions")


class AdapterSettings(_Table, frozen=True, kw_only=True):
    """An adapter: the identity that may register as it, and its group per channel.

    Attributes:
        unicast: where it serves clients that multicast does not reach; port 0: any. None: it does not.
    """

    adapter_id: Id
    name: Name
    identity: Name
    groups: Groups
    unicast: str | None = None

    def __post_init__(self) -> None:
        if self.unicast is not None:
            try:
                parse_unicast_address(self.unicast)
            except BadUnicastAddress as bad:
                raise InvalidSetting(f"is invalid: {bad}", "unicast") from bad
        for channel_id, group in self.groups.items():
            _require_group(group, "groups", str(channel_id))


class FeedSettings(_Table, frozen=True, kw_only=True):
    """A feed, the unit of redundancy.

    Attributes:
        session: the first session, a trading day YYYYMMDD.
        wait_for_better_ms: how long a poor candidate waits while an adapter is missing.
        wait_at_first_start_ms: the same when the feed has never had an active.
        publish: "async": transmit immediately; "acked": transmit only what a backup has acknowledged.
        on_silence: with no active and no admin server, a backup forwards provisionally ("proceed") or waits ("hold").
        fail_policy: which backup asks to be failed when one of them is repeatedly out of sync.
        fail_threshold: the health score below which a backup fails; None unless fail_policy is "below_threshold".
        source_identity: the only identity that may be the feed's source; None: any with the role "source".
        acknowledge_contributions: of two contribution gateways, the holder acknowledges what both have ("both"), or
            goes on alone while the other one is away ("available").
        source_lines: "sealed": the feed's source seals its packets; "open": lines that come directly from an exchange.
        session_state: the conversion state at the start of a session: empty ("reset"), or as the previous session left
            it ("carry").
        session_grace_ms: how long a session whose end was not received continues after a later session appeared.
        idle_without_subscribers: backups send only heartbeats on a channel to which no client has subscribed.
        delayed_from: the real-time feed that this delayed feed repeats; None: this is a real-time feed.
        delay_s: how much later a delayed feed sends what the real-time feed has sent.
        symbol_field: that of all channels that have none of their own.
    """

    feed_id: Id
    name: Name
    session: Annotated[int, Meta(ge=19_700_101, le=99_991_231)]
    model_file: ModelPath = field(name="message_model")
    source_replay_endpoint: Endpoint
    lease_ttl_ms: Annotated[int, Meta(ge=50, le=60_000)] = 300
    sync_interval_ms: Annotated[int, Meta(ge=10, le=10_000)] = 100
    datagram_size_max: Annotated[int, Meta(ge=DATAGRAM_SIZE_MIN, le=DATAGRAM_SIZE_MAX)] = 1_472
    wait_for_better_ms: Annotated[int, Meta(ge=0, le=60_000)] = 2_000
    wait_at_first_start_ms: Annotated[int, Meta(ge=0, le=60_000)] = 500
    publish: Literal["async", "acked"] = "async"
    on_silence: Literal["proceed", "hold"] = "proceed"
    fail_policy: Literal["lowest", "lower_than_any", "lower_than_one", "below_threshold"] = "lowest"
    fail_threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    source_identity: Name | None = None
    acknowledge_contributions: Literal["both", "available"] = "available"
    source_lines: Literal["sealed", "open"] = "sealed"
    session_state: Literal["reset", "carry"] = "reset"
    session_grace_ms: Annotated[int, Meta(ge=100, le=3_600_000)] = 5_000
    idle_without_subscribers: bool = False
    delayed_from: Name | None = None
    delay_s: Annotated[float, Meta(ge=0.001, le=604_800)] | None = None
    symbol_field: str | None = None
    channels: Annotated[tuple[ChannelSettings, ...], Meta(min_length=1)] = field(name="channel")
    source_streams: Annotated[tuple[SourceStreamSettings, ...], Meta(min_length=1)] = field(name="source_stream")
    adapters: Annotated[tuple[AdapterSettings, ...], Meta(min_length=1)] = field(name="adapter")
    tables: tuple[TableSettings, ...] = field(name="table", default=())

    @property
    def message_model(self) -> VersionedDocument:
        """The schema of the feed's output."""
        return self.model_file.document

    def owner_of(self, source_stream_id: int) -> ChannelSettings:
        """The channel that owns a source stream."""
        return next(channel for channel in self.channels if source_stream_id in channel.source_stream_ids)

    def table_of(self, channel: ChannelSettings) -> TableSettings | None:
        """The converter table that the definition names for a channel."""
        return next((table for table in self.tables if table.id == channel.table), None)

    @property
    def lease_ttl_ns(self) -> int:
        """The term of a lease."""
        return self.lease_ttl_ms * MS

    @property
    def sync_interval_ns(self) -> int:
        """How often the active sends its state to the backups."""
        return self.sync_interval_ms * MS

    @property
    def contribution_endpoints(self) -> tuple[str, ...]:
        """Where the feed's contribution gateways serve; empty: it has none."""
        return next((each.contribution_endpoints for each in self.source_streams if each.contribution_endpoints), ())

    @property
    def contributed_channels(self) -> tuple[ChannelSettings, ...]:
        """The channels that own source streams whose messages come from clients."""
        streams = {each.source_stream_id for each in self.source_streams if each.contributions is not None}
        return tuple(each for each in self.channels if not streams.isdisjoint(each.source_stream_ids))

    def has_source(self, identity: str, roles: Collection[str]) -> bool:
        """Whether an identity with these roles may be the feed's source."""
        return "source" in roles and self.source_identity in (None, identity)

    @property
    def delay_ns(self) -> int:
        """How much later a delayed feed sends; 0: this is a real-time feed."""
        return round((self.delay_s or 0) * 1_000_000_000)

    def symbol_field_of(self, channel: ChannelSettings) -> str:
        """The field that has a channel's symbols; empty: only the whole channel can be granted."""
        return channel.symbol_field or self.symbol_field or ""

    @property
    def source_is_sealed(self) -> bool:
        """Whether the feed's source seals its packets."""
        return self.source_lines == "sealed"

    def __post_init__(self) -> None:
        _require_distinct("channel", self.channels, "channel_id", "topic")
        _require_distinct("source_stream", self.source_streams, "source_stream_id")
        _require_distinct("adapter", self.adapters, "adapter_id", "name")
        _require_distinct("table", self.tables, "id")
        self._check_streams()
        self._check_groups()
        self._check_tables()
        self._check_contributions()
        if self.fail_policy == "below_threshold" and self.fail_threshold is None:
            reason = 'is missing; fail_policy = "below_threshold" needs a number from 0 to 1'
            raise InvalidSetting(reason, "fail_threshold")
        if self.fail_policy != "below_threshold" and self.fail_threshold is not None:
            reason = f'is set, but fail_policy is "{self.fail_policy}"; remove it, or set it to "below_threshold"'
            raise InvalidSetting(reason, "fail_threshold")

        if self.idle_without_subscribers and self.publish == "acked":
            reason = (
                'is true, but publish is "acked": the packets of backups are the acknowledgements; remove one of them'
            )
            raise InvalidSetting(reason, "idle_without_subscribers")
        for given, missing in (("delayed_from", "delay_s"), ("delay_s", "delayed_from")):
            if getattr(self, given) is not None and getattr(self, missing) is None:
                raise InvalidSetting(f"is missing; a feed with {given} needs it", missing)

    def _check_streams(self) -> None:
        """Each source stream has one owner, and a channel reads it once."""
        known = sorted(stream.source_stream_id for stream in self.source_streams)
        owned = sorted(stream for channel in self.channels for stream in channel.source_stream_ids)
        if known != owned:
            reason = (
                f"must have each source stream in source_stream_ids of exactly one channel; found are {owned}, defined "
                f"are {known}; a further channel that reads a stream names it in also_reads"
            )
            raise InvalidSetting(reason, "channel")
        for place, channel in enumerate(self.channels):
            if not channel.read_stream_ids:
                reason = "is missing or empty; a channel needs source streams, here or in also_reads"
                raise InvalidSetting(reason, "channel", place, "source_stream_ids")
            for number, stream in enumerate(channel.also_reads):
                if stream not in known:
                    reason = f"has {stream}, which is not a source_stream_id of the feed, which has {known}"
                elif stream in channel.source_stream_ids + channel.also_reads[:number]:
                    reason = f"has {stream}, which the channel reads already; remove it"
                else:
                    continue
                raise InvalidSetting(reason, "channel", place, "also_reads")

    def _check_groups(self) -> None:
        channel_ids = sorted(channel.channel_id for channel in self.channels)
        for place, adapter in enumerate(self.adapters):
            if (found := sorted(adapter.groups)) != channel_ids:
                reason = f"must have one group for each channel; it has groups for {found}, channels are {channel_ids}"
                raise InvalidSetting(reason, "adapter", place, "groups")

    def _check_tables(self) -> None:
        known = sorted(table.id for table in self.tables)
        for place, channel in enumerate(self.channels):
            if channel.table is not None and channel.table not in known:
                names = ", ".join(known) or "none"
                reason = f'is "{channel.table}", which is not the id of a [[feed.table]]; the feed has {names}'
                raise InvalidSetting(reason, "channel", place, "table")
        for place, table in enumerate(self.tables):
            if all(channel.table != table.id for channel in self.channels):
                raise InvalidSetting(f'is "{table.id}", which no channel names', "table", place, "id")
        for place, channel in enumerate(self.channels):
            for stream in channel.also_reads:
                self._check_format(place, stream)

    def _check_format(self, place: int, stream: int) -> None:
        """The tables that convert a source stream must be made for the same source format."""
        owner = self.owner_of(stream)
        own, other = self.table_of(self.channels[place]), self.table_of(owner)
        if own is not None and other is not None and own.source_format.version != other.source_format.version:
            reason = (
                f'is "{own.id}", which has another source format than "{other.id}", the table of channel '
                f"{owner.channel_id}; both channels read source stream {stream}"
            )
            raise InvalidSetting(reason, "channel", place, "table")

    def _check_contributions(self) -> None:
        """A topic names where a contribution goes, and its table what it must be."""
        for place, stream in enumerate(self.source_streams):
            if stream.contributions is None:
                continue
            keys = "source_stream", place, "contributions"
            if self.delayed_from is not None:
                raise InvalidSetting("is set, but a delayed feed repeats another one; remove it", *keys)
            if stream.contribution_endpoints != self.contribution_endpoints:
                expected = shown(list(self.contribution_endpoints))
                reason = f"is {shown(list(stream.contribution_endpoints))}, and {expected} in another stream"
                raise InvalidSetting(f"{reason}; the same gateways serve all streams of a feed", *keys)
        for channel in self.contributed_channels:
            place = self.channels.index(channel)
            if len(channel.source_stream_ids) != 1:
                found = list(channel.source_stream_ids)
                reason = f"is {found}; a channel with a contributed source stream has no other one"
                raise InvalidSetting(reason, "channel", place, "source_stream_ids")
            if channel.table is None:
                reason = "is missing; a channel with a contributed source stream needs one: clients must fit its format"
                raise InvalidSetting(reason, "channel", place, "table")

    def all_groups(self) -> Iterator[tuple[str, tuple[Key, ...]]]:
        """Every group with its key path in the feed's table."""
        for place, stream in enumerate(self.source_streams):
            yield stream.group, ("source_stream", place, "group")
        for place, adapter in enumerate(self.adapters):
            for channel_id, group in adapter.groups.items():
                yield group, ("adapter", place, "groups", str(channel_id))


class _Cluster(_Table, frozen=True, kw_only=True):
    """The cluster file."""

    feeds: Annotated[tuple[FeedSettings, ...], Meta(min_length=1)] = field(name="feed")

    def __post_init__(self) -> None:
        """Each group needs its own port: on one host, every socket bound to a port receives all groups' datagrams."""
        _require_distinct("feed", self.feeds, "feed_id", "name")
        by_port: dict[int, str] = {}
        by_address: dict[str, str] = {}
        for place, feed in enumerate(self.feeds):
            for number, adapter in enumerate(feed.adapters):
                address, name = adapter.unicast or "", f"{feed.name}/{adapter.name}"
                other = name if not address or address.endswith(":0") else by_address.setdefault(address, name)
                if other != name:
                    reason = f"is also the address of adapter {other}: {shown(address)}; each needs its own"
                    raise InvalidSetting(reason, "feed", place, "adapter", number, "unicast")
            for group, keys in feed.all_groups():
                other = by_port.setdefault(parse_group(group)[1], group)
                if other is not group:
                    reason = f'shares a port with "{other}": {shown(group)}; each group needs its own port'
                    raise InvalidSetting(reason, "feed", place, *keys)
        self._check_delayed_feeds()
        self._check_topics()

    def _check_delayed_feeds(self) -> None:
        """A delayed feed repeats the source streams of a real-time feed, packet by packet."""
        by_name = {feed.name: feed for feed in self.feeds}
        for place, feed in enumerate(self.feeds):
            if feed.delayed_from is None:
                continue
            source = by_name.get(feed.delayed_from)
            if source is None or source.delayed_from is not None:
                reason = f"is {shown(feed.delayed_from)}; it must be the name of a real-time feed in this file"
                raise InvalidSetting(reason, "feed", place, "delayed_from")
            own, theirs = (
                sorted(each.source_stream_id for each in one.source_streams if each.contributions is None)
                for one in (feed, source)
            )
            if own != theirs:
                reason = f'must have the source streams of the feed "{source.name}", {theirs}; it has {own}'
                raise InvalidSetting(reason, "feed", place, "source_stream")
            if feed.datagram_size_max < source.datagram_size_max:
                reason = (
                    f"is {feed.datagram_size_max}; it must be at least {source.datagram_size_max}, that of the feed "
                )
                raise InvalidSetting(f'{reason}"{source.name}"', "feed", place, "datagram_size_max")

    def _check_topics(self) -> None:
        """A right to a topic must not open another feed's channel, nor a symbol's topic be that of a channel."""
        feed_by_topic: dict[str, str] = {}
        limitable = {each.topic for feed in self.feeds for each in feed.channels if feed.symbol_field_of(each)}
        for place, feed in enumerate(self.feeds):
            for row, channel in enumerate(feed.channels):
                other = feed_by_topic.setdefault(channel.topic, feed.name)
                keys = ("feed", place, "channel", row, "topic")
                if other != feed.name:
                    reason = f'is {shown(channel.topic)}, which the feed "{other}" has as well; each must be different'
                    raise InvalidSetting(reason, *keys)
                if (above := channel.topic.rpartition(".")[0]) in limitable:
                    reason = (
                        f'is {shown(channel.topic)}, which is also the topic of a symbol of "{above}", a channel with '
                        "a symbol_field; rename one of them"
                    )
                    raise InvalidSetting(reason, *keys)


def load_cluster(path: Path) -> dict[str, FeedSettings]:
    """The feeds of a cluster file, by name, with their message models.

    Raises:
        SettingsError: with file, line, key and reason.
    """

    file = SettingsFile(path)
    cluster = file.convert(_Cluster, dec_hook=partial(read_document_file, path.parent))
    for place, feed in enumerate(cluster.feeds):
        try:
            _check_symbol_fields(feed)
        except InvalidSetting as bad:
            raise file.error(("feed", place, *bad.keys), bad.reason) from bad
    return {feed.name: feed for feed in cluster.feeds}


def _check_symbol_fields(feed: FeedSettings) -> None:
    """A symbol field must be in the message model, with one size, because clients filter by its bytes."""
    named: list[tuple[str, tuple[Key, ...]]] = [(feed.symbol_field, ("symbol_field",))] if feed.symbol_field else []
    for row, channel in enumerate(feed.channels):
        if channel.symbol_field:
            named.append((channel.symbol_field, ("channel", row, "symbol_field")))
    for name, keys in named:
        if not symbol_columns(load_message_model(feed.message_model.content, "message model"), name):
            reason = (
                f"is {shown(name)}; it must be a field of the message model's messages with text of a fixed length or "
                "an integer"
            )
            raise InvalidSetting(reason, *keys)


def _require_group(group: str, *keys: Key) -> None:
    try:
        parse_group(group)
    except BadGroup as bad:
        raise InvalidSetting(f"is invalid: {bad}", *keys) from bad


def _require_distinct(table: str, rows: Sequence[object], *keys: str) -> None:
    """Refuse rows of an array of tables that have the same value of a key."""
    for key in keys:
        first: dict[object, int] = {}
        for place, row in enumerate(rows):
            value = getattr(row, key)
            if (other := first.setdefault(value, place)) != place:
                reason = f"is {shown(value)}, like that of {table}[{other}]; each must be different"
                raise InvalidSetting(reason, table, place, key)
