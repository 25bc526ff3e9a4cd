"""What leader and follower say to each other. Pure: shapes only; codec.py has the bytes, docs the order.

Every message carries the follower's session number; one of another session is stale and is dropped. An index says
"everything before this one" wherever it is called `next_index` or `from_index`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from journal.layout import COUNT_MASK

NO_ID = bytes(16)


class Reason(IntEnum):
    """Why a leader refuses."""

    UNKNOWN_SESSION = 1  # say Hello again: this leader has restarted, or gave the connection up
    TOO_MANY = 2  # it serves as many followers as it may
    VIOLATION = 3  # the follower said what it cannot have
    FOREIGN = 4  # the follower belongs to another leader
    DIVERGED = 5  # the follower holds other records
    FAILED = 6  # the leader cannot read its journal; later perhaps


@dataclass(frozen=True, slots=True)
class Segment:
    """One group commit as the leader has it, in plain.

    Attributes:
        count_and_flags: how many records, and HAS_TABLE if the body begins with their ends.
        record_size: bytes of each, without a table.
    """

    cycle: int
    first_sequence: int
    appended_at_ns: int
    count_and_flags: int
    record_size: int
    body: bytes

    def first_index(self, sequence_bits: int) -> int:
        """Of its first record."""
        return self.cycle << sequence_bits | self.first_sequence

    def next_index(self, sequence_bits: int) -> int:
        """Behind its last record."""
        return self.first_index(sequence_bits) + (self.count_and_flags & COUNT_MASK)


@dataclass(frozen=True, slots=True)
class SegmentDigest:
    """What tells two segments apart: 16 bytes of BLAKE2b over all of it."""

    first_index: int
    next_index: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Hello:
    """Follower: here I am. `leader_id` is the leader it remembers, or NO_ID."""

    session: int
    leader_id: bytes


@dataclass(frozen=True, slots=True)
class Welcome:
    """Leader: this is my journal; open yours with the same settings."""

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
    """Follower: I hold everything before `next_index`, and these were my last segments (ascending)."""

    session: int
    follower_id: bytes
    next_index: int
    tail: tuple[SegmentDigest, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """Leader: what is your first segment at or behind `index`?"""

    session: int
    index: int


@dataclass(frozen=True, slots=True)
class Probed:
    """Follower: this one; None: there is none."""

    session: int
    index: int
    found: SegmentDigest | None


@dataclass(frozen=True, slots=True)
class Segments:
    """Leader: what I have from `from_index` on begins with these. A jump before one is what I have lost or released."""

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
    """Follower: I hold everything before `next_index`; of this session's bytes I have taken so many in."""

    session: int
    next_index: int
    taken_size: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Leader: I live, you follow, and my journal ends at `next_index`."""

    session: int
    next_index: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Leader: no; `index` says where, if a place is meant."""

    session: int
    reason: Reason
    index: int
    text: str


FromFollower = Hello | Position | Probed | Acknowledge
FromLeader = Welcome | Probe | Segments | Piece | Heartbeat | Refused
Message = FromFollower | FromLeader
