"""How long stream keys are valid, and when the next one is due. Pure."""

from __future__ import annotations

from dataclasses import dataclass

MILLISECOND = 1_000_000
SECOND = 1_000 * MILLISECOND


@dataclass(frozen=True, slots=True)
class KeyTimes:
    """The schedule of keys: each is created while its predecessor is valid, and announced before it becomes valid.

    Attributes:
        valid_ns: how long a key is valid.
        overlap_ns: how long before a key expires its successor is created.
        lead_ns: how long after its creation a successor becomes valid.
        rotation_lead_ns: the same when a key is replaced because a reader lost its right: short, because that reader
            has the former key; long enough for the others to receive the new one.
        distrust_lead_ns: the same when every key is replaced, because records or tokens are in wrong hands: each
            process has to log in again before it receives the new keys.
        rotation_kept_ns: how long readers still accept the former key: packets sealed with it may still arrive.
    """

    valid_ns: int = 30 * 86_400 * SECOND
    overlap_ns: int = 86_400 * SECOND
    lead_ns: int = 60 * SECOND
    rotation_lead_ns: int = 300 * MILLISECOND
    distrust_lead_ns: int = 800 * MILLISECOND
    rotation_kept_ns: int = 10 * SECOND

    def __post_init__(self) -> None:
        assert 0 < self.rotation_lead_ns <= self.distrust_lead_ns < self.rotation_kept_ns
        assert 0 < self.lead_ns < self.overlap_ns < self.valid_ns  # one key is valid at any time

    def begins_in_ns(self, not_before_unix_ns: int, now_unix_ns: int) -> int:
        """How long until a key that was made becomes valid; 0: it has.

        No key waits for longer than `lead_ns` after it was made. One that seems to was made before the clock was set
        back, and has become valid.
        """
        wait_ns = not_before_unix_ns - now_unix_ns
        return wait_ns if 0 < wait_ns <= self.lead_ns else 0

    def renew_at_ns(self, last_expires_unix_ns: int) -> int:
        """When to create the successor of a key that expires at `last_expires_unix_ns`."""
        return last_expires_unix_ns - self.overlap_ns

    def next_begins_ns(self, last_expires_unix_ns: int | None, now_unix_ns: int) -> int | None:
        """When a key created now becomes valid; None if no new key is due.

        Args:
            last_expires_unix_ns: when the newest key expires; None: no valid key exists.
        """
        if last_expires_unix_ns is None:
            return now_unix_ns
        return now_unix_ns + self.lead_ns if now_unix_ns >= self.renew_at_ns(last_expires_unix_ns) else None
