"""The states of both sides and the one table of legal moves each. docs/journal-replication.md draws them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class PeerState(Enum):
    """What a leader knows of one follower's connection, a sentence each."""

    GREETED = "greeted"  # said Hello; it is to say where it stands
    COMPARING = "comparing"  # its last segments are being compared with ours
    BISECTING = "bisecting"  # they differ; we look for the first that does
    SENDING = "sending"  # it follows, and there is more for it
    CAUGHT_UP = "caught up"  # it follows, and was sent all there is
    GONE = "gone"  # refused, silent or replaced: nothing is sent to it any more


PEER_MOVES: Mapping[PeerState, frozenset[PeerState]] = {
    PeerState.GREETED: frozenset({PeerState.COMPARING, PeerState.GONE}),
    PeerState.COMPARING: frozenset({PeerState.SENDING, PeerState.BISECTING, PeerState.GONE}),
    PeerState.BISECTING: frozenset({PeerState.GONE}),
    PeerState.SENDING: frozenset({PeerState.CAUGHT_UP, PeerState.GONE}),
    PeerState.CAUGHT_UP: frozenset({PeerState.SENDING, PeerState.GONE}),
    PeerState.GONE: frozenset(),
}


class FollowerState(Enum):
    """What a follower is at, a sentence each."""

    WAITING = "waiting"  # not connected; tries again at a set time
    GREETING = "greeting"  # said Hello to the leader
    OPENING = "opening"  # welcome; its own journal is being opened, and its last segments read
    COMPARING = "comparing"  # said where it stands; answers probes
    FOLLOWING = "following"  # appends what comes
    DIVERGED = "diverged"  # holds other records than its leader; final
    REFUSED = "refused"  # cannot follow this leader, and says why; final
    STOPPED = "stopped"  # was told to; final


_ENDS = frozenset({FollowerState.WAITING, FollowerState.STOPPED})
FOLLOWER_MOVES: Mapping[FollowerState, frozenset[FollowerState]] = {
    FollowerState.WAITING: frozenset({FollowerState.GREETING, FollowerState.STOPPED}),
    FollowerState.GREETING: _ENDS | {FollowerState.OPENING, FollowerState.REFUSED},
    FollowerState.OPENING: _ENDS | {FollowerState.COMPARING, FollowerState.REFUSED},
    FollowerState.COMPARING: _ENDS | {FollowerState.FOLLOWING, FollowerState.DIVERGED},
    FollowerState.FOLLOWING: _ENDS,
    FollowerState.DIVERGED: frozenset(),
    FollowerState.REFUSED: frozenset(),
    FollowerState.STOPPED: frozenset(),
}
FINAL = frozenset({FollowerState.DIVERGED, FollowerState.REFUSED, FollowerState.STOPPED})


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
