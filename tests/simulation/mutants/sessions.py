"""Faults in session changes: when adapters and clients move on, and the state that the new session starts with."""

from __future__ import annotations

from typing import Any

from tandemfeed.feedcore.merge.sessions import SessionMerger
from tandemfeed.feedcore.replica.config import SessionState
from tandemfeed.feedcore.replica.input.source_tracker import SourceTracker
from tandemfeed.feedcore.replica.replica import ChannelReplica
from tandemfeed.feedcore.replica.sessions import SessionReplicas, Sessions
from tests.simulation.mutants.mutant import Method, Mutant, always


def _leaves_when_it_learns_of_the_next(right: Method) -> Method:
    def may_leave_for(self: Sessions, coming: SessionReplicas, epoch: int, *arguments: Any) -> bool:
        return coming.adapter_heard_at_ns is not None if not epoch else bool(right(self, coming, epoch, *arguments))

    return may_leave_for


def _ends_incomplete_sessions(right: Method) -> Method:
    def may_leave_for(self: Sessions, coming: SessionReplicas, epoch: int, *arguments: Any) -> bool:
        return True if epoch else bool(right(self, coming, epoch, *arguments))

    return may_leave_for


def _carries_state_despite_reset(right: Method) -> Method:
    def state_to_begin_with(self: Sessions, channel_id: int, epoch: int) -> bytes | None:
        if self._config.session_state is SessionState.RESET:
            return self._converters[channel_id].snapshot()
        found: bytes | None = right(self, channel_id, epoch)
        return found

    return state_to_begin_with


def _accepts_any_session(_: Method) -> Method:
    def hear(self: Sessions, session: int, now_ns: int) -> SessionReplicas:
        return self.current

    return hear


SESSIONS = (
    Mutant(
        "a backup leaves a session that it has not applied completely",
        Sessions,
        "_may_leave_for",
        _leaves_when_it_learns_of_the_next,
        killer="tests.feedcore.replica.test_changing_the_session:test_a_backup_that_lacks_the_end_applies_it_first",
    ),
    Mutant("the active leaves a session that has not ended", Sessions, "_may_leave_for", _ends_incomplete_sessions),
    Mutant(
        "a session starts with the state of the previous one",
        Sessions,
        "_state_to_begin_with",
        _carries_state_despite_reset,
    ),
    Mutant("the final heartbeat of a session is not sent", ChannelReplica, "final_heartbeat", always(None)),
    Mutant("the rest of a session that is over is not requested", SourceTracker, "seek_end", always(None)),
    Mutant(
        "messages missing at the end of a session are never declared lost",
        SourceTracker,
        "conclude",
        always(None),
        killer="tests.feedcore.replica.test_changing_the_session:test_after_the_grace_the_active_declares_missing_messages_lost_and_moves_on",
    ),
    Mutant(
        "a carried state with a superseded past is not forgotten",
        ChannelReplica,
        "discard_other_history",
        always(None),
        killer="tests.feedcore.replica.test_changing_the_session:test_an_heir_that_decides_the_old_session_again_and_carries_its_state_decides_the_new_one_again",
    ),
    Mutant(
        "packets of another session are treated as packets of the current one",
        Sessions,
        "_on_session",
        _accepts_any_session,
    ),
    Mutant("a client leaves a session that is not settled", SessionMerger, "_is_settled", always(True)),
)
