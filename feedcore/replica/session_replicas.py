"""The replicas of one session: one per channel, and which source stream feeds which."""

from __future__ import annotations

from collections.abc import Mapping

from feedcore.counters import CounterSet
from feedcore.replica.converter import Converter
from feedcore.replica.engine_config import EngineConfig
from feedcore.replica.production import LineConfig, ProductionLine
from feedcore.replica.replica import ChannelReplica


class SessionReplicas:
    """Everything of one session at this adapter.

    A session that has not begun here has replicas as well: they have no place in their channels, so they only hold what
    is heard, within the limits of any replica that joins.

    Args:
        converters: per channel_id; the sessions share them, and only the session that an adapter is in uses them.
        now_ns: the monotonic clock.
    """

    def __init__(
        self,
        session: int,
        config: EngineConfig,
        converters: Mapping[int, Converter],
        counters: CounterSet,
        now_ns: int,
    ) -> None:
        self.session = session
        self.replicas: dict[int, ChannelReplica] = {}
        self.by_stream: dict[int, tuple[ChannelReplica, Converter]] = {}
        for channel in config.channels:
            converter = converters[channel.channel_id]
            line_config = LineConfig(
                config.feed_id,
                channel.channel_id,
                config.adapter_id,
                session,
                channel.source_stream_ids,
                config.datagram_size_max,
                config.replica.digest_interval_messages,
            )
            line = ProductionLine(line_config, converter, counters)
            replica = ChannelReplica(channel.channel_id, line, config.replica, counters, now_ns)
            self.replicas[channel.channel_id] = replica
            for stream in channel.source_stream_ids:
                self.by_stream[stream] = replica, converter
