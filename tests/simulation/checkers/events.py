"""Checks that events come and gaps are justified, for one channel of one client (docs/protocol.md clause 7).

The checker sees what the client receives and what its merger hands over. `Takeover`, `Stale`, `Live`, `Diverged` and
`Filled` must come when they are due, and a `Gap` may name only messages that the client did not receive, although it
waited long enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tandemfeed.feedcore.merge.effects import (
    Deliver,
    Diverged,
    Filled,
    Gap,
    Live,
    MergeEffect,
    SourceGap,
    Stale,
    Takeover,
)
from tandemfeed.feedcore.wire.lineage import Lineage, decode_lineage
from tandemfeed.feedcore.wire.output_packet import (
    ANNOUNCEMENT_BIT,
    HEARTBEAT_BIT,
    PROVISIONAL_BIT,
    RETRANSMISSION_BIT,
    OutputPacket,
)
from tests.simulation.checkers.content import PacketReader, Violation
from tests.simulation.plan import MS

if TYPE_CHECKING:
    from tandemfeed.feedcore.merge.sessions import SessionMerger

NOT_NUMBERED_BITS = HEARTBEAT_BIT | PROVISIONAL_BIT | ANNOUNCEMENT_BIT
Copy: TypeAlias = tuple[int, int, bytes]  # epoch, end_input_seq, payload
STALE_AFTER_NS = 200 * MS


@dataclass(frozen=True, slots=True)
class Heard:
    """The input sequence numbers `first` to `end - 1` of an epoch became known; `is_here`: with their messages."""

    epoch: int
    first: int
    end: int
    at_ns: int
    is_here: bool


class EventChecker:
    """Checks one channel of one client, in plans with one session.

    Args:
        declare_after_ns: how long the client waits before it declares a gap.
        is_confirming: the client holds back unconfirmed copies; another checker covers them.
    """

    def __init__(
        self, name: str, merger: SessionMerger, reader: PacketReader, declare_after_ns: int, *, is_confirming: bool
    ) -> None:
        self._name, self._merger, self._reader = name, merger, reader
        self._declare_after_ns, self._is_confirming = declare_after_ns, is_confirming
        self._lineage = Lineage()  # the newest received
        self._newest_packet_epoch = 0
        self._heard_at_ns: dict[int, int] = {}
        self._live: set[int] = set()
        self._heard: list[Heard] = []
        self._delivered: dict[int, Copy] = {}  # by first_input_seq
        self._held: dict[int, Copy] = {}
        self._diverged: set[int] = set()  # first_input_seqs with a `Diverged`, which comes only once
        self._gaps: list[tuple[int, int]] = []
        self._had: set[tuple[int, int]] = set()  # source identities handed over
        self._owed: list[str] = []  # events that must come in this turn
        self._owed_fill: set[tuple[int, int]] = set()

    # ---- what the client receives ----

    def on_packet(self, packet: OutputPacket, now_ns: int) -> None:
        """A packet is about to be given to the merger."""
        if not packet.flags & RETRANSMISSION_BIT:
            self._heard_at_ns[packet.adapter_id] = now_ns
            if packet.adapter_id not in self._live:
                self._owed.append(f"Live {packet.adapter_id}")
        if packet.flags & HEARTBEAT_BIT:
            lineage = decode_lineage(packet.payload)
            begin = lineage.first_input_seq  # a heartbeat announces all messages before its epoch
            self._heard.append(Heard(packet.epoch, begin, begin, now_ns, is_here=False))
            if lineage.epoch > self._lineage.epoch:
                if self._lineage.epoch:
                    self._owed.append(f"Takeover {lineage.epoch}")
                self._lineage = lineage
        if not packet.flags & (PROVISIONAL_BIT | ANNOUNCEMENT_BIT):
            is_here = not packet.flags & HEARTBEAT_BIT
            first = packet.first_input_seq
            self._heard.append(Heard(packet.epoch, first, packet.end_input_seq, now_ns, is_here))
        if not packet.flags & NOT_NUMBERED_BITS:
            self._newest_packet_epoch = max(self._newest_packet_epoch, packet.epoch)
            is_judged = (
                packet.epoch
                == self._merger.present.lineage.epoch
                == max(self._lineage.epoch, self._newest_packet_epoch)
            )
            if is_judged and not self._is_confirming and self._merger.present.next_input_seq is not None:
                self._compare(packet)
                self._expect_fill(packet)

    def _compare(self, packet: OutputPacket) -> None:
        """Expect `Diverged` if a copy differs from the delivered or the held packet."""
        first, own = packet.first_input_seq, _copy_of(packet)
        is_early = first > (self._merger.present.next_input_seq or 0)
        known = self._held.setdefault(first, own) if is_early else self._delivered.get(first, own)
        if known != own and known[:2] == own[:2] and first not in self._diverged:
            self._owed.append("Diverged")

    def _expect_fill(self, packet: OutputPacket) -> None:
        if not any(first < packet.end_input_seq and packet.first_input_seq < end for first, end in self._gaps):
            return
        for input_seq, found in enumerate(self._reader.inputs(packet), packet.first_input_seq):
            identity = found.source_stream_id, found.source_seq
            is_named = any(first <= input_seq < end for first, end in self._gaps)
            if is_named and found.bodies and identity not in self._had:
                self._owed_fill.add(identity)

    # ---- what the merger hands over ----

    def on_effect(self, effect: MergeEffect, now_ns: int) -> None:
        """The merger hands over an effect."""
        match effect:
            case Deliver(packet) | Filled(packet):
                if isinstance(effect, Deliver) and not packet.flags & PROVISIONAL_BIT:
                    self._delivered[packet.first_input_seq] = _copy_of(packet)
                    self._must_count(packet)
                self._had.update((each.source_stream_id, each.source_seq) for each in self._reader.inputs(packet))
            case SourceGap(_, stream, first, last):  # the answer to a gap that had contained the source gap's message
                self._had.update((stream, source_seq) for source_seq in range(first, last + 1))
            case Takeover():
                self._settle(f"Takeover {effect.epoch}")
                self._delivered.clear()
                self._held.clear()
                self._diverged.clear()
                cut = effect.resume_input_seq
                self._gaps = [(first, min(end, cut)) for first, end in self._gaps if first < cut]
            case Live():
                self._settle(f"Live {effect.adapter_id}")
                self._live.add(effect.adapter_id)
            case Stale():
                silent_ns = now_ns - self._heard_at_ns.get(effect.adapter_id, 0)
                if silent_ns < STALE_AFTER_NS:
                    raise Violation("events", f"{self._name}: {effect} after {silent_ns / MS:.1f} ms")
                self._live.discard(effect.adapter_id)
            case Diverged():
                self._owed = [each for each in self._owed if each != "Diverged"]
                self._diverged.add(effect.first_input_seq)
            case Gap():
                self._judge(effect, now_ns)
            case _:
                pass

    def _must_count(self, packet: OutputPacket) -> None:
        if packet.end_input_seq > self._lineage.end_of(packet.epoch):
            where = f"{packet.first_input_seq}..{packet.end_input_seq - 1} of epoch {packet.epoch}"
            raise Violation("events", f"{self._name} got {where}, which is not in {self._lineage.entries}")

    def _settle(self, event: str) -> None:
        if event in self._owed:
            self._owed.remove(event)

    def _judge(self, gap: Gap, now_ns: int) -> None:
        first, end = gap.first_input_seq, gap.end_input_seq
        if not first:
            return  # the start of the subscription was not found
        self._gaps.append((first, end))
        end_of = self._merger.present.lineage.end_of
        for heard in self._heard if not self._is_confirming else ():
            if heard.is_here and heard.first < end and min(heard.end, end_of(heard.epoch)) > first:
                raise Violation("events", f"{self._name}: {gap}, although it received {heard}")
        known_at_ns = min((heard.at_ns for heard in self._heard if heard.end >= end), default=now_ns)
        if now_ns - known_at_ns < self._declare_after_ns:
            text = f"{self._name}: {gap} only {(now_ns - known_at_ns) / MS:.0f} ms after it became known"
            raise Violation("events", text)

    # ---- the end of a turn ----

    def at_end_of_turn(self, now_ns: int, *, is_timer: bool) -> None:
        """The merger has handed over everything that was due."""
        if self._owed:
            raise Violation("events", f"{self._name} did not get the event {self._owed[0]}")
        if missing := self._owed_fill - self._had:
            raise Violation("events", f"{self._name} did not get {sorted(missing)}, which fill a gap")
        self._owed_fill.clear()
        for adapter_id in self._live if is_timer else ():
            if now_ns - self._heard_at_ns[adapter_id] > STALE_AFTER_NS + MS:
                raise Violation("events", f"{self._name} did not get `Stale` for silent adapter {adapter_id}")


def _copy_of(packet: OutputPacket) -> Copy:
    return packet.epoch, packet.end_input_seq, packet.payload
