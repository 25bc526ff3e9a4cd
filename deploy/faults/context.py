"""What a fault function works with: the cluster, the feed, and the times it must mark."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from tandemfeed.client_lib.stream.trust.stream_trust import VerifyMode
from tandemfeed.deploy.cluster.cluster import START_TIMEOUT_S, Cluster
from tandemfeed.deploy.cluster.cluster_watch import ClusterWatch
from tandemfeed.deploy.cluster.network import Network
from tandemfeed.deploy.cluster.processes import ManagedProcess
from tandemfeed.deploy.cluster.topology import FeedLayout

Say: TypeAlias = Callable[[str], None]

HEALTHY_TIMEOUT_S = (
    90.0  # a process starts in about 3 s, on an overloaded machine in 60; a cut connection is detected within 7 s
)
TAKEOVER_TIMEOUT_S = 30.0
AFTERMATH_S = 1.0  # of play between a fault's effect and its repair, so that the repair's cost is not in the stall
AHEAD_EXTRA_TIMEOUT_S = 20.0
AHEAD_AT_FAULT_S = 15.0  # of play in the source journal; a new driver takes about 10 s for its first micro-batch


class FaultUnavailable(Exception):
    """The fault cannot be injected on this machine; the text says why."""


@dataclass(slots=True)
class Observed:
    """Source messages that a second client missed, received twice, or received out of order."""

    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0


@dataclass(slots=True)
class FaultContext:
    """One round.

    Attributes:
        feed: the feed that gets the fault.
        say: prints a line of progress.
        chance: makes the fault's random choices.
        rate: messages per second that the gateway sends.
        folder: for files of the round.
        fault_at_ns: when the fault began (monotonic clock).
        repair_at_ns: when its repair began.
        disturbed_at_ns: when the stream was first disturbed, if that was before the fault.
        observed: what a second client observed.
    """

    cluster: Cluster
    feed: FeedLayout
    say: Say
    chance: random.Random
    rate: float
    folder: Path
    fault_at_ns: int = 0
    repair_at_ns: int = 0
    disturbed_at_ns: int = 0
    observed: Observed = field(default_factory=Observed)

    @property
    def watch(self) -> ClusterWatch:
        """The watch on the feed."""
        return self.cluster.watches[self.feed.feed_id]

    @property
    def network(self) -> Network:
        """The network of the cluster, whose links can be cut."""
        network = self.cluster.network
        assert network is not None, "faults that need a network are refused without one"
        return network

    def adapter(self, name: str) -> ManagedProcess:
        """The process of an adapter."""
        return self.cluster.processes[self.feed.adapter(name)]

    def others(self, name: str) -> list[str]:
        """The processes (and hosts) of the feed's other adapters."""
        return [self.feed.adapter(each) for each in self.cluster.shape.adapter_names if each != name]

    def any_backup(self) -> str:
        """A random backup."""
        return self.chance.choice(self.watch.backups)

    def mark_fault(self, what: str) -> None:
        """Mark the time of the fault; call this immediately before injecting it."""
        self.say(f"feed {self.feed.name}: {what}")
        self.fault_at_ns = time.monotonic_ns()

    def mark_disturbance(self) -> None:
        """Mark the time of a disturbance that precedes the fault; call this immediately before it."""
        self.disturbed_at_ns = time.monotonic_ns()

    def mark_repair(self) -> None:
        """Mark the time of the repair; call this immediately before it."""
        self.repair_at_ns = time.monotonic_ns()

    def run_for(self, seconds: float) -> None:
        """Let the cluster run for some seconds."""
        self.cluster.run_for(seconds)

    def await_healthy(self) -> None:
        """Wait until one adapter is active and all others are synchronised.

        A backup that left the group because it was unhealthy is readmitted, as an operator would do.
        """
        watch = self.watch
        what = "one active, the others synchronised or failed"
        watch.wait_for(lambda: watch.is_healthy or bool(watch.failed), HEALTHY_TIMEOUT_S, what)
        for name in watch.failed:
            self.say(f"feed {self.feed.name}: adapter {name} left the group as failed; readmitting it")
            self.cluster.readmit(self.feed, name)
        watch.await_healthy(HEALTHY_TIMEOUT_S)

    def await_ahead(self, at_best_s: float = 0.0) -> None:
        """Wait until Spark is far enough ahead to be away without stopping the source, or has numbered everything.

        Args:
            at_best_s: seconds of play to be ahead if Spark gets there within `AHEAD_EXTRA_TIMEOUT_S`.
        """
        self.cluster.await_ahead(self.feed, int(AHEAD_AT_FAULT_S * self.rate))
        if at_best_s:
            self.cluster.wait_until_ahead(self.feed, int(at_best_s * self.rate), AHEAD_EXTRA_TIMEOUT_S)

    def await_takeover(self, victim: str, epoch: int) -> str:
        """Wait until another adapter is active in a later epoch; returns its name."""
        watch = self.watch
        watch.wait_for(
            lambda: watch.active not in ("", victim) and watch.epoch > epoch, TAKEOVER_TIMEOUT_S, "a takeover"
        )
        return watch.active

    def await_back(self, victim: str) -> None:
        """Wait until the adapter is a synchronised backup again and the feed is healthy."""
        watch = self.watch
        watch.wait_for(
            lambda: watch.states.get(victim) in ("synchronized", "failed"),
            HEALTHY_TIMEOUT_S,
            f"adapter {victim} back as backup",
        )
        self.await_healthy()

    def restart_adapter(self, name: str) -> None:
        """Start an adapter that has ended, and wait until it is ready."""
        self.cluster.start_adapter(self.feed, name).await_event("ready", START_TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that a drill can inject.

    Attributes:
        inject: runs one round and returns a description of what it did.
        text: what happens in a round, in one line.
        round_s: seconds of play that a round needs at most, for the fault and the recovery.
        round_messages: messages that a round needs in addition.
        stall_aim_ms: the goal for a client's longest stall; None: the longest pause of the undisturbed stream.
        needs_network: the fault cuts links or drops packets.
        needs_driver: the Spark driver must be running; otherwise the gateway plays a journal prepared in advance.
        needs_small_disk: each adapter's journal has its own small disk.
        verify: verification mode of the feed's client.
        day_s: the source has one day, with its own session, per round and one more; seconds of play of each but the
            last, which lasts as long as the drill; 0: all is one day.
    """

    inject: Callable[[FaultContext], str]
    text: str
    round_s: float
    round_messages: int = 0
    stall_aim_ms: float | None = None
    needs_network: bool = False
    needs_driver: bool = False
    needs_small_disk: bool = False
    verify: VerifyMode = "alarm"
    day_s: float = 0.0

    @property
    def has_days(self) -> bool:
        """Whether the source has several days."""
        return self.day_s > 0
