"""Wire descriptions of feeds and adapters, and summaries of an adapter's reported state. Pure."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tandemfeed.admin_server.feed.keys.channel_keys import ChannelKey
from tandemfeed.admin_server.feed.streams import Subscriber
from tandemfeed.admin_server.lease.lease_core import FeedLease
from tandemfeed.admin_server.policy.rules import WHOLE, Extent
from tandemfeed.admin_server.policy.subscription_rights import topics_of
from tandemfeed.admin_server.records.lease_records import HistoryEvent
from tandemfeed.admin_server.settings import MS, AdapterSettings, FeedSettings
from tandemfeed.feedcore.replica.heard_adapters import unheard
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.v1 import admin_pb2, common_pb2

LOG = logging.getLogger("tandemfeed.admin_server.feed.descriptions")
AWAY = "away"
# From the best to the worst: an adapter is as good as its worst channel.
_ORDER = [
    ReplicaState.ACTIVE,
    ReplicaState.SYNCHRONIZED,
    ReplicaState.DETACHED,
    ReplicaState.AHEAD,
    ReplicaState.RESYNCHRONIZING,
    ReplicaState.JOINING,
    ReplicaState.FAILED,
]


def describe_feed(
    feed: FeedSettings, session: int, extents: Mapping[int, Extent] | None = None
) -> common_pb2.FeedDescription:
    """The feed in a session, limited to these channels and their symbols (None: all)."""
    wanted = {channel.channel_id: WHOLE for channel in feed.channels} if extents is None else extents
    return common_pb2.FeedDescription(
        feed_id=feed.feed_id,
        name=feed.name,
        session=session,
        channels=[
            common_pb2.ChannelDescription(
                channel_id=channel.channel_id,
                topic=channel.topic,
                source_stream_ids=channel.read_stream_ids,
                symbol_field=feed.symbol_field_of(channel),
                symbols=sorted(wanted[channel.channel_id].symbols or ()),
            )
            for channel in feed.channels
            if channel.channel_id in wanted
        ],
        source_streams=[
            common_pb2.SourceStreamDescription(
                source_stream_id=stream.source_stream_id,
                name=stream.name,
                group=stream.group,
                contribution_endpoint=next(iter(stream.contribution_endpoints), ""),
                contribution_endpoints=stream.contribution_endpoints,
                owner_channel_id=feed.owner_of(stream.source_stream_id).channel_id,
            )
            for stream in feed.source_streams
        ],
        source_replay_endpoint=feed.source_replay_endpoint,
        datagram_size_max=feed.datagram_size_max,
        source_is_sealed=feed.source_is_sealed,
        acknowledge_contributions=feed.acknowledge_contributions if feed.contribution_endpoints else "",
        delay_ns=feed.delay_ns,
        delayed_from=(feed.delayed_from or "") if extents is None else "",  # a subscriber may not know that feed,
    )


def describe_adapter(
    adapter: AdapterSettings,
    incarnation: int,
    rpc_endpoint: str,
    replica_state: str,
    *,
    unicast_endpoint: str = "",
    unicast_server_key: bytes = b"",
) -> common_pb2.AdapterDescription:
    """How others can reach an adapter."""
    return common_pb2.AdapterDescription(
        adapter_id=adapter.adapter_id,
        name=adapter.name,
        rpc_endpoint=rpc_endpoint,
        groups=dict(adapter.groups),
        incarnation=incarnation,
        replica_state=replica_state,
        unicast_endpoint=unicast_endpoint,
        unicast_server_key=unicast_server_key,
    )


def describe_protocol(feed: FeedSettings) -> admin_pb2.FeedProtocol:
    """The protocol settings for the feed's adapters."""
    return admin_pb2.FeedProtocol(
        publish=feed.publish,
        on_silence=feed.on_silence,
        fail_policy=feed.fail_policy,
        fail_threshold=feed.fail_threshold or 0.0,
        session_state=feed.session_state,
        session_grace_ns=feed.session_grace_ms * MS,
        idle_without_subscribers=feed.idle_without_subscribers,
    )


def describe_takeovers(status: admin_pb2.FeedStatus, lease: FeedLease, now_ns: int, now_unix_ns: int) -> None:
    """Fill in the takeovers with their reasons, and the present lease term.

    Args:
        now_ns, now_unix_ns: the same moment on the lease's clock and on the wall clock.
    """
    for reason, count in lease.takeovers.counts.items():
        status.takeover_counts.add(reason=reason.name.lower(), count=count)
    for takeover in lease.takeovers.last:
        status.last_takeovers.add(
            at_unix_ns=now_unix_ns - (now_ns - takeover.at_ns),
            reason=takeover.reason.name.lower(),
            epoch=takeover.epoch,
            former_adapter_id=takeover.former,
            adapter_id=takeover.adapter_id,
        )
    status.needless_takeover_count = lease.terms.needless_count
    status.lease_ttl_ns = lease.terms.ttl_ns_at(now_ns)


def describe_client(feed: FeedSettings, subscriber: Subscriber) -> admin_pb2.ClientStatus:
    """A client's open stream."""
    return admin_pb2.ClientStatus(
        client_id=subscriber.client_id,
        identity=subscriber.identity,
        feed=feed.name,
        topics=topics_of(subscriber.extents, feed),
        peer=subscriber.peer,
        since_unix_ns=subscriber.since_unix_ns,
    )


def describe_key(feed: FeedSettings, key: ChannelKey, rotation_unix_ns: int) -> admin_pb2.KeyStatus:
    """A key without its secret."""
    topics = {channel.channel_id: channel.topic for channel in feed.channels}
    return admin_pb2.KeyStatus(
        feed=feed.name,
        channel_id=key.channel_id,
        topic=topics.get(key.channel_id, ""),
        key_id=key.key_id,
        not_before_unix_ns=key.not_before_unix_ns,
        expires_unix_ns=key.expires_unix_ns,
        rotation_unix_ns=rotation_unix_ns,
    )


def event_to_proto(event: HistoryEvent) -> admin_pb2.HistoryEvent:
    """An event of a feed's history."""
    return admin_pb2.HistoryEvent(**event._asdict())


def copy_of(description: common_pb2.AdapterDescription) -> common_pb2.AdapterDescription:
    """An independent copy."""
    copied = common_pb2.AdapterDescription()
    copied.CopyFrom(description)
    return copied


def absent_adapters(
    feed: FeedSettings, registrations: Mapping[int, tuple[int, str]]
) -> dict[int, common_pb2.AdapterDescription]:
    """The adapters that registered before the server restarted, as away until they return.

    A client that connects right after the restart still needs their multicast groups.
    """
    return {
        adapter.adapter_id: describe_adapter(adapter, *registrations[adapter.adapter_id], AWAY)
        for adapter in feed.adapters
        if adapter.adapter_id in registrations
    }


def limited_to(
    description: common_pb2.AdapterDescription, channel_ids: frozenset[int]
) -> common_pb2.AdapterDescription:
    """The part of a description that a client may see: that of its granted channels."""
    limited = copy_of(description)
    for channel_id in [channel for channel in limited.groups if channel not in channel_ids]:
        del limited.groups[channel_id]
    for start in limited.starts:
        for channel_id in [channel for channel in start.next_packet_counters if channel not in channel_ids]:
            del start.next_packet_counters[channel_id]
    return limited


def worst_state(state: common_pb2.FeedAdapterState) -> ReplicaState | None:
    """The state of the adapter's worst channel; None if a channel reports an unknown state."""
    try:
        return max((ReplicaState(channel.replica_state) for channel in state.channels), key=_ORDER.index, default=None)
    except ValueError:
        LOG.warning("an adapter reported an unknown replica state", extra={"adapter": state.adapter_id})
        return None


def unheard_adapters(state: common_pb2.FeedAdapterState) -> frozenset[int]:
    """The adapters whose multicast does not arrive at the adapter that reports."""
    return unheard(state.adapter_silence_ns)


def total_position(state: common_pb2.FeedAdapterState) -> int:
    """An adapter's position, summed over all channels, for comparison between adapters of one feed."""
    return sum(channel.position.next_input_seq for channel in state.channels)


def history_epoch(state: common_pb2.FeedAdapterState) -> int:
    """The epoch that the adapter's position belongs to; if its channels differ, the oldest."""
    return min((channel.position.epoch for channel in state.channels), default=0)
