"""What must be known of leases after the server that decided on them is gone: an interface, and its one error.

The embedded store (`admin_server.store.Store`) keeps it for one server; whatever several servers share can keep it for
all of them. Invariants of every implementation: `reserved_end` never shrinks, and `reserve_epochs` returns only when
the block would be found after any crash. `note_lease` may be lost: then the term that passes after a restart keeps the
promise that nobody is granted while another may believe in its lease.
"""

from __future__ import annotations

from typing import Protocol


class RecordsUnavailable(Exception):
    """The records cannot be written or read now; the text says why."""


class LeaseRecords(Protocol):
    """Who holds what, for good. Implementations are safe to call from any thread.

    All methods raise `RecordsUnavailable`. None but `note_lease` is called while a broker's lock is held.
    """

    def reserved_end(self, feed_id: int) -> int:
        """The last epoch that was ever reserved; 0 if none. No epoch up to it may be granted anew."""
        ...

    def reserve_epochs(self, feed_id: int, behind: int) -> int:
        """Reserve a block of epochs behind `behind`; returns the block's last. Durable when this returns.

        May take its time: it is called half a block ahead of need.
        """
        ...

    def last_lease(self, feed_id: int) -> tuple[int, int] | None:
        """(epoch, adapter_id) noted last; None if none ever was."""
        ...

    def note_lease(self, feed_id: int, epoch: int, adapter_id: int) -> None:
        """Remember the holder, so that it may go on in its epoch after a restart of the server.

        Called in a takeover: waits for no disk and no network. Notes are kept in the order of the calls.
        """
        ...

    def failed_adapters(self, feed_id: int) -> dict[int, str]:
        """adapter_id -> reason, of those that were failed and not readmitted."""
        ...

    def note_failed(self, feed_id: int, adapter_id: int, reason: str) -> None:
        """Remember that an adapter is failed. Durable when this returns."""
        ...

    def note_readmitted(self, feed_id: int, adapter_id: int) -> None:
        """Forget it. Durable when this returns; an adapter that was not failed is no error."""
        ...
