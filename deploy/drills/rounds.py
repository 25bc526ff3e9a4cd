"""Runs the rounds of one drill: starts a cluster, injects the fault once per round, stops, and judges the result.

The source plays from before the first round until after the last. The client must receive everything it sent by then.
Only the pauses between rounds last a fixed time, to record an undisturbed stream; everything else waits for events.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemfeed.client_lib.recording.record import DeliveryRecord
from tandemfeed.client_lib.stream.sockets.transport_choice import Transport
from tandemfeed.deploy.cluster.cluster import START_TIMEOUT_S, Cluster, start_cluster
from tandemfeed.deploy.cluster.network import Network, why_no_network
from tandemfeed.deploy.cluster.processes import ProcessFailed
from tandemfeed.deploy.cluster.small_disk import why_no_small_disk
from tandemfeed.deploy.cluster.topology import SESSION, FeedLayout, Shape, host_names
from tandemfeed.deploy.demo.content import count_wrong, expected_content
from tandemfeed.deploy.drills.ledger import (
    FeedDeliveries,
    Round,
    RoundFigures,
    judge_rounds,
    ledger_row,
    undisturbed_windows,
)
from tandemfeed.deploy.drills.observer import Pauser
from tandemfeed.deploy.drills.source import (
    Recording,
    make_recording,
    packet_size,
    prepare_days,
    prepare_journal,
    sent_counts,
)
from tandemfeed.deploy.faults.context import Fault, FaultContext, FaultUnavailable, Observed, Say
from tandemfeed.deploy.faults.kills import DRIVER_TIMEOUT_S
from tandemfeed.deploy.faults.planned import DISK_SIZE_AT_FIRST, DISK_SIZE_PER_ROUND
from tandemfeed.deploy.hiccups.meter import HiccupMeter
from tandemfeed.deploy.hiccups.record import Hiccups
from tandemfeed.spark_feed.numbering.driver.java import JavaMissing, find_java_home
from tandemfeed.spark_feed.recordings.recording import ROWS_PER_FILE
from tandemfeed.transport.multicast.sockets import Datagrams
from tandemfeed.transport.scheduling import MODERATE_NICE

FLOW_TIMEOUT_S = 60.0  # Spark's first micro-batch takes about 8 s
LEAD_S = 2.0
QUIET_S = 1.0  # undisturbed play before each round and after the last
QUIET_RANDOM_S = 0.3  # plus a random time up to this, so that rounds do not align with timers
SPARE_SHARE, SPARE_S = 1.3, 45.0  # of play, because rounds take longer on a busy machine
MESSAGES_MIN = 60_000  # at low rates, the spare costs next to nothing
AHEAD_AT_START_S = 5.0  # of play, because Spark's first micro-batches are slow
AHEAD_MAX_S = 45.0  # of play: how far Spark may run ahead, so that the driver is still working when it is killed
DRIVER_ROWS_PER_FILE = 40_000  # rows per micro-batch; with small ones Spark would hardly keep ahead of the gateway
APPLICATION_COUNTS = ("delivered", "missing", "repeated")
OBSERVED_COUNTS = ("passes", "delivered", "missing", "repeated", "distrusted")
OBSERVED_TIMEOUT_S = 90.0  # the longest wait of a client's call, and a pass that is closed
DELIVER_LIMIT_S = 20.0  # the client declares a gap lost after 5 s


@dataclass(frozen=True, slots=True)
class DrillPlan:
    """What a drill does.

    Attributes:
        name: of the fault.
        rate: messages per second, per feed.
        seed: of all random choices.
        packets_per_s_max: source packets of each feed, if the machine bears only so many.
        transport: how the clients receive the adapters.
        datagrams: whose sockets multicast.
        reading: the shape in which the clients read.
        subscribers: clients of each feed; all check what they receive, and the first one's times are recorded.
        observe: messages that a reader beside each feed catches up, again and again, while it is paused at random; 0:
            there is none.
    """

    name: str
    fault: Fault
    rounds: int
    rate: float
    seed: int
    shape: Shape
    packets_per_s_max: float = math.inf
    transport: Transport = "multicast"
    datagrams: Datagrams = "zeromq"
    reading: str = "record"
    subscribers: int = 1
    observe: int = 0

    @property
    def stall_aim_ms(self) -> float | None:
        """The goal for a client's longest stall; None: the longest pause of the undisturbed stream."""
        # In a channel with one source stream a backup waits for no decision, so there is nothing to take over.
        return None if self.shape.streams_per_channel == 1 else self.fault.stall_aim_ms

    def days(self, feed: FeedLayout, feeds: Sequence[FeedLayout]) -> int:
        """The number of days of a feed: one more than its rounds. The feeds take the rounds in turn."""
        place = [each.feed_id for each in feeds].index(feed.feed_id)
        return 1 + len(range(place, self.rounds, len(feeds)))

    @property
    def message_count(self) -> int:
        """The number of messages that a feed's source needs for all rounds."""
        per_round = self.fault.round_s + QUIET_S + QUIET_RANDOM_S
        seconds = (LEAD_S + QUIET_S + self.rounds * per_round) * SPARE_SHARE + SPARE_S
        if self.fault.needs_driver:
            seconds += 2 * AHEAD_MAX_S  # so that Spark is still working in the last round
        return max(int(self.rate * seconds), MESSAGES_MIN) + self.rounds * self.fault.round_messages


@dataclass(slots=True)
class DrillResult:
    """The results of a drill.

    Attributes:
        deliveries: by feed_id.
        hiccups: of the machine, from before the first round until after the last.
        row: the fault's row of the ledger.
    """

    rounds: list[Round]
    judged: list[RoundFigures]
    deliveries: Mapping[int, FeedDeliveries]
    hiccups: Hiccups
    row: dict[str, Any]


@dataclass(slots=True)
class _Play:
    """What is recorded while the drill runs."""

    rounds: list[Round] = field(default_factory=list)
    observed: Observed = field(default_factory=Observed)
    began_ns: int = 0
    ended_ns: int = 0


def why_unavailable(fault: Fault) -> str:
    """Why a fault cannot be injected on this machine; empty if it can."""
    if fault.needs_network and (reason := why_no_network()):
        return reason
    if fault.needs_driver:
        try:
            find_java_home()
        except JavaMissing as missing:
            return str(missing)
    return why_no_small_disk() if fault.needs_small_disk else ""


def run_drill(plan: DrillPlan, folder: Path, say: Say) -> DrillResult:
    """Run all rounds of one fault.

    Raises:
        FaultUnavailable: the fault cannot be injected on this machine.
        ProcessFailed: the cluster did not work. (Lost messages do not raise; they are in the ledger.)
    """
    if reason := why_unavailable(plan.fault):
        raise FaultUnavailable(reason)
    folder.mkdir(parents=True, exist_ok=True)
    say(f"{plan.name}: generating {plan.message_count:,} messages")
    rows_per_file = DRIVER_ROWS_PER_FILE if plan.fault.needs_driver else ROWS_PER_FILE
    if plan.fault.has_days:
        rows_per_file = int(plan.fault.day_s * plan.rate)
    recording = make_recording(folder, source=None, message_count=plan.message_count, rows_per_file=rows_per_file)
    if plan.shape.channels > 1 or plan.shape.streams_per_channel > 2:
        recording = replace(recording, split="hash")  # first letters are too uneven for many streams
    disk_size = DISK_SIZE_AT_FIRST + plan.rounds * DISK_SIZE_PER_ROUND if plan.fault.needs_small_disk else 0
    play = _Play()
    with (
        HiccupMeter(folder) as meter,
        _network(plan.shape) as network,
        Cluster(
            folder,
            plan.shape,
            network=network,
            disk_size=disk_size,
            has_days=plan.fault.has_days,
            datagrams=plan.datagrams,
        ) as cluster,
    ):
        records = {feed.feed_id: folder / f"delivered{feed.suffix}" for feed in cluster.feeds}
        _start(plan, cluster, recording, records, say)
        observing = _start_observers(plan, cluster)
        _inject_in_rounds(plan, cluster, play, folder, say)
        hiccups = meter.stop()
        findings = _end_observers(cluster, observing, say)
        ended = {feed.feed_id: _end(plan, cluster, feed) for feed in cluster.feeds}
        sent = {feed_id: counts for feed_id, (counts, _) in ended.items()}
        days = {feed.feed_id: [*_earlier_days(cluster, feed), sent[feed.feed_id]] for feed in cluster.feeds}
        count = sum(sum(day.values()) for each in days.values() for day in each)
        say(f"the source sent {count:,} messages; checking what the client received")
    expected = expected_content(recording.folder, recording.split, plan.shape.stream_count)
    deliveries = {feed_id: _load(records[feed_id], days[feed_id], expected) for feed_id in records}
    judged = judge_rounds(play.rounds, deliveries, hiccups)
    observed = {name: getattr(play.observed, name) for name in ("lost", "duplicated", "out_of_order")}
    undisturbed = undisturbed_windows(play.rounds, play.began_ns, play.ended_ns)
    row = ledger_row(plan.name, judged, deliveries, observed, undisturbed, hiccups)
    counts = [found for _, found in ended.values()]
    application: dict[str, Any] = {name: sum(each[name] for each in counts) for name in APPLICATION_COUNTS}
    everything = plan.subscribers * row["sent"]
    application["missing"] = max(application["missing"], everything - application["delivered"])
    application |= {"shape": plan.reading, "subscribers": plan.subscribers}
    row |= {"stall_aim_ms": plan.stall_aim_ms, "application": application}
    if findings:
        row["observer"] = {name: sum(each[name] for each in findings) for name in OBSERVED_COUNTS}
    return DrillResult(play.rounds, judged, deliveries, hiccups, row)


@contextlib.contextmanager
def _network(shape: Shape) -> Iterator[Network | None]:
    """A network of hosts, or None if this machine cannot make one; faults that need one were refused before."""
    if why_no_network():
        yield None
        return
    with Network(host_names(shape)) as network:
        yield network


def _start(plan: DrillPlan, cluster: Cluster, recording: Recording, records: dict[int, Path], say: Say) -> None:
    """Prepare the source, start the cluster, and wait until the client receives messages."""
    messages_max = packet_size(plan.rate, plan.shape.stream_count, plan.packets_per_s_max)
    if not plan.fault.needs_driver:
        for feed in cluster.feeds:
            settings = cluster.folder / "cluster.toml"
            if plan.fault.has_days:
                journals = [cluster.journal(feed, day) for day in range(plan.days(feed, cluster.feeds))]
                prepare_days(recording, feed, settings, journals, messages_max)
            else:
                prepare_journal(recording, feed, settings, cluster.journal(feed), messages_max)
    start_cluster(
        cluster,
        plan.rate,
        records,
        verify=plan.fault.verify,
        through_days=plan.fault.has_days,
        transport=plan.transport,
        reading=plan.reading,
    )
    for feed in cluster.feeds:
        for name in _other_clients(plan, feed):
            client = cluster.start_client(
                feed,
                cluster.folder / f"delivered-{name}",
                name=name,
                verify=plan.fault.verify,
                through_days=plan.fault.has_days,
                transport=plan.transport,
                reading=plan.reading,
                nice=MODERATE_NICE,  # many subscribers on few processors must not take them from the cluster
            )
            client.await_event("ready", START_TIMEOUT_S)  # one after another: a start takes seconds of a processor
    if plan.fault.needs_driver:
        say("starting Spark")
        for feed in cluster.feeds:
            job = cluster.start_job(
                feed,
                recording.folder,
                split=recording.split,
                packet_messages_max=messages_max,
                ahead_messages_max=int(AHEAD_MAX_S * plan.rate),
            )
            job.await_event("ready", DRIVER_TIMEOUT_S)
        for feed in cluster.feeds:
            cluster.await_ahead(feed, int(AHEAD_AT_START_S * plan.rate))
    for feed in cluster.feeds:
        cluster.processes[feed.gateway].send_line("start")
    for feed in cluster.feeds:
        cluster.processes[feed.client].await_event("flowing", FLOW_TIMEOUT_S)
    say(f"{len(cluster.processes)} processes are ready; playing {plan.rate:,.0f} messages per second")
    cluster.run_for(LEAD_S)


def _start_observers(plan: DrillPlan, cluster: Cluster) -> list[tuple[FeedLayout, Pauser]]:
    """Start a reader beside each feed, and its pauses."""
    observing = []
    for feed in cluster.feeds if plan.observe else ():
        process = cluster.start_observer(feed, plan.observe, plan.fault.verify)
        process.await_event("ready", START_TIMEOUT_S)
        observing.append((feed, Pauser(process, random.Random((plan.seed << 8) ^ feed.feed_id))))
    return observing


def _end_observers(cluster: Cluster, observing: Sequence[tuple[FeedLayout, Pauser]], say: Say) -> list[dict[str, Any]]:
    """End the readers beside the feeds; returns what each of them found."""
    findings = []
    for feed, pauser in observing:
        pauser.stop()
        process = cluster.processes[feed.observer]
        process.send_line("stop")
        found = process.await_event("observed", OBSERVED_TIMEOUT_S)
        say(
            f"feed {feed.name}: a reader caught up {found['delivered']:,} messages in {found['passes']} passes, paused "
            f"{pauser.pause_count} times: {found['missing']} missing, {found['repeated']} repeated, "
            f"{found['distrusted']} accusations; passes that ended early: {found['errors'] or 'none'}"
        )
        findings.append(found)
    return findings


def _other_clients(plan: DrillPlan, feed: FeedLayout) -> list[str]:
    return [f"{feed.client}-{number}" for number in range(2, plan.subscribers + 1)]


def _inject_in_rounds(plan: DrillPlan, cluster: Cluster, play: _Play, folder: Path, say: Say) -> None:
    chance = random.Random(plan.seed)
    play.began_ns = time.monotonic_ns()
    for number in range(1, plan.rounds + 1):
        cluster.run_for(QUIET_S + chance.uniform(0, QUIET_RANDOM_S))
        feed = cluster.feeds[(number - 1) % len(cluster.feeds)]
        context = FaultContext(cluster, feed, say, chance, plan.rate, folder, observed=play.observed)
        epochs_before = context.watch.epochs_seen
        try:
            what = plan.fault.inject(context)
        except ProcessFailed:
            cluster.check()  # if a process crashed, report that instead
            raise
        times = (context.fault_at_ns, context.repair_at_ns, time.monotonic_ns())
        takeovers = context.watch.epochs_seen - epochs_before
        play.rounds.append(Round(number, feed.feed_id, what, *times, takeovers, context.disturbed_at_ns))
        say(f"round {number} of {plan.rounds}: {what}")
        for each in cluster.feeds:
            if cluster.processes[each.gateway].has_reported("sent") and not plan.fault.has_days:
                raise ProcessFailed(
                    f"the source ran out of messages in round {number}, because this machine is too slow or too busy "
                    "for this rate and cluster; reduce --rate, --backups, --channels or --feeds"
                )
    cluster.run_for(QUIET_S)
    play.ended_ns = time.monotonic_ns()


def _end(plan: DrillPlan, cluster: Cluster, feed: FeedLayout) -> tuple[dict[int, int], dict[str, int]]:
    """Stop the source, and stop the clients once they have everything; returns how much was sent per source stream, and
    what the applications counted."""
    if feed.job in cluster.processes:
        cluster.stop(feed.job)
    cluster.stop(feed.gateway)
    counts = sent_counts(cluster.journal(feed), feed)
    # Restart the gateway without "start": its heartbeats say where the streams end, and it fills the adapters' gaps.
    cluster.start_gateway(feed, plan.rate).await_event("ready", START_TIMEOUT_S)
    clients = [cluster.processes[name] for name in (feed.client, *_other_clients(plan, feed))]
    session = SESSION + cluster.days[feed.feed_id]
    for client in clients:
        client.send_line(json.dumps({"until": counts, "within_s": DELIVER_LIMIT_S, "session": session}))
    found = [client.await_event("recorded", DELIVER_LIMIT_S + START_TIMEOUT_S) for client in clients]
    return counts, {name: sum(int(each[name]) for each in found) for name in APPLICATION_COUNTS}


def _earlier_days(cluster: Cluster, feed: FeedLayout) -> list[dict[int, int]]:
    """How much was sent per source stream on each earlier day."""
    return [sent_counts(cluster.journal(feed, day), feed) for day in range(cluster.days[feed.feed_id])]


def _load(path: Path, sent_by_day: list[dict[int, int]], expected: dict[int, Any]) -> FeedDeliveries:
    """What a client received, with each source message numbered by its place in the whole recording."""
    content = np.load(path.with_suffix(".npy"))
    times = np.load(path.with_suffix(".times.npy"))
    record = DeliveryRecord.load(path)
    sent = dict.fromkeys(sent_by_day[0], 0)
    for day, sent_on_day in enumerate(sent_by_day):
        for stream, before in sent.items():
            _shift(content, ("source_seq",), SESSION + day, stream, before)
            for channel in record.channels.values():
                _shift(channel.spans, ("first", "end"), SESSION + day, stream, before, key="source_stream_id")
        sent = {stream: before + sent_on_day[stream] for stream, before in sent.items()}
    for channel in record.channels.values():
        channel.spans["session"] = SESSION
    wrong = count_wrong(content, expected)
    return FeedDeliveries(record, sent, content["stream"], content["source_seq"], times, wrong)


def _shift(
    rows: NDArray[Any], fields: tuple[str, ...], session: int, stream: int, by: int, *, key: str = "stream"
) -> None:
    chosen = (rows["session"] == session) & (rows[key] == stream)
    for name in fields:
        rows[name][chosen] += np.uint64(by)
