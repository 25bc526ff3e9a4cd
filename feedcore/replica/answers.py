"""What an adapter answers other adapters of its feed: conversion state at a position, and decisions after one.

An answer belongs to one session (docs/protocol.md clause 10): the present one, and for decisions also the one before.
"""

from __future__ import annotations

from dataclasses import replace

from feedcore.replica.channel_state import Buckets, ChannelSnapshot
from feedcore.replica.decision_log import LoggedRuns
from feedcore.replica.replica import ChannelReplica
from feedcore.replica.sessions import Sessions
from feedcore.replica.states import ReplicaState
from feedcore.wire.position import MessageStreamState


class NotActive(Exception):
    """Only the active answers this: ask the adapter that the admin server names."""


class PeerAnswers:
    """Queries, between events. `session` is the one asked about; 0: the one that this adapter is in."""

    def __init__(self, adapter_id: int, sessions: Sessions) -> None:
        self._adapter_id, self._sessions = adapter_id, sessions

    @property
    def session(self) -> int:
        """The session that this adapter is in."""
        return self._sessions.current.session

    def snapshot(self, channel_id: int, session: int = 0) -> ChannelSnapshot:
        """Conversion state of a channel at the present position.

        Raises:
            NotActive: this adapter does not decide for the channel, or something decided waits to be acknowledged.
        """
        replica = self._active_replica(channel_id, session)
        if replica.is_holding:
            raise NotActive(f"channel {channel_id} waits for an acknowledgement: ask again")
        return replica.line.snapshot()

    def buckets(self, channel_id: int, chosen: tuple[int, ...], session: int = 0) -> Buckets:
        """Some buckets of the conversion state of a channel at the present position.

        Raises:
            NotActive: this adapter does not decide for the channel.
        """
        return self._active_replica(channel_id, session).line.buckets(chosen)

    def runs_since(self, channel_id: int, position: MessageStreamState, session: int = 0) -> LoggedRuns:
        """Decisions after a position, also of the session before the present one.

        Raises:
            NotActive: this adapter is not in the group, or in another session.
            DecisionLogTooShort: the caller needs a snapshot.
        """
        of_session = self._sessions.of(session)
        if of_session is None:
            raise self._not_here(session)
        replica = of_session.replicas[channel_id]
        if not replica.is_placed:
            raise self._passive(replica)
        return replace(replica.line.log.since(position, replica.line.lineage), session=of_session.session)

    def _active_replica(self, channel_id: int, session: int) -> ChannelReplica:
        if session not in (0, self.session):
            raise self._not_here(session)
        replica = self._sessions.current.replicas[channel_id]
        if replica.state is not ReplicaState.ACTIVE:
            raise self._passive(replica)
        return replica

    def _passive(self, replica: ChannelReplica) -> NotActive:
        return NotActive(f"channel {replica.channel.channel_id} is {replica.state.value} at adapter {self._adapter_id}")

    def _not_here(self, session: int) -> NotActive:
        return NotActive(f"session {session} was asked for; adapter {self._adapter_id} is in {self.session}")
