"""Checks that a planned hand-over is seamless (docs/protocol.md clause 6.6): the heir starts where the old active
ended, unless it has waited in vain for the messages before that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tests.simulation.checkers.content import Violation
from tests.simulation.plan import MS

if TYPE_CHECKING:
    from tandemfeed.feedcore.replica.effects import StateMoved
    from tests.simulation.adapter import AdapterActor


class HandOverChecker:
    """Compares where released epochs ended and where the next ones started."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, int], tuple[int, int, int]] = {}  # (session, channel): epoch, its end, when
        self._offered_after: dict[int, int] = {}  # offered epoch -> previous epoch

    def on_offered(self, epoch: int, after_epoch: int) -> None:
        """The store offers an epoch to an heir."""
        self._offered_after[epoch] = after_epoch

    def on_granted(self, epoch: int) -> None:
        """The store grants an epoch directly: the previous holder is gone, so where it ended no longer matters."""
        self._offered_after.pop(epoch, None)

    def on_moved(self, adapter: AdapterActor, moved: StateMoved, now_ns: int) -> None:
        """A channel of an adapter changes its state."""
        channel, line = (adapter.engine.session, moved.channel_id), adapter.engine.replicas[moved.channel_id].line
        if moved.old is ReplicaState.ACTIVE and moved.new is ReplicaState.SYNCHRONIZED:
            self._ends[channel] = line.epoch, line.next_input_seq, now_ns
        if moved.new is not ReplicaState.ACTIVE or channel not in self._ends:
            return
        epoch, end, at_ns = self._ends[channel]
        patience_ns = adapter.engine.config.replica.promotion_patience_ns - MS
        is_heir = self._offered_after.get(adapter.engine.lease.epoch) == epoch
        if is_heir and line.lineage.first_input_seq < end and now_ns - at_ns < patience_ns:
            begin = line.lineage.first_input_seq
            raise Violation("hand-over", f"{adapter.name} starts epoch {line.epoch} at {begin}; {epoch} ended at {end}")
