"""What the server tells Prometheus: one set of gauges per feed, read from the brokers when asked. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from admin_server.broker import FeedBroker


class FeedCollector(Collector):
    """Gauges of every feed."""

    def __init__(self, brokers: Mapping[str, FeedBroker]) -> None:
        self._brokers = brokers

    def collect(self) -> Iterator[Metric]:
        """The feeds as they stand."""
        epochs = GaugeMetricFamily("tandemfeed_epoch", "Newest epoch granted.", labels=["feed"])
        actives = GaugeMetricFamily("tandemfeed_active_adapter_id", "Who is active; 0: nobody.", labels=["feed"])
        subscribers = GaugeMetricFamily("tandemfeed_subscribers", "Clients connected.", labels=["feed"])
        attending = GaugeMetricFamily("tandemfeed_attending", "1: the adapter is here.", labels=["feed", "adapter"])
        for name, broker in self._brokers.items():
            status = broker.status()
            epochs.add_metric([name], status.epoch)
            actives.add_metric([name], status.active_adapter_id)
            subscribers.add_metric([name], status.subscriber_count)
            for row in status.adapters:
                attending.add_metric([name, row.adapter.name], int(row.attending))
        yield from (epochs, actives, subscribers, attending)
