"""Whose history a client follows: the newest epoch's lineage, and how far a packet of any epoch counts in it.

Adapters tell their lineage in every heartbeat. Until one of them ever has, it is put together from the packets'
headers, which know each epoch's beginning and nothing of epochs that were not heard of (docs/decisions/0001).
"""

from __future__ import annotations

from feedcore.wire.lineage import ENTRIES_MAX, UNLIMITED, Lineage


class FollowedLineage:
    """The lineage followed.

    Attributes:
        epoch: its newest epoch, 0 before any packet.
        is_told: a heartbeat told a lineage: from then on none is guessed.
    """

    def __init__(self) -> None:
        self.lineage = Lineage()
        self.epoch = 0
        self.is_told = False

    def end_of(self, epoch: int) -> int:
        """One past the last `message_seq` for which an epoch's numbering holds; 0: for none."""
        entries = self.lineage.entries
        if not self.is_told and entries and epoch < entries[0][0]:
            return entries[0][1]  # put together from headers: what lies before the first one heard of is unknown
        return self.lineage.end_of(epoch)

    def is_news(self, lineage: Lineage) -> bool:
        """True if a lineage that was told is to be followed instead of this one."""
        return lineage.epoch > self.epoch or (not self.is_told and lineage.epoch == self.epoch > 0)

    def follow(self, lineage: Lineage, *, is_told: bool) -> int:
        """Follow another lineage from now on.

        Returns:
            The first `message_seq` that it numbers otherwise than the one before; UNLIMITED: none.
        """
        parting = self.lineage.parts_at(lineage) if self.epoch else UNLIMITED
        self.lineage, self.epoch, self.is_told = lineage, lineage.epoch, is_told
        return parting

    def put_together(self, epoch: int, first_message_seq: int) -> Lineage:
        """This lineage, with an epoch added by what its packets' headers say; no epoch begins before an older one."""
        known = {**dict(self.lineage.entries), epoch: first_message_seq}
        entries: list[tuple[int, int]] = []
        limit = UNLIMITED
        for each, first in sorted(known.items(), reverse=True):
            if first <= limit:
                entries.append((each, first))
                limit = first
        return Lineage(tuple(reversed(entries))[-ENTRIES_MAX:])
