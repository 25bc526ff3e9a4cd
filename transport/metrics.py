"""A process's Prometheus metrics: the counters of the cores, its gauges, and its failed threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.runtime.threads import failed_threads


class CounterCollector(Collector):
    """Exports the counters of `feedcore.counters` and a process's gauges to Prometheus."""

    def __init__(self, counters: CounterSet, gauges: Callable[[], Iterator[Metric]] | None = None) -> None:
        self._counters = counters
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        """The present counts."""
        for counter, count in self._counters.counts.items():
            yield CounterMetricFamily(f"tandemfeed_{counter.name.lower()}", counter.value, value=count)
        refused = CounterMetricFamily("tandemfeed_refused_packets", "Refused packets, by reason.", labels=["reason"])
        for reason, count in self._counters.refusals.items():
            refused.add_metric([reason.value], count)
        yield refused
        if self._gauges is not None:
            yield from self._gauges()


class ThreadCollector(Collector):
    """The failed threads of the process, which every process exports."""

    def collect(self) -> Iterator[Metric]:
        """Their present number, by name; 0 without a name while there is none."""
        help_text = "Threads that failed unexpectedly; the process must be restarted."
        failed = GaugeMetricFamily("tandemfeed_failed_threads", help_text, labels=["thread"])
        for name in failed_threads() or ("",):
            failed.add_metric([name], float(bool(name)))
        yield failed


def serve_metrics(port: int, *collectors: Collector) -> None:
    """Serve Prometheus metrics on 127.0.0.1, in a separate thread. With port 0, do nothing.

    Raises:
        OSError: the port cannot be used.
    """
    if port:
        registry = CollectorRegistry()
        for collector in (ThreadCollector(), *collectors):
            registry.register(collector)
        try:
            start_http_server(port, addr="127.0.0.1", registry=registry)
        except (OSError, OverflowError) as refused:
            why = getattr(refused, "strerror", None) or str(refused)
            raise OSError(f"--metrics-port {port} cannot be used: {why.lower()}; choose another") from refused
