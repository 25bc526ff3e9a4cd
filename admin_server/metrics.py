"""The server's Prometheus metrics for each feed, read from the brokers at each scrape. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tandemfeed.admin_server.alerts import Level, Thresholds, alerts_of, link_silences
from tandemfeed.admin_server.feed.broker import FeedBroker


class FeedCollector(Collector):
    """Collects the metrics of every feed."""

    def __init__(self, brokers: Mapping[str, FeedBroker]) -> None:
        self._brokers = brokers

    def collect(self) -> Iterator[Metric]:
        """The present state of the feeds."""
        epochs = GaugeMetricFamily("tandemfeed_epoch", "Newest epoch granted.", labels=["feed"])
        text = "Identifier of the active adapter, or 0 if no adapter is active."
        actives = GaugeMetricFamily("tandemfeed_active_adapter_id", text, labels=["feed"])
        subscribers = GaugeMetricFamily("tandemfeed_subscribers", "Number of connected clients.", labels=["feed"])
        text = "1 if the adapter is connected to this server, else 0."
        attending = GaugeMetricFamily("tandemfeed_attending", text, labels=["feed", "adapter"])
        text = "Takeovers by reason, since this server became active for the feed."
        takeovers = CounterMetricFamily("tandemfeed_takeovers", text, labels=["feed", "reason"])
        text = "Lease terms that expired although the holder's process was alive."
        needless = CounterMetricFamily("tandemfeed_needless_takeovers", text, labels=["feed"])
        text = "Present lease term; longer than the configured one after needless takeovers."
        terms = GaugeMetricFamily("tandemfeed_lease_ttl_seconds", text, labels=["feed"])
        text = "What is wrong with the feed, as in status --check: how many alerts, by level."
        alerts = GaugeMetricFamily("tandemfeed_alerts", text, labels=["feed", "level"])
        text = "Seconds since an adapter last received another one's multicast, while that one said that it transmits."
        links = GaugeMetricFamily("tandemfeed_link_silence_seconds", text, labels=["feed", "from", "to"])
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
            found = [alert.level for alert in alerts_of(status, Thresholds())]
            for level in (Level.WARNING, Level.CRITICAL):
                alerts.add_metric([name, level.name.lower()], found.count(level))
            names = {row.adapter.adapter_id: row.adapter.name for row in status.adapters}
            for sender, silences in link_silences(status, Thresholds()).items():
                for hearer, silence_ns in silences.items():
                    links.add_metric([name, names[sender], names[hearer]], silence_ns / 1e9)
        yield from (epochs, actives, subscribers, attending, takeovers, needless, terms, alerts, links)
