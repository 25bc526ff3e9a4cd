"""Which epochs of a feed a receiver may believe, and whose they are (docs/protocol.md clause 6.11).

Only the admin server grants epochs. So an epoch is believed only when the server has vouched for it: in a message to
this process, or in its signed proof that an adapter holds the epoch, which any adapter may pass on. What a
packet or another adapter's report says of its own epoch is a claim.

An epoch up to the newest vouched one is believed even if this process never heard of it, because a later lineage
decides what of it counts. Packets of an active count only from the adapter that its epoch was granted to.

Invariant: `newest` never decreases, and no number that a mere member of the feed named has moved it.
"""

from __future__ import annotations

OWNERS_REMEMBERED = 64  # the newest; of older epochs, lineages decide what counts


class VouchedEpochs:
    """The epochs of one feed, as far as one process knows.

    Attributes:
        newest: the newest epoch that is vouched for; 0: none.
    """

    __slots__ = ("_owners", "newest")

    def __init__(self) -> None:
        self.newest = 0
        self._owners: dict[int, int] = {}  # epoch -> adapter_id

    def vouch(self, epoch: int, adapter_id: int) -> bool:
        """The admin server vouches for an epoch.

        Args:
            adapter_id: the adapter that it was granted to; 0: not known.

        Returns:
            True if this is the newest epoch so far, or its owner was not known.
        """
        is_news = epoch > self.newest or (adapter_id != 0 and epoch not in self._owners)
        self.newest = max(self.newest, epoch)
        if adapter_id:
            self._owners[epoch] = adapter_id
            if len(self._owners) > OWNERS_REMEMBERED:
                del self._owners[min(self._owners)]
        return is_news

    def owner_of(self, epoch: int) -> int:
        """The adapter that an epoch was granted to; 0: not known here."""
        return self._owners.get(epoch, 0)

    def may_be_active(self, epoch: int, adapter_id: int) -> bool:
        """True if an adapter may be the active of this epoch. Of an epoch before the newest one the owner may be
        unknown here."""
        if epoch > self.newest:
            return False
        owner = self._owners.get(epoch, 0)
        return owner in (0, adapter_id)
