"""Rounds of one fault on a running cluster: started, struck again and again, ended where it is, judged.

The source plays on from before the first round to behind the last; what it has sent by then is what the client must
have. Nothing here waits for a time to pass but between rounds, where an undisturbed stream is to be seen.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_lib.record import DeliveryRecord
from deploy.cluster import START_TIMEOUT_S, Cluster, start_cluster
from deploy.content import count_wrong, expected_content
from deploy.faults.days import DAY_S
from deploy.faults.ends import DRIVER_TIMEOUT_S
from deploy.faults.planned import DISK_SIZE_AT_FIRST, DISK_SIZE_PER_ROUND
from deploy.faults.scene import Fault, FaultUnavailable, Observed, Say, Scene
from deploy.ledger import Round, RoundFigures, Seen, judge_rounds, ledger_row, undisturbed_stalls_ms
from deploy.network import Network, why_no_network
from deploy.processes import ProcessFailed
from deploy.small_disk import why_no_small_disk
from deploy.source import Recording, make_recording, packet_size, prepare_days, prepare_journal, sent_counts
from deploy.topology import SESSION, FeedLayout, Shape, host_names
from spark_feed.java import JavaMissing, find_java_home
from spark_feed.recording import ROWS_PER_FILE

FLOW_TIMEOUT_S = 60.0  # Spark's first micro-batch takes some 8 s
LEAD_S = 2.0
QUIET_S = 1.0  # undisturbed play before each round, and behind the last
QUIET_CHANCE_S = 0.3  # and up to this, so that rounds fall into no step with any timer
SPARE_SHARE, SPARE_S = 1.3, 45.0  # of play: rounds end when the cluster is whole, on a busy machine later than planned
AHEAD_AT_START_S = 5.0  # of play: Spark's first micro-batches are slow
AHEAD_S = 45.0  # of play: so far may Spark be ahead where it must still be at work
DRIVER_ROWS_PER_FILE = 40_000  # a file is a micro-batch: with small ones Spark would hardly outrun the play
DELIVER_LIMIT_S = 20.0  # the client calls a hole that nobody fills lost after 5 s


@dataclass(frozen=True, slots=True)
class DrillPlan:
    """What is drilled.

    Attributes:
        name: of the fault.
        rate: messages a second, of each feed.
        seed: of everything that is left to chance.
    """

    name: str
    fault: Fault
    rounds: int
    rate: float
    seed: int
    shape: Shape

    @property
    def stall_aim_ms(self) -> float | None:
        """What a client's stall should stay below; None: below the stream's normal maximum."""
        # In a channel of one source stream a backup waits for nobody's decision: there is nothing to take over.
        return None if self.shape.streams_per_channel == 1 else self.fault.stall_aim_ms

    def days(self, feed: FeedLayout, feeds: Sequence[FeedLayout]) -> int:
        """How many days a feed has: one more than it has rounds, which the feeds take in turn."""
        place = [each.feed_id for each in feeds].index(feed.feed_id)
        return 1 + len(range(place, self.rounds, len(feeds)))

    @property
    def message_count(self) -> int:
        """So many messages a feed's source needs for all rounds."""
        per_round = self.fault.round_s + QUIET_S + QUIET_CHANCE_S
        seconds = (LEAD_S + QUIET_S + self.rounds * per_round) * SPARE_SHARE + SPARE_S
        if self.fault.needs_driver:
            seconds += 2 * AHEAD_S  # so that in the last round, too, Spark is not done
        return int(self.rate * seconds) + self.rounds * self.fault.round_messages


@dataclass(slots=True)
class DrillResult:
    """What came of it. Attributes: seen: by feed_id; row: the fault's row of the ledger."""

    rounds: list[Round]
    judged: list[RoundFigures]
    seen: Mapping[int, Seen]
    row: dict[str, Any]


@dataclass(slots=True)
class _Play:
    """While it runs."""

    rounds: list[Round] = field(default_factory=list)
    observed: Observed = field(default_factory=Observed)
    began_ns: int = 0
    ended_ns: int = 0


def why_not(fault: Fault) -> str:
    """Why a fault cannot be drilled here; empty if it can."""
    if fault.needs_network and (reason := why_no_network()):
        return reason
    if fault.needs_driver:
        try:
            find_java_home()
        except JavaMissing as missing:
            return str(missing)
    return why_no_small_disk() if fault.needs_small_disk else ""


def run_drill(plan: DrillPlan, folder: Path, say: Say) -> DrillResult:
    """All rounds of one fault.

    Raises:
        FaultUnavailable: it cannot be drilled here.
        ProcessFailed: the cluster did not do what it must, beyond losing messages (the ledger says that).
    """
    if reason := why_not(plan.fault):
        raise FaultUnavailable(reason)
    folder.mkdir(parents=True, exist_ok=True)
    say(f"{plan.name}: making {plan.message_count:,} messages")
    rows_per_file = DRIVER_ROWS_PER_FILE if plan.fault.needs_driver else ROWS_PER_FILE
    if plan.fault.has_days:
        rows_per_file = int(DAY_S * plan.rate)
    recording = make_recording(folder, source=None, message_count=plan.message_count, rows_per_file=rows_per_file)
    if plan.shape.channels > 1 or plan.shape.streams_per_channel > 2:
        recording = replace(recording, split="hash")  # letters are too uneven for many streams
    disk_size = DISK_SIZE_AT_FIRST + plan.rounds * DISK_SIZE_PER_ROUND if plan.fault.needs_small_disk else 0
    play = _Play()
    with _network(plan.shape) as network, Cluster(folder, plan.shape, network=network, disk_size=disk_size) as cluster:
        records = {feed.feed_id: folder / f"delivered{feed.suffix}" for feed in cluster.feeds}
        _start(plan, cluster, recording, records, say)
        _strike_in_rounds(plan, cluster, play, folder, say)
        sent = {feed.feed_id: _end(cluster, feed, plan.rate) for feed in cluster.feeds}
        days = {feed.feed_id: [*_earlier_days(cluster, feed), sent[feed.feed_id]] for feed in cluster.feeds}
        count = sum(sum(day.values()) for each in days.values() for day in each)
        say(f"sent {count:,} messages; judging what was delivered")
    expected = expected_content(recording.folder, recording.split, plan.shape.stream_count)
    seen = {feed_id: _load(records[feed_id], days[feed_id], expected) for feed_id in records}
    judged = judge_rounds(play.rounds, seen)
    observed = {name: getattr(play.observed, name) for name in ("lost", "duplicated", "out_of_order")}
    undisturbed_ms = undisturbed_stalls_ms(play.rounds, seen, play.began_ns, play.ended_ns)
    row = ledger_row(plan.name, judged, seen, observed, undisturbed_ms) | {"stall_aim_ms": plan.stall_aim_ms}
    return DrillResult(play.rounds, judged, seen, row)


@contextlib.contextmanager
def _network(shape: Shape) -> Iterator[Network | None]:
    """Hosts where they can be had; the faults that need them were refused before."""
    if why_no_network():
        yield None
        return
    with Network(host_names(shape)) as network:
        yield network


def _start(plan: DrillPlan, cluster: Cluster, recording: Recording, records: dict[int, Path], say: Say) -> None:
    """Everything up to a stream that flows."""
    messages_max = packet_size(plan.rate, plan.shape.stream_count)
    if not plan.fault.needs_driver:
        for feed in cluster.feeds:
            settings = cluster.folder / "cluster.toml"
            if plan.fault.has_days:
                journals = [cluster.journal(feed, day) for day in range(plan.days(feed, cluster.feeds))]
                prepare_days(recording, feed, settings, journals, messages_max)
            else:
                prepare_journal(recording, feed, settings, cluster.journal(feed), messages_max)
    start_cluster(cluster, plan.rate, records, verify=plan.fault.verify, through_days=plan.fault.has_days)
    if plan.fault.needs_driver:
        say("starting Spark")
        for feed in cluster.feeds:
            job = cluster.start_job(
                feed,
                recording.folder,
                split=recording.split,
                packet_messages_max=messages_max,
                ahead_batches_max=-(-int(AHEAD_S * plan.rate) // DRIVER_ROWS_PER_FILE),
            )
            job.await_event("ready", DRIVER_TIMEOUT_S)
        for feed in cluster.feeds:
            cluster.await_ahead(feed, int(AHEAD_AT_START_S * plan.rate))
    for feed in cluster.feeds:
        cluster.processes[feed.gateway].say("start")
    for feed in cluster.feeds:
        cluster.processes[feed.client].await_event("flowing", FLOW_TIMEOUT_S)
    say(f"{len(cluster.processes)} processes are ready; playing {plan.rate:,.0f} messages a second")
    cluster.hold(LEAD_S)


def _strike_in_rounds(plan: DrillPlan, cluster: Cluster, play: _Play, folder: Path, say: Say) -> None:
    chance = random.Random(plan.seed)
    play.began_ns = time.monotonic_ns()
    for number in range(1, plan.rounds + 1):
        cluster.hold(QUIET_S + chance.uniform(0, QUIET_CHANCE_S))
        feed = cluster.feeds[(number - 1) % len(cluster.feeds)]
        scene = Scene(cluster, feed, say, chance, plan.rate, folder, observed=play.observed)
        epochs_before = scene.watch.epochs_seen
        try:
            what = plan.fault.strike(scene)
        except ProcessFailed:
            cluster.check()  # whoever crashed is the better story
            raise
        times = (scene.struck_ns, scene.mended_ns, time.monotonic_ns())
        takeovers = scene.watch.epochs_seen - epochs_before
        play.rounds.append(Round(number, feed.feed_id, what, *times, takeovers, scene.touched_ns))
        say(f"round {number} of {plan.rounds}: {what}")
        for each in cluster.feeds:
            if cluster.processes[each.gateway].has_said("sent") and not plan.fault.has_days:
                raise ProcessFailed(
                    f"round {number} took so long that the source came to its end: this machine is too slow or busy "
                    "for the rate and the size of the cluster; give less (--rate, --backups, --channels, --feeds)"
                )
    cluster.hold(QUIET_S)
    play.ended_ns = time.monotonic_ns()


def _end(cluster: Cluster, feed: FeedLayout, rate: float) -> dict[int, int]:
    """Stop the source where it is and let the client end when it has all of it; what was sent per source stream."""
    if feed.job in cluster.processes:
        cluster.stop(feed.job)
    cluster.stop(feed.gateway)
    counts = sent_counts(cluster.journal(feed), feed)
    # Again, without being told to start: it tells the adapters where the streams stand and fills what they missed.
    cluster.start_gateway(feed, rate).await_event("ready", START_TIMEOUT_S)
    client = cluster.processes[feed.client]
    session = SESSION + cluster.days[feed.feed_id]
    client.say(json.dumps({"until": counts, "within_s": DELIVER_LIMIT_S, "session": session}))
    client.await_event("recorded", DELIVER_LIMIT_S + START_TIMEOUT_S)
    return counts


def _earlier_days(cluster: Cluster, feed: FeedLayout) -> list[dict[int, int]]:
    """What was sent per source stream on each day before the present one."""
    return [sent_counts(cluster.journal(feed, day), feed) for day in range(cluster.days[feed.feed_id])]


def _load(path: Path, sent_by_day: list[dict[int, int]], expected: dict[int, Any]) -> Seen:
    """What a client was delivered, each source message under its number in the whole recording."""
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
    return Seen(record, sent, content["stream"], content["source_seq"], times, wrong)


def _shift(
    rows: NDArray[Any], fields: tuple[str, ...], session: int, stream: int, by: int, *, key: str = "stream"
) -> None:
    chosen = (rows["session"] == session) & (rows[key] == stream)
    for name in fields:
        rows[name][chosen] += np.uint64(by)
