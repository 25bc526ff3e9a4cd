"""Which epoch's numbering holds where: a later epoch supersedes every earlier one from its first `message_seq` on."""

from __future__ import annotations


class EpochHistory:
    """First `message_seq` of each epoch heard of.

    Only the newest few matter: older ones can no longer be asked for.
    """

    KEPT = 64

    def __init__(self) -> None:
        self.newest = 0
        self._starts: dict[int, int] = {}

    def note(self, epoch: int, first_message_seq: int) -> bool:
        """Take note of an epoch; True if it is a new newest one."""
        if epoch in self._starts:
            return False
        self._starts[epoch] = first_message_seq
        if len(self._starts) > self.KEPT:
            del self._starts[min(self._starts)]
        if epoch > self.newest:
            self.newest = epoch
            return True
        return False

    def limit(self, epoch: int) -> int | None:
        """One past the last `message_seq` that the epoch's numbering still holds for; None: without limit."""
        if epoch >= self.newest:
            return None
        later = [first for other, first in self._starts.items() if other > epoch]
        return min(later) if later else None
