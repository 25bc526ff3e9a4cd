"""How long stream keys live, and when the next one is due. Pure."""

from __future__ import annotations

from dataclasses import dataclass

SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class KeyTimes:
    """A key is made while the former is still good, and begins when everybody has had time to hear of it.

    Attributes:
        valid_ns: from when a key begins to when nobody opens with it any more.
        overlap_ns: how long before a key's end its successor is made.
        lead_ns: how long a successor is known before it begins.
    """

    valid_ns: int = 30 * 86_400 * SECOND
    overlap_ns: int = 86_400 * SECOND
    lead_ns: int = 60 * SECOND

    def __post_init__(self) -> None:
        assert 0 < self.lead_ns < self.overlap_ns < self.valid_ns  # there is always one to seal with

    def renew_at_ns(self, last_expires_unix_ns: int) -> int:
        """When the successor of the key that ends then is made."""
        return last_expires_unix_ns - self.overlap_ns

    def next_begins_ns(self, last_expires_unix_ns: int | None, now_unix_ns: int) -> int | None:
        """When a key that is to be made now begins; None if none is due.

        Args:
            last_expires_unix_ns: the end of the last key that has not expired; None: there is none.
        """
        if last_expires_unix_ns is None:
            return now_unix_ns
        return now_unix_ns + self.lead_ns if now_unix_ns >= self.renew_at_ns(last_expires_unix_ns) else None
