"""Checks that the active declares no message lost that a backup has reported to have (docs/protocol.md clause 4.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandemfeed.feedcore.replica.channel_state import PeerState
from tandemfeed.feedcore.replica.effects import RunsLost
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tests.simulation.checkers.content import Violation
from tests.simulation.plan import MS, Plan

if TYPE_CHECKING:
    from tests.simulation.adapter import AdapterActor

SIDE_BY_SIDE = (ReplicaState.SYNCHRONIZED, ReplicaState.DETACHED)


class LossChecker:
    """Remembers the newest state that each adapter received from each other one, in plans with one session."""

    def __init__(self, plan: Plan) -> None:
        self._give_up_ns = 2 * plan.timing.source_declare_after_ns - MS  # minus the possible drift of a clock
        self._heard: dict[tuple[int, int], dict[int, PeerState]] = {}  # by (adapter, life), then peer

    def on_peer_state(self, adapter: AdapterActor, state: PeerState) -> None:
        """An adapter receives the state of another one."""
        known = self._heard.setdefault((adapter.adapter_id, adapter.life), {})
        was = known.get(state.adapter_id)
        if was is None or (was.incarnation, was.report_id) < (state.incarnation, state.report_id):
            known[state.adapter_id] = state

    def on_lost(self, adapter: AdapterActor, lost: RunsLost, sent_at_ns: int, now_ns: int) -> None:
        """An active declares source messages lost. After twice the usual delay it may do so even if others have them.

        Args:
            sent_at_ns: when the source sent the first of them; no adapter could miss it earlier.
        """
        stream, first = lost.source_stream_id, lost.first_source_seq
        if now_ns - sent_at_ns >= self._give_up_ns:
            return
        for peer, state in self._heard.get((adapter.adapter_id, adapter.life), {}).items():
            for channel in state.channels:
                is_same = channel.channel_id == lost.channel_id
                if is_same and channel.state in SIDE_BY_SIDE and channel.available_source_seqs.get(stream, 0) > first:
                    text = (
                        f"{adapter.name} declares source {stream} {first} lost, but adapter {peer} reported to have it"
                    )
                    raise Violation("losses", text)
