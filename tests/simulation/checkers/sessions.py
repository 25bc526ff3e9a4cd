"""Checks session changes at clients: in order, once each, and with the complete old session before the new one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from tandemfeed.feedcore.merge.effects import MergeEffect, SessionChanged
from tandemfeed.feedcore.wire.output_packet import END_OF_STREAM_BIT, PROVISIONAL_BIT, OutputPacket
from tests.simulation.checkers.content import Violation

if TYPE_CHECKING:
    from tests.simulation.client import ClientActor

Place: TypeAlias = tuple[int, int]  # channel, session


class SessionChecker:
    """Follows the session of each channel of each client.

    Args:
        first_session: the first session of the feed.
        may_miss_end: a client may miss the end of a session, because journal entries were lost.
        lengths: (channel, session) -> how many source messages it has.
    """

    def __init__(self, first_session: int, *, may_miss_end: bool, lengths: Mapping[Place, int]) -> None:
        self._first_session, self._may_miss_end, self._lengths = first_session, may_miss_end, lengths
        self._sessions: dict[tuple[str, int], list[int]] = {}
        self._cut_short: set[tuple[str, int, int]] = set()
        self._reached: dict[Place, tuple[int, int, bool]] = {}  # newest epoch, the furthest end in it, and is it final

    def on_transmit(self, packet: OutputPacket) -> None:
        """An adapter transmits a packet."""
        if not packet.flags & PROVISIONAL_BIT:
            place = packet.channel_id, packet.session
            reached = packet.epoch, packet.end_input_seq, bool(packet.flags & END_OF_STREAM_BIT)
            self._reached[place] = max(self._reached.get(place, reached), reached)

    def on_effect(self, client: ClientActor, channel: int, effect: MergeEffect) -> int:
        """Check a session change; returns the session that the effect belongs to."""
        sessions = self._sessions.setdefault((client.name, channel), [client.first_session])
        if isinstance(effect, SessionChanged):
            if effect.old_session != sessions[-1] or effect.new_session <= sessions[-1]:
                raise Violation("10", f"{client.name} got {effect} in session {sessions[-1]}")
            is_end_known = (channel, effect.old_session) not in client.unknown_ends
            is_end_known = is_end_known and not self._was_left(channel, effect.old_session)
            if not effect.is_complete and is_end_known and not self._may_miss_end and not client.is_live:
                raise Violation("10", f"{client.name} missed the end of the session: {effect}")
            if not effect.is_complete:
                self._cut_short.add((client.name, channel, effect.old_session))
            sessions.append(effect.new_session)
        return sessions[-1]

    def _was_left(self, channel: int, session: int) -> bool:
        """True if the active of the newest epoch crashed before it decided the last message, and moved on as it joined:
        nothing ends such a session."""
        _, end, is_final = self._reached.get((channel, session), (0, 0, False))
        return not is_final and 0 < end <= self._lengths[channel, session]

    def was_cut_short(self, client: str, channel: int, session: int) -> bool:
        """True if the client reported that the last messages of a session may be missing."""
        return (client, channel, session) in self._cut_short

    def was_skipped(self, client: str, channel: int, session: int) -> bool:
        """True if the client received nothing of a session before a later one."""
        sessions = self._sessions.get((client, channel), [self._first_session])
        return session not in sessions and session < sessions[-1]
