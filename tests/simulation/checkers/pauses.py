"""Checks that no process is judged for a pause of the judge's own process (docs/protocol.md clause 11).

It checks only plans in which processes are paused one at a time and nothing else happens (`Plan.has_lone_pauses`): then
an active that is taken for silent must really transmit nothing, and a holder whose term passes must have been paused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandemfeed.admin_server.lease.takeovers import TakeoverReason
from tandemfeed.feedcore.replica.effects import RunsLost, StateMoved
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.output_packet import FROM_ACTIVE_BIT, OutputPacket
from tests.simulation.checkers.content import Violation
from tests.simulation.plan import MS, FaultKind, Plan
from tests.simulation.world import START_NS

if TYPE_CHECKING:
    from tests.simulation.adapter import AdapterActor

SLACK_NS = 20 * MS  # for messages on their way
SILENT = (ReplicaState.DETACHED, ReplicaState.AHEAD)


class PauseChecker:
    """Checks one run."""

    def __init__(self, plan: Plan) -> None:
        self._term_ns = 2 * plan.timing.lease_ttl_ns
        self._unsilent_ns = 2 * plan.timing.heartbeat_interval_ns + SLACK_NS
        self._unnoticed_at_ns = -1
        # When each adapter last transmitted as active, by session: an adapter that still has to end a former session
        # hears the active only there.
        self._active_sent_at_ns: dict[tuple[str, int], int] = {}
        self._paused: dict[str, list[tuple[int, int]]] = {}  # process -> when it was paused, and resumed
        for fault in plan.faults:
            if fault.kind is FaultKind.PAUSE:
                begin_ns = START_NS + fault.at_ns
                self._paused.setdefault(fault.whom, []).append((begin_ns, begin_ns + fault.length_ns))

    def on_transmit(self, adapter: AdapterActor, packet: OutputPacket, now_ns: int) -> None:
        """An adapter transmits a packet."""
        if packet.flags & FROM_ACTIVE_BIT:
            self._active_sent_at_ns[adapter.name, packet.session] = now_ns

    def on_moved(self, adapter: AdapterActor, moved: StateMoved, now_ns: int) -> None:
        """A channel changed its state. A backup detaches only if no active transmits."""
        if moved.new not in SILENT or moved.old is ReplicaState.ACTIVE:
            return
        for (name, session), sent_at_ns in self._active_sent_at_ns.items():
            is_heard = session == adapter.engine.session and now_ns - sent_at_ns < self._unsilent_ns
            if name != adapter.name and is_heard:
                ago_ms = (now_ns - sent_at_ns) / MS
                text = (
                    f"{adapter.name} moves to {moved.new.value}, but {name} transmitted as active {ago_ms:.1f} ms ago"
                )
                raise Violation("pauses", text)

    def on_unnoticed(self, now_ns: int) -> None:
        """The store was paused, and is so little late that it cannot know."""
        self._unnoticed_at_ns = now_ns

    def on_vacated(self, epoch: int, reason: str, holder: AdapterActor | None, now_ns: int) -> None:
        """A lease ended at the store. Its term passes only because the holder was paused, or has itself stopped."""
        if reason != TakeoverReason.TERM_PASSED or holder is None or self._was_away(holder.name, now_ns):
            return
        if now_ns == self._unnoticed_at_ns:
            return
        if holder.engine.lease.epoch == epoch and holder.engine.lease.may_transmit(holder.clock_ns()):
            raise Violation(
                "pauses", f"the term of {holder.name} passed, but it was not paused and relies on its lease"
            )

    def on_failed(self, adapter: AdapterActor, reason: str) -> None:
        """An adapter was failed; none contradicts the others because of a pause."""
        raise Violation("pauses", f"{adapter.name} was failed: {reason}")

    def on_lost(self, adapter: AdapterActor, lost: RunsLost) -> None:
        """Source messages were declared lost; the source journal has all of them."""
        raise Violation("pauses", f"{adapter.name} declares messages of source {lost.source_stream_id} lost")

    def _was_away(self, name: str, now_ns: int) -> bool:
        """True if the process was paused, or what followed from that may not be over."""
        return any(
            begin_ns <= now_ns <= end_ns + self._term_ns + SLACK_NS for begin_ns, end_ns in self._paused.get(name, ())
        )
