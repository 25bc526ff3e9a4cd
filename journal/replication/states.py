"""The states of leader and follower, and a table of legal moves for each. docs/journal-replication.md draws them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class PeerState(Enum):
    """The state of a follower's connection, at the leader."""

    GREETED = "greeted"  # sent Hello; its position is expected
    COMPARING = "comparing"  # its last segments are being compared with the leader's
    BISECTING = "bisecting"  # they differ; the first difference is being located
    SENDING = "sending"  # following, with more to send
    CAUGHT_UP = "caught up"  # following, everything sent
    GONE = "gone"  # refused, silent or replaced: nothing more is sent


PEER_MOVES: Mapping[PeerState, frozenset[PeerState]] = {
    PeerState.GREETED: frozenset({PeerState.COMPARING, PeerState.GONE}),
    PeerState.COMPARING: frozenset({PeerState.SENDING, PeerState.BISECTING, PeerState.GONE}),
    PeerState.BISECTING: frozenset({PeerState.GONE}),
    PeerState.SENDING: frozenset({PeerState.CAUGHT_UP, PeerState.GONE}),
    PeerState.CAUGHT_UP: frozenset({PeerState.SENDING, PeerState.GONE}),
    PeerState.GONE: frozenset(),
}


class FollowerState(Enum):
    """The state of a follower."""

    WAITING = "waiting"  # not connected; will retry at a set time
    GREETING = "greeting"  # sent Hello to the leader
    OPENING = "opening"  # welcomed; opening its journal and reading its last segments
    COMPARING = "comparing"  # sent its position; answers probes
    FOLLOWING = "following"  # appends the segments it receives
    DIVERGED = "diverged"  # its records differ from the leader's; final
    REFUSED = "refused"  # cannot follow this leader, for a reported reason; final
    FAILED = "failed"  # its thread ended unexpectedly; final
    STOPPED = "stopped"  # stop requested; final


_ENDS = frozenset({FollowerState.WAITING, FollowerState.FAILED, FollowerState.STOPPED})
FOLLOWER_MOVES: Mapping[FollowerState, frozenset[FollowerState]] = {
    FollowerState.WAITING: frozenset({FollowerState.GREETING, FollowerState.FAILED, FollowerState.STOPPED}),
    FollowerState.GREETING: _ENDS | {FollowerState.OPENING, FollowerState.REFUSED},
    FollowerState.OPENING: _ENDS | {FollowerState.COMPARING, FollowerState.REFUSED},
    FollowerState.COMPARING: _ENDS | {FollowerState.FOLLOWING, FollowerState.DIVERGED},
    FollowerState.FOLLOWING: _ENDS,
    FollowerState.DIVERGED: frozenset(),
    FollowerState.REFUSED: frozenset(),
    FollowerState.FAILED: frozenset(),
    FollowerState.STOPPED: frozenset(),
}
FINAL = frozenset({FollowerState.DIVERGED, FollowerState.REFUSED, FollowerState.FAILED, FollowerState.STOPPED})


class IllegalMove(AssertionError):
    """A bug: a core moved where its table has no way; the text is the story."""


def check_move(table: Mapping[PeerState, frozenset[PeerState]], was: PeerState, now: PeerState, story: object) -> None:
    """Raise if the leader's table has no such move."""
    if now not in table[was]:
        raise IllegalMove(f"{was.value} -> {now.value}: {story}")


def check_follower_move(was: FollowerState, now: FollowerState, story: object) -> None:
    """Raise if the follower's table has no such move."""
    if now not in FOLLOWER_MOVES[was]:
        raise IllegalMove(f"{was.value} -> {now.value}: {story}")
