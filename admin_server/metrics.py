"""What the server tells Prometheus: one set of gauges per feed, read from the brokers when asked. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
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
        text = "Epochs that began because another had ended, by reason, since this server began to decide on the feed."
        takeovers = CounterMetricFamily("tandemfeed_takeovers", text, labels=["feed", "reason"])
        text = "Terms that passed though their holder's process was alive."
        needless = CounterMetricFamily("tandemfeed_needless_takeovers", text, labels=["feed"])
        text = "The lease's term: longer than the configured one after needless takeovers."
        terms = GaugeMetricFamily("tandemfeed_lease_ttl_seconds", text, labels=["feed"])
        for name, broker in self._brokers.items():
            status = broker.status()
            epochs.add_metric([name], status.epoch)
            actives.add_metric([name], status.active_adapter_id)
            subscribers.add_metric([name], status.subscriber_count)
            for row in status.adapters:
                attending.add_metric([name, row.adapter.name], int(row.attending))
            for counted in status.takeover_counts:
                takeovers.add_metric([name, counted.reason], counted.count)
            needless.add_metric([name], status.needless_takeover_count)
            terms.add_metric([name], status.lease_ttl_ns / 1e9)
        yield from (epochs, actives, subscribers, attending, takeovers, needless, terms)
