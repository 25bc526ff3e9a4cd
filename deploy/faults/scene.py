"""What a fault function gets into its hands: the cluster, the feed it is to hurt, and the marks it must set."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from client_lib.stream_trust import VerifyMode
from deploy.cluster import START_TIMEOUT_S, Cluster
from deploy.cluster_watch import ClusterWatch
from deploy.network import Network
from deploy.processes import ManagedProcess
from deploy.topology import FeedLayout

Say: TypeAlias = Callable[[str], None]

WHOLE_TIMEOUT_S = 40.0  # a process starts in some 3 s; connections that were cut are found dead within 7 s
TAKEOVER_TIMEOUT_S = 30.0
AFTERMATH_S = 1.0  # of play between a fault's effect and its mending: the stall is measured without what mending costs
AHEAD_PATIENCE_S = 20.0  # for more than what must be
AHEAD_AT_STRIKE_S = 15.0  # of play in the source journal: a new driver has its first micro-batch done after some 10 s


class FaultUnavailable(Exception):
    """The fault cannot be drilled here; the text says why."""


@dataclass(slots=True)
class Observed:
    """Source messages that another client than the feed's own missed, got twice, or in the wrong order."""

    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0


@dataclass(slots=True)
class Scene:
    """One round.

    Attributes:
        feed: which one is struck.
        chance: draws whatever the fault leaves open.
        rate: messages a second that the gateway sends.
        folder: for files of the round.
        struck_ns, mended_ns: when the fault began, and when mending it began (monotonic clock).
        touched_ns: when anything was first done, if that was before the strike; the stream is not undisturbed then.
    """

    cluster: Cluster
    feed: FeedLayout
    say: Say
    chance: random.Random
    rate: float
    folder: Path
    struck_ns: int = 0
    mended_ns: int = 0
    touched_ns: int = 0
    observed: Observed = field(default_factory=Observed)

    @property
    def watch(self) -> ClusterWatch:
        """On the feed."""
        return self.cluster.watches[self.feed.feed_id]

    @property
    def network(self) -> Network:
        """Whose links can be cut."""
        network = self.cluster.network
        assert network is not None, "a fault that needs hosts is drilled with hosts only"
        return network

    def adapter(self, name: str) -> ManagedProcess:
        """The process of an adapter."""
        return self.cluster.processes[self.feed.adapter(name)]

    def others(self, name: str) -> list[str]:
        """The processes (and hosts) of the feed's other adapters."""
        return [self.feed.adapter(each) for each in self.cluster.shape.adapter_names if each != name]

    def any_backup(self) -> str:
        """One of the backups, by chance."""
        return self.chance.choice(self.watch.backups)

    def strike(self, what: str) -> None:
        """Mark the beginning of the fault; call it right before."""
        self.say(f"feed {self.feed.name}: {what}")
        self.struck_ns = time.monotonic_ns()

    def touch(self) -> None:
        """Mark the beginning of what disturbs the stream and is not the fault yet; call it right before."""
        self.touched_ns = time.monotonic_ns()

    def mend(self) -> None:
        """Mark the beginning of mending; call it right before."""
        self.mended_ns = time.monotonic_ns()

    def hold(self, seconds: float) -> None:
        """Let the fault, or its aftermath, last."""
        self.cluster.hold(seconds)

    def await_whole(self) -> None:
        """Until one adapter is active and all others are synchronised.

        An unhealthy backup may have left the group, as it must: it is readmitted, as an operator would do.
        """
        watch = self.watch
        what = "one active, the others synchronised or failed"
        watch.wait_for(lambda: watch.is_whole or bool(watch.failed), WHOLE_TIMEOUT_S, what)
        for name in watch.failed:
            self.say(f"feed {self.feed.name}: adapter {name} was failed; readmitting it")
            self.cluster.readmit(self.feed, name)
        watch.await_whole(WHOLE_TIMEOUT_S)

    def await_ahead(self, at_best_s: float = 0.0) -> None:
        """Until Spark may be away for some seconds of play without the source's standing still, or has numbered all.

        Args:
            at_best_s: of play; so far ahead it should be, if it gets there within a while.
        """
        self.cluster.await_ahead(self.feed, int(AHEAD_AT_STRIKE_S * self.rate))
        if at_best_s:
            self.cluster.gets_ahead(self.feed, int(at_best_s * self.rate), AHEAD_PATIENCE_S)

    def await_takeover(self, victim: str, epoch: int) -> str:
        """Until another adapter than the victim is active in a later epoch; its name."""
        watch = self.watch
        watch.wait_for(
            lambda: watch.active not in ("", victim) and watch.epoch > epoch, TAKEOVER_TIMEOUT_S, "a takeover"
        )
        return watch.active

    def await_back(self, victim: str) -> None:
        """Until the adapter is a synchronised backup again, and everything whole."""
        watch = self.watch
        watch.wait_for(
            lambda: watch.states.get(victim) in ("synchronized", "failed"),
            WHOLE_TIMEOUT_S,
            f"adapter {victim} back as backup",
        )
        self.await_whole()

    def restart_adapter(self, name: str) -> None:
        """Start an adapter that has ended, and wait until it serves."""
        self.cluster.start_adapter(self.feed, name).await_event("ready", START_TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that can be drilled.

    Attributes:
        text: what happens in a round, in a line.
        round_s: seconds of play that a round needs at most, for the fault and for what follows it.
        round_messages: messages that a round needs besides.
        stall_aim_ms: what a client's stall should stay below; None: below the stream's normal maximum.
        needs_network: links are cut or lose packets.
        needs_driver: Spark's driver is to be at work; otherwise the source plays a journal prepared in advance.
        needs_small_disk: adapters' journals have disks of their own.
        verify: what the feed's client asks for.
        has_days: the source has a day, a session of its own, for each round and one more.
    """

    strike: Callable[[Scene], str]
    text: str
    round_s: float
    round_messages: int = 0
    stall_aim_ms: float | None = None
    needs_network: bool = False
    needs_driver: bool = False
    needs_small_disk: bool = False
    verify: VerifyMode = "alarm"
    has_days: bool = False
