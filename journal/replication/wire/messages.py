"""The messages between leader and follower. Only types: codec.py encodes them, the manual describes their order.

Every message has the follower's session number; messages of other sessions are stale and are dropped. An index named
`next_index` or `from_index` means "everything before this one".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from tandemfeed.journal.format.layout import COUNT_MASK

NO_ID = bytes(16)


class Reason(IntEnum):
    """Why a leader refuses a follower."""

    UNKNOWN_SESSION = 1  # send Hello again: the leader restarted, or closed the connection
    TOO_MANY = 2  # the leader serves its maximum number of followers
    VIOLATION = 3  # the follower violated the protocol
    FOREIGN = 4  # the follower belongs to another leader
    DIVERGED = 5  # the follower's records differ from the leader's
    FAILED = 6  # the leader cannot read its journal; may be temporary


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment of the leader's journal, unencrypted.

    Attributes:
        count_and_flags: number of records, and HAS_TABLE if the body begins with their ends.
        record_size: bytes of each record, if there is no table.
    """

    cycle: int
    first_sequence: int
    appended_at_ns: int
    count_and_flags: int
    record_size: int
    body: bytes

    def first_index(self, sequence_bits: int) -> int:
        """The index of its first record."""
        return self.cycle << sequence_bits | self.first_sequence

    def next_index(self, sequence_bits: int) -> int:
        """The index after its last record."""
        return self.first_index(sequence_bits) + (self.count_and_flags & COUNT_MASK)


@dataclass(frozen=True, slots=True)
class SegmentDigest:
    """Identifies a segment's contents: 16 bytes of BLAKE2b over all of it."""

    first_index: int
    next_index: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Hello:
    """Follower: begins a session. `leader_id` is the leader that it has stored, or NO_ID."""

    session: int
    leader_id: bytes


@dataclass(frozen=True, slots=True)
class Welcome:
    """Leader: describes its journal; the follower opens its own with the same settings."""

    session: int
    leader_id: bytes
    roll_cycle: str
    epoch_offset_s: int
    time_zone: str
    block_size: int
    is_encrypted: bool
    oldest_index: int


@dataclass(frozen=True, slots=True)
class Position:
    """Follower: has everything before `next_index`; `tail` are its last segments, ascending."""

    session: int
    follower_id: bytes
    next_index: int
    tail: tuple[SegmentDigest, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """Leader: asks for the follower's first segment at or after `index`."""

    session: int
    index: int


@dataclass(frozen=True, slots=True)
class Probed:
    """Follower: answers a Probe; None: it has no such segment."""

    session: int
    index: int
    found: SegmentDigest | None


@dataclass(frozen=True, slots=True)
class Segments:
    """Leader: its segments from `from_index` on. A gap before one means that the leader lost or released records."""

    session: int
    from_index: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Leader: a part of a long segment, whose head is `segment` with an empty body.

    Attributes:
        body_size: bytes of the whole body.
        offset: of `data` in it; pieces come in order.
    """

    session: int
    from_index: int
    segment: Segment
    body_size: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Follower: has everything before `next_index`, and has received `taken_size` bytes in this session."""

    session: int
    next_index: int
    taken_size: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Leader: is alive, accepts the follower, and its journal ends at `next_index`."""

    session: int
    next_index: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Leader: refuses the follower; `index` says where, if the reason concerns an index."""

    session: int
    reason: Reason
    index: int
    text: str


FromFollower = Hello | Position | Probed | Acknowledge
FromLeader = Welcome | Probe | Segments | Piece | Heartbeat | Refused
Message = FromFollower | FromLeader
