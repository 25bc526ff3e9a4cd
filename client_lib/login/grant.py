"""A subscription's grant by the administration server. Each update has the whole grant. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tandemfeed.transport.calls.server_names import adapter_server
from tandemfeed.transport.sealing.announced_starts import AnnouncedStart, announced_starts
from tandemfeed.transport.sealing.start_keys import SealingKey
from tandemfeed.transport.unicast.wire import CURVE_KEY_SIZE
from tandemfeed.v1 import admin_pb2, common_pb2

AWAY = "away"  # the replica_state of an adapter that is not connected to the admin server


@dataclass(frozen=True, slots=True)
class GrantedKey:
    """A channel's key and when it expires."""

    sealing: SealingKey
    expires_unix_ns: int


class DocumentName(NamedTuple):
    """A document's identifier in the feed's definition, and its version: the SHA-256 of its content."""

    id: str
    version: str


@dataclass(frozen=True, slots=True)
class UnicastPlace:
    """Where one start of an adapter serves unicast clients ("IPV4:PORT"), and the CURVE key that it made for that."""

    endpoint: str
    server_key: bytes


@dataclass(frozen=True, slots=True)
class GrantedAdapter:
    """An adapter as a subscriber sees it: its multicast groups (by channel_id), its replay endpoint, the server name
    that its certificate must have, and its announced starts.

    Attributes:
        incarnation: of its newest start.
        unicast: of its newest start; None: it serves no unicast clients (yet).
        is_attended: it is connected to the admin server.
    """

    adapter_id: int
    name: str
    rpc_endpoint: str
    server_name: str
    groups: Mapping[int, str]
    starts: tuple[AnnouncedStart, ...] = ()
    incarnation: int = 0
    unicast: UnicastPlace | None = None
    is_attended: bool = True


@dataclass(frozen=True, slots=True)
class GrantedSymbols:
    """The symbols of a channel that are granted.

    Attributes:
        field: the message field that has the symbol.
        words: the symbols as words of topics, where `*` is every symbol.
    """

    field: str
    words: frozenset[str]


@dataclass(frozen=True, slots=True)
class Grant:
    """Everything a subscription may use.

    Attributes:
        topics_by_channel: the granted channels.
        adapters: all adapters of the feed, including those that are away.
        keys: by key_id; only those of the granted channels.
        message_model: the SBE message schema of the output (XML).
        model_name: its identifier and version.
        table_names: the converter table of each channel, if the feed's definition has one.
        takeover_reason: why the epoch began; empty: not known.
        symbols_by_channel: of the channels of which only some symbols are granted.
        delay_ns: how much later than the real-time feed this feed sends; 0: it is a real-time feed.
        proof_keys: verify the server's proofs of epochs that adapters pass on.
    """

    feed_id: int
    feed_name: str
    session: int
    topics_by_channel: Mapping[int, str]
    source_stream_names: Mapping[int, str]
    adapters: Mapping[int, GrantedAdapter]
    keys: Mapping[int, GrantedKey]
    message_model: bytes = field(repr=False)
    model_name: DocumentName
    table_names: Mapping[int, DocumentName] = field(default_factory=dict)
    active_adapter_id: int = 0
    epoch: int = 0
    takeover_reason: str = ""
    symbols_by_channel: Mapping[int, GrantedSymbols] = field(default_factory=dict)
    delay_ns: int = 0
    proof_keys: tuple[common_pb2.TokenKey, ...] = field(default=(), repr=False)

    @property
    def topics(self) -> frozenset[str]:
        """The granted topics."""
        return frozenset(self.topics_by_channel.values())

    @property
    def groups(self) -> frozenset[str]:
        """The multicast groups to join."""
        return frozenset(
            group
            for adapter in self.adapters.values()
            for channel_id, group in adapter.groups.items()
            if channel_id in self.topics_by_channel
        )

    @property
    def starts(self) -> list[AnnouncedStart]:
        """All announced starts of adapters."""
        return [start for adapter in self.adapters.values() for start in adapter.starts]


@dataclass(frozen=True, slots=True)
class TopicsRevoked:
    """The policy no longer grants these topics. `is_last`: the subscription has ended."""

    topics: tuple[str, ...]
    reason: str
    is_last: bool


def read_grant(message: admin_pb2.Grant, documents: Mapping[str, bytes], former: Grant | None = None) -> Grant:
    """The grant in an update, which is complete except for documents that the call has received before.

    Args:
        documents: by version.
        former: the subscription's grant before this one.

    Raises:
        KeyError: the server has never sent a message model that it names.
    """
    feed, model = message.feed, message.channels[0].message_model  # one model for all channels of a feed
    known: Mapping[int, GrantedAdapter] = {} if former is None else former.adapters
    return Grant(
        feed_id=feed.feed_id,
        feed_name=feed.name,
        session=feed.session,
        topics_by_channel={channel.channel_id: channel.topic for channel in message.channels},
        source_stream_names={stream.source_stream_id: stream.name for stream in feed.source_streams},
        adapters={
            adapter.adapter_id: _adapter(feed.name, adapter, known.get(adapter.adapter_id))
            for adapter in message.adapters
        },
        keys={key.key_id: _key(key) for channel in message.channels for key in channel.keys},
        message_model=documents[model.version],
        model_name=DocumentName(model.id, model.version),
        table_names={
            channel.channel_id: DocumentName(channel.converter_table.id, channel.converter_table.version)
            for channel in message.channels
            if channel.HasField("converter_table")
        },
        active_adapter_id=message.active.adapter_id,
        epoch=message.active.epoch,
        takeover_reason=message.active.takeover_reason,
        symbols_by_channel=_symbols(feed),
        delay_ns=feed.delay_ns,
        proof_keys=tuple(message.proof_keys),
    )


def _symbols(feed: common_pb2.FeedDescription) -> dict[int, GrantedSymbols]:
    return {
        channel.channel_id: GrantedSymbols(channel.symbol_field, frozenset(channel.symbols))
        for channel in feed.channels
        if channel.symbols
    }


def _adapter(feed: str, adapter: common_pb2.AdapterDescription, former: GrantedAdapter | None) -> GrantedAdapter:
    return GrantedAdapter(
        adapter.adapter_id,
        adapter.name,
        adapter.rpc_endpoint,
        adapter_server(feed, adapter.name),
        dict(adapter.groups),
        tuple(announced_starts([adapter])),
        adapter.incarnation,
        _unicast_place(adapter, former),
        adapter.replica_state != AWAY,
    )


def _unicast_place(adapter: common_pb2.AdapterDescription, former: GrantedAdapter | None) -> UnicastPlace | None:
    """What a restarted server does not know until the adapter has returned to it stays valid for the same start."""
    if adapter.unicast_endpoint and len(adapter.unicast_server_key) == CURVE_KEY_SIZE:
        return UnicastPlace(adapter.unicast_endpoint, adapter.unicast_server_key)
    return former.unicast if former is not None and former.incarnation == adapter.incarnation else None


def _key(key: common_pb2.StreamKey) -> GrantedKey:
    return GrantedKey(SealingKey(key.key_id, key.channel_id, key.key), key.expires_unix_ns)
