"""The adapter's report on itself: feed adapter state for its peers and the admin server, and gauges for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tandemfeed.adapter.conversion.compiled import CompiledConverter
from tandemfeed.adapter.conversion.table.reasons import REFUSALS, Reason
from tandemfeed.adapter.peers.translation import peer_state_to_proto
from tandemfeed.adapter.records.dead_letter_journal import DeadLetterJournal
from tandemfeed.adapter.records.output_journal import OutputJournal
from tandemfeed.adapter.reporting.fitness import Fitness
from tandemfeed.adapter.reporting.forged_packets import ForgedPackets
from tandemfeed.adapter.reporting.health import Counts, Health, HealthSampler
from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.replica.engine import AdapterEngine
from tandemfeed.feedcore.replica.replica import ChannelReplica
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.refusal import Refusal
from tandemfeed.transport.sealing.sealing import Sealer
from tandemfeed.v1 import common_pb2

HEALTH_INTERVAL_NS = 1_000_000_000
ERROR_REFUSALS = (Refusal.MALFORMED, Refusal.TRUNCATED)
REFUSED = frozenset(reason.name.lower() for reason in REFUSALS)
ERROR_COUNTERS = (Counter.DIGESTS_UNEQUAL, Counter.SNAPSHOTS_REFUSED, Counter.SOURCE_MESSAGES_LOST)


class Reporter:
    """Reads the engine. Call `state` in the loop's thread, `gauges` in any.

    Args:
        converters: by channel_id; their counts become metrics.
        fitness: what this adapter has lost.
        has_lifeline: whether a lifeline would report this process's death.
        clock_ns: the monotonic clock.
        epoch_proof: returns the proof of the newest epoch that is known here.

    Attributes:
        forged: packets that impersonate an adapter of the feed; the loop notes them.
    """

    def __init__(
        self,
        engine: AdapterEngine,
        counters: CounterSet,
        journal: OutputJournal,
        sealer: Sealer,
        *,
        converters: Mapping[int, CompiledConverter],
        dead_letters: DeadLetterJournal,
        fitness: Fitness,
        has_lifeline: Callable[[], bool],
        clock_ns: Callable[[], int] = time.monotonic_ns,
        epoch_proof: Callable[[], bytes] = lambda: b"",
    ) -> None:
        self._engine, self._counters, self._journal, self._sealer = engine, counters, journal, sealer
        self._converters, self._dead_letters = converters, dead_letters
        self._fitness, self._check_lifeline, self._has_lifeline = fitness, has_lifeline, False
        self._epoch_proof = epoch_proof
        self.forged = ForgedPackets()
        self._sampler, self._clock_ns = HealthSampler(), clock_ns
        self._health = Health(1.0, 0.0, 0, 0.0, 0)
        self._health_at_ns = 0
        self._disk_space = (0, 0)
        self._is_abstaining = False
        self._silences_ns: dict[int, int] = {}

    def state(self) -> common_pb2.FeedAdapterState:
        """The current state."""
        now_ns = self._clock_ns()
        if now_ns - self._health_at_ns >= HEALTH_INTERVAL_NS:
            self._health_at_ns = now_ns
            self._health = self._sampler.sample(self._counts(), now_ns)
            self._disk_space = self._journal.disk_space()
            self._has_lifeline = self._check_lifeline()
        self._health = replace(self._health, unfit_reason=self._fitness.reason)
        self._engine.health = self._health.score
        report = self._engine.report(now_ns, self._sealer.incarnation)
        self._is_abstaining, self._silences_ns = report.abstains, report.silences_ns
        state = peer_state_to_proto(report, self._health)
        for converter in self._converters.values():
            for reason, count in converter.counts().items():
                if count and reason in REFUSED:
                    state.refused_messages[reason] += count
        state.forged_packets.extend(self.forged.newest())
        for stream_id, heard_at_ns in self._engine.source_heard_at_ns.items():
            state.source_silence_ns[stream_id] = now_ns - heard_at_ns
        state.output_journal.CopyFrom(self._output_journal())
        state.epoch_proof = self._epoch_proof()
        return state

    def _output_journal(self) -> common_pb2.OutputJournalState:
        journal, (free, size) = self._journal, self._disk_space
        return common_pb2.OutputJournalState(
            is_failing=journal.is_failing,
            not_journaled_count=journal.dropped_count,
            last_not_journaled_unix_ns=journal.last_dropped_unix_ns,
            disk_free_bytes=free,
            disk_size_bytes=size,
        )

    def gauges(self) -> Iterator[Metric]:
        """The gauges as of the loop's last turn."""
        replicas = list(self._engine.replicas.items())
        states = GaugeMetricFamily("tandemfeed_replica_state", "Channels in this state.", labels=["state"])
        for state in ReplicaState:
            states.add_metric([state.value], sum(replica.state is state for _, replica in replicas))
        yield states
        epochs = GaugeMetricFamily("tandemfeed_epoch", "Epoch of the last applied decision.", labels=["channel"])
        places = GaugeMetricFamily("tandemfeed_next_message_seq", "The next message_seq.", labels=["channel"])
        inputs = GaugeMetricFamily("tandemfeed_next_input_seq", "The next input_seq.", labels=["channel"])
        ahead = GaugeMetricFamily(
            "tandemfeed_provisional", "1 while provisionally sent messages wait for their commit.", labels=["channel"]
        )
        for channel_id, replica in replicas:
            labels, line = [str(channel_id)], replica.line
            epochs.add_metric(labels, line.epoch)
            places.add_metric(labels, line.next_message_seq)
            inputs.add_metric(labels, line.next_input_seq)
            ahead.add_metric(labels, line.provisional is not None)
        yield from (epochs, places, inputs, ahead)
        text = "1 while this adapter holds the lease."
        yield GaugeMetricFamily("tandemfeed_is_active", text, value=self._engine.lease.is_held)
        text = "1 while this adapter, without an admin server, has promised to refuse grants for the active's sake."
        yield GaugeMetricFamily("tandemfeed_is_abstaining", text, value=self._is_abstaining)
        yield GaugeMetricFamily("tandemfeed_health_score", "Health from 0 (unfit) to 1.", value=self._health.score)
        text = "Seconds since another adapter's multicast was last received here, while it said that it transmits."
        silences = GaugeMetricFamily("tandemfeed_adapter_silence_seconds", text, labels=["adapter_id"])
        for adapter_id, silence_ns in list(self._silences_ns.items()):
            silences.add_metric([str(adapter_id)], silence_ns / 1e9)
        yield silences
        text = "1 while a lifeline runs, which would report the death of this process without delay."
        yield GaugeMetricFamily("tandemfeed_has_lifeline", text, value=self._has_lifeline)
        text = "Records that the output journal dropped because its disk was full."
        yield CounterMetricFamily("tandemfeed_output_journal_dropped", text, value=self._journal.dropped_count)
        text = "Samples of refused source messages that were appended to the dead-letter journal."
        yield CounterMetricFamily("tandemfeed_dead_letters_journaled", text, value=self._dead_letters.appended_count)
        text = "Samples of refused source messages that the dead-letter journal dropped: disk full, error, or too slow."
        yield CounterMetricFamily("tandemfeed_dead_letters_dropped", text, value=self._dead_letters.dropped_count)
        yield forgery_metric(self.forged.counts())
        counts = {str(channel_id): converter.counts() for channel_id, converter in self._converters.items()}
        yield from conversion_metrics(counts)

    def _counts(self) -> Counts:
        counters = self._counters
        errors = sum(counters.refusals[reason] for reason in ERROR_REFUSALS)
        errors += sum(counters.counts[counter] for counter in ERROR_COUNTERS)
        return Counts(counters.counts[Counter.MESSAGES_OUT], errors, source_lag(self._engine.replicas.values()))


def source_lag(replicas: Iterable[ChannelReplica]) -> int:
    """Source messages known to exist that have not been converted; of a stream that several channels read, in the one
    that is furthest behind."""
    lags: dict[int, int] = {}
    for replica in replicas:
        for stream_id, lag in replica.source_lags().items():
            lags[stream_id] = max(lag, lags.get(stream_id, 0))
    return sum(lags.values())


def forgery_metric(counts: Mapping[int, int]) -> Metric:
    """The metric of packets that impersonate an adapter.

    Args:
        counts: adapter_id -> packets.
    """
    text = "Refused packets that impersonate an adapter of the feed, by the impersonated adapter."
    forged = CounterMetricFamily("tandemfeed_forged_packets", text, labels=["impersonated_adapter_id"])
    for adapter_id, count in counts.items():
        forged.add_metric([str(adapter_id)], count)
    return forged


def conversion_metrics(counts: Mapping[str, Mapping[str, int]]) -> Iterator[Metric]:
    """The converters' counts, with the sentences of `Reason`: one metric for refusals, one for each other count.

    Args:
        counts: channel -> `CompiledConverter.counts()`.
    """
    sentences = " ".join(f"{reason.name.lower()}: {reason.text}" for reason in REFUSALS)
    refused = CounterMetricFamily(
        "tandemfeed_source_messages_refused",
        f"Refused source messages, by reason. {sentences}",
        labels=["channel", "reason"],
    )
    others = {
        reason.name.lower(): CounterMetricFamily(
            f"tandemfeed_source_messages_{reason.name.lower()}", reason.text, labels=["channel"]
        )
        for reason in Reason
        if reason not in REFUSALS
    }
    for channel, by_reason in counts.items():
        for reason, count in by_reason.items():
            if reason in others:
                others[reason].add_metric([channel], count)
            else:
                refused.add_metric([channel, reason], count)
    yield from (refused, *others.values())
