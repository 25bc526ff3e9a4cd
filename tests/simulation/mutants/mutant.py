"""Faults planted in the cores, to prove that the simulator finds faults: each a small change of one method at run time.

For tests only. A mutant that no seed of its budget kills means that a checker sees nothing or that no plan leads there:
that is a fault of the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from admin_server.lease_core import FeedLease, Granted
from feedcore.lease.lease_view import LeaseView
from feedcore.merge.gap_repair import GapRepair
from feedcore.merge.history_gate import HistoryGate
from feedcore.merge.merger import StreamMerger
from feedcore.replica.channel import Channel
from feedcore.replica.deciding import Deciding
from feedcore.replica.decision_intake import DecisionIntake
from feedcore.replica.effects import AppendToJournal, Transmit
from feedcore.replica.following import Following
from feedcore.replica.production import ProductionLine
from feedcore.replica.role import ToDeciding
from feedcore.replica.source_tracker import SourceTracker
from feedcore.replica.states import ReplicaState
from feedcore.wire.lineage import UNLIMITED
from feedcore.wire.output_packet import OutputFlag
from tests.simulation.drawing import draw_plan
from tests.simulation.running import Verdict, judge

Method = Callable[..., Any]
FOR_EVER_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted fault.

    Attributes:
        what: what the core does wrong now.
        owner, method: what is replaced.
        change: makes the wrong method from the right one.
        seed_count_max: how many seeds may pass before one of them must have caught it.
    """

    what: str
    owner: type
    method: str
    change: Callable[[Method], Method]
    seed_count_max: int

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The fault is there inside the block."""
        right = self.owner.__dict__[self.method]
        setattr(self.owner, self.method, self.change(right))
        try:
            yield
        finally:
            setattr(self.owner, self.method, right)


def hunt(mutant: Mutant, first: int = 0) -> tuple[int, Verdict | None]:
    """Run seeds with the fault planted; returns how many it took, and how it was caught (None: not)."""
    with mutant.planted():
        for seed in range(first, first + mutant.seed_count_max):
            verdict = judge(draw_plan(seed))
            if verdict is not None:
                return seed - first + 1, verdict
    return mutant.seed_count_max, None


# ---- what is wrong in each ----


def _always(value: object) -> Callable[[Method], Method]:
    return lambda right: lambda *arguments, **named: value


def _forgets_sources(right: Method) -> Method:
    def deliver(self: StreamMerger, *arguments: Any) -> None:
        right(self, *arguments)
        self.next_source_seqs.clear()

    return deliver


def _never_ends(right: Method) -> Method:
    return lambda self, epoch, valid_until_ns, now_ns: right(self, epoch, FOR_EVER_NS, now_ns)


def _counts_from_now(right: Method) -> Method:
    def on_granted(self: LeaseView, epoch: int, valid_until_ns: int, now_ns: int) -> bool:
        return bool(right(self, epoch, max(valid_until_ns, now_ns + 4 * self._renew_every_ns), now_ns))

    return on_granted


def _keeps_its_counter(right: Method) -> Method:
    def install(self: ProductionLine, snapshot: Any) -> None:
        counter = self.next_input_seq
        right(self, snapshot)
        self.next_input_seq = counter

    return install


def _twice(right: Method) -> Method:
    def accept(self: DecisionIntake, run: Any) -> None:
        right(self, run)
        self.ready.append(run)

    return accept


def _decides_as_backup(right: Method) -> Method:
    def on_slices(self: Following, stream: int, slices: Any, effects: list[Any], now_ns: int) -> Any:
        if self.channel.state is not ReplicaState.SYNCHRONIZED:
            return right(self, stream, slices, effects, now_ns)
        decider = Deciding(self.channel, ToDeciding(self.channel.line.epoch))
        return decider.on_slices(stream, slices, effects, now_ns)

    return on_slices


def _has_no_patience(right: Method) -> Method:
    def lost(self: SourceTracker, now_ns: int) -> tuple[int, int] | None:
        holes = self.missing() if self._gap_since_ns is not None else []
        return holes[0] if holes else None

    return lost


def _off_by_one(right: Method) -> Method:
    def snapshot(self: ProductionLine) -> Any:
        found = right(self)
        for stream in found.position.next_source_seqs:
            found.position.next_source_seqs[stream] += 1
        return found

    return snapshot


def _reuses_the_epoch(right: Method) -> Method:
    def consider(self: FeedLease, now_ns: int) -> Any:
        decisions = right(self, now_ns)
        if decisions and self.epoch > 1:
            self.epoch -= 1
            return [Granted(self.holder, self.epoch)]
        return decisions

    return consider


def _forgets_reservations(right: Method) -> Method:
    def restore(self: FeedLease, epoch: int, *arguments: Any, **named: Any) -> None:
        right(self, epoch, *arguments, **{**named, "next_epoch": epoch + 1})

    return restore


def _transmits_first(right: Method) -> Method:
    def decide(self: Deciding, piece: Any, effects: list[Any], now_ns: int) -> None:
        place = len(effects)
        right(self, piece, effects, now_ns)
        effects[place:] = sorted(effects[place:], key=lambda effect: isinstance(effect, AppendToJournal))
        assert isinstance(effects[place], Transmit)

    return decide


def _says_the_end_early(right: Method) -> Method:
    def heartbeat(self: Channel, *arguments: Any) -> Transmit:
        packet = right(self, *arguments).packet
        return Transmit(packet._replace(flags=packet.flags | OutputFlag.END_OF_STREAM))

    return heartbeat


MUTANTS = (
    Mutant("the client forgets which source messages it delivered", StreamMerger, "_deliver", _forgets_sources, 300),
    Mutant("the client takes packets of epochs that ended", HistoryGate, "end_of", _always(UNLIMITED), 1_500),
    Mutant("the client gives a hole up at once", GapRepair, "is_hopeless", _always(True), 50),
    Mutant("the client is deaf for heartbeats", StreamMerger, "_on_heartbeat", _always(None), 20),
    Mutant("a lease never ends at its holder", LeaseView, "on_granted", _never_ends, 300),
    Mutant("a grant counts from when it was heard", LeaseView, "on_granted", _counts_from_now, 1_500),
    Mutant("the counter is not set with a snapshot", ProductionLine, "install", _keeps_its_counter, 50),
    Mutant("a snapshot's position is one too far", ProductionLine, "snapshot", _off_by_one, 50),
    Mutant("a decision is applied twice", DecisionIntake, "_accept", _twice, 20),
    Mutant("a backup decides by itself", Following, "on_slices", _decides_as_backup, 20),
    Mutant("a source gap is declared at once", SourceTracker, "lost", _has_no_patience, 50),
    Mutant("a source gap is never declared", SourceTracker, "lost", _always(None), 100),
    Mutant("a packet is journalled after it is transmitted", Deciding, "_decide", _transmits_first, 20),
    Mutant("the end is said before it came", Channel, "heartbeat", _says_the_end_early, 50),
    Mutant("digests are not compared", Following, "compare", _always(None), 1_500),
    Mutant("the lease store grants an epoch again", FeedLease, "_consider", _reuses_the_epoch, 100),
    Mutant("a restored store forgets reserved epochs", FeedLease, "restore", _forgets_reservations, 1_000),
)
