"""The effects that the cores return and their shells perform. Only types.

A shell performs each list in order. An effect with a result names the core's method that takes it; the effects that
this method returns are performed after those already listed.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandemfeed.journal.replication.wire.messages import FromFollower, FromLeader, Segment, SegmentDigest, Welcome

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
    """Compare a follower's last segments with the leader's; `on_tail_compared` takes the result."""

    peer: bytes
    next_index: int
    tail: tuple[SegmentDigest, ...]


@dataclass(frozen=True, slots=True)
class CompareOne:
    """Compare one segment with the leader's; `on_one_compared` takes the result."""

    peer: bytes
    found: SegmentDigest


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """Read segments from an index on, at least one, until they reach `size_max` bytes; `on_read` takes them."""

    peer: bytes
    from_index: int
    size_max: int


@dataclass(frozen=True, slots=True)
class ShowUntil:
    """Show tailers everything before this index: `acks` followers have acknowledged it. The index only grows."""

    index: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Release what is stored for this peer; no effect for it follows. A refusal is sent before this."""

    peer: bytes


LeaderEffect = SendTo | LookUpOldest | CompareTail | CompareOne | ReadFrom | ShowUntil | Forget

# -- follower ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a new connection; messages queued in the old one are dropped."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection; messages queued in it are dropped."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send to the leader."""

    message: FromFollower


@dataclass(frozen=True, slots=True)
class OpenJournal:
    """Store the leader's id, open the follower's journal unless it is open, and read its end.

    `on_opened` or `on_open_failed` takes the result.
    """

    welcome: Welcome


@dataclass(frozen=True, slots=True)
class LookUp:
    """Find the first segment at or after an index; `on_looked_up` takes it."""

    index: int


@dataclass(frozen=True, slots=True)
class Append:
    """Append at exactly this index; missing earlier ones are skipped. If it fails: `on_append_failed`."""

    index: int
    segment: Segment


@dataclass(frozen=True, slots=True)
class Sync:
    """Flush everything appended to the disk before later effects. If it fails: `on_append_failed`."""


FollowerEffect = Connect | Disconnect | Send | OpenJournal | LookUp | Append | Sync
