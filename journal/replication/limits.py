"""The limits of replication, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

NS_PER_S = 1_000_000_000
PIECE_SIZE_MAX = 1 << 20  # longer segments are sent in pieces, so that a heartbeat waits for 1 MiB at most
RUN_SIZE = 256 << 10  # short segments are sent together up to this size, heads included
FRAME_SIZE_MAX = 2 << 20  # a run's last segment may be nearly a piece long; the rest is heads
TEXT_SIZE_MAX = 1_000
TAIL_COUNT_MAX = 4  # digests that prove a follower's history; several, because the leader may have lost some
BODY_SIZE_MAX = (1 << 32) - 1  # the format's own limit
assert RUN_SIZE + PIECE_SIZE_MAX < FRAME_SIZE_MAX


@dataclass(frozen=True, slots=True)
class Limits:
    """Settings of a leader or a follower; the two sides may differ.

    Args:
        heartbeat_interval_ns: an idle side sends a heartbeat this often.
        silence_ns_max: a side that receives nothing for this long closes the connection.
        backoff_ns_min: a follower's first pause between attempts. Pauses double; up to half is random.
        backoff_ns_max: its longest pause.
        window_size: unacknowledged bytes in flight to a follower; one run or piece may exceed it.
        followers_max: connections that a leader serves, and follower positions that it remembers.
    """

    heartbeat_interval_ns: int = NS_PER_S
    silence_ns_max: int = 5 * NS_PER_S
    backoff_ns_min: int = NS_PER_S // 10
    backoff_ns_max: int = 5 * NS_PER_S
    window_size: int = 16 << 20
    followers_max: int = 64

    def __post_init__(self) -> None:
        if not 0 < 3 * self.heartbeat_interval_ns <= self.silence_ns_max:  # survives two lost beats
            raise ValueError("silence_ns_max must be at least three heartbeat intervals")
        if not 0 < self.backoff_ns_min <= self.backoff_ns_max:
            raise ValueError("backoff_ns_min must be positive and at most backoff_ns_max")
        if self.window_size < 1 or self.followers_max < 1:
            raise ValueError("window_size and followers_max must be at least 1")
