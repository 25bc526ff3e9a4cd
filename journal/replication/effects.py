"""What the cores ask their shells to do, in the order given. Shapes only.

Each list of effects is performed front to back; an effect that answers (it says so) does so by the named call on the
core, whose effects follow behind those already there.
"""

from __future__ import annotations

from dataclasses import dataclass

from journal.replication.messages import FromFollower, FromLeader, Segment, SegmentDigest, Welcome

# -- leader ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendTo:
    """Send to one follower."""

    peer: bytes
    message: FromLeader


@dataclass(frozen=True, slots=True)
class LookUpOldest:
    """Find the journal's oldest index; `on_oldest` takes it."""

    peer: bytes


@dataclass(frozen=True, slots=True)
class CompareTail:
    """Compare a follower's last segments with ours; `on_tail_compared` takes the outcome."""

    peer: bytes
    next_index: int
    tail: tuple[SegmentDigest, ...]


@dataclass(frozen=True, slots=True)
class CompareOne:
    """Compare one segment with ours; `on_one_compared` takes the outcome."""

    peer: bytes
    found: SegmentDigest


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """Read segments from an index on, until they reach so many bytes, at least one; `on_read` takes them."""

    peer: bytes
    from_index: int
    size_max: int


@dataclass(frozen=True, slots=True)
class ShowUntil:
    """Everything before this index is acknowledged by as many followers as are wanted. It only grows."""

    index: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Nothing more comes for this peer: release what is kept for it. A refusal stands before this."""

    peer: bytes


LeaderEffect = SendTo | LookUpOldest | CompareTail | CompareOne | ReadFrom | ShowUntil | Forget

# -- follower ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a new connection; whatever an old one still held is gone."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection, with all that is queued in it."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send to the leader."""

    message: FromFollower


@dataclass(frozen=True, slots=True)
class OpenJournal:
    """Open the follower's journal if it is not, remembering the leader first, and read where it stands.

    `on_opened` takes that, or `on_open_failed`.
    """

    welcome: Welcome


@dataclass(frozen=True, slots=True)
class LookUp:
    """Find the first segment at or behind an index; `on_looked_up` takes it."""

    index: int


@dataclass(frozen=True, slots=True)
class Append:
    """Append at exactly this index; earlier ones that are missing are left out. If it fails: `on_append_failed`."""

    index: int
    segment: Segment


@dataclass(frozen=True, slots=True)
class Sync:
    """Everything appended is on the disk before the effects behind this. If it fails: `on_append_failed`."""


FollowerEffect = Connect | Disconnect | Send | OpenJournal | LookUp | Append | Sync
