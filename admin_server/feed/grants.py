"""What a subscriber is granted of a feed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tandemfeed.admin_server.feed.descriptions import describe_feed, limited_to
from tandemfeed.admin_server.feed.documents import wire_document, wire_version
from tandemfeed.admin_server.policy.rules import Extent
from tandemfeed.admin_server.settings import ChannelSettings, FeedSettings
from tandemfeed.v1 import admin_pb2, common_pb2

KeysOf = Callable[[Iterable[int]], list[common_pb2.StreamKey]]


@dataclass(frozen=True, slots=True)
class FeedView:
    """What subscribers may know of a feed's state, all of one moment."""

    session: int
    adapters: list[common_pb2.AdapterDescription]
    active: admin_pb2.ActiveAdapter


def feed_grant(
    feed: FeedSettings,
    view: FeedView,
    keys_of: KeysOf,
    extents: Mapping[int, Extent],
    proof_keys: Iterable[common_pb2.TokenKey] = (),
) -> admin_pb2.Grant:
    """The grant of these channels of a feed, with the documents that it names and a reader needs.

    Args:
        proof_keys: verify this server's proofs.
    """
    channels = frozenset(extents)
    return admin_pb2.Grant(
        feed=describe_feed(feed, view.session, extents),
        channels=[channel_grant(feed, each, keys_of) for each in feed.channels if each.channel_id in channels],
        adapters=[limited_to(adapter, channels) for adapter in view.adapters],
        active=view.active,
        documents=[wire_document(feed.message_model)],
        proof_keys=proof_keys,
    )


def channel_grant(feed: FeedSettings, channel: ChannelSettings, keys_of: KeysOf) -> admin_pb2.ChannelGrant:
    """Everything that a reader of one channel may have; no other function makes it."""
    table = feed.table_of(channel)
    return admin_pb2.ChannelGrant(
        channel_id=channel.channel_id,
        topic=channel.topic,
        keys=keys_of([channel.channel_id]),
        message_model=wire_version(feed.message_model),
        converter_table=None if table is None else wire_version(table.document),
    )
