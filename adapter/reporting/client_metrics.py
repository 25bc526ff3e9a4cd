"""Metrics of what an adapter does for clients besides multicasting."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tandemfeed.adapter.records.replay_pace import ReplayPace


def client_metrics(unicast_connection_count: int, pace: ReplayPace) -> Iterator[Metric]:
    """The connections of unicast clients, and what replays take."""
    text = "Connections of unicast clients that have subscribed to a channel."
    yield GaugeMetricFamily("tandemfeed_unicast_connections", text, value=unicast_connection_count)
    text = "Bytes of output packets that replays have sent to clients."
    yield CounterMetricFamily("tandemfeed_replay_bytes", text, value=pace.sent_byte_count)
    text = "Limit of what replays may send in a second (tandemfeed admin throttle), or 0 if there is none."
    yield GaugeMetricFamily("tandemfeed_replay_bytes_per_second_max", text, value=pace.bytes_per_s)
