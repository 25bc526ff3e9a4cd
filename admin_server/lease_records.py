"""What must be known after the server that decided is gone: interfaces, and their one error.

The embedded store (`admin_server.store.Store`) keeps it for one server; whatever several servers share can keep it for
all of them. Invariants of every implementation: `reserved_end` never shrinks, and `reserve_epochs` returns only when
the block would be found after any crash. `note_lease` may be lost: then the term that passes after a restart keeps the
promise that nobody is granted while another may believe in its lease.
"""

from __future__ import annotations

from typing import Protocol

from admin_server.channel_keys import ChannelKey
from admin_server.key_times import KeyTimes
from admin_server.registrations import ProcessRecord
from tandemfeed.v1 import common_pb2

EPOCH_BLOCK = 64  # epochs reserved at a time
STARTS_KEPT = 2  # of each adapter: the newest, and the one before, whose last packets may still be under way


class RecordsUnavailable(Exception):
    """The records cannot be written or read now; the text says why."""


class LeaseRecords(Protocol):
    """Who holds what, for good. Implementations are safe to call from any thread.

    All methods raise `RecordsUnavailable`. Only `note_lease`, `note_ttl` and `note_session` are called while a broker's
    lock is held.
    """

    def may_grant(self) -> bool:
        """False while another server may decide on leases: nothing is granted or renewed then. Never waits.

        Asked after the report was heard that a grant or renewal answers, and before it is sent.
        """
        ...

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

    def noted_ttl_ns(self, feed_id: int) -> int:
        """The longest term that a holder may have been told, in ns; 0 if none was ever noted."""
        ...

    def note_ttl(self, feed_id: int, ttl_ns: int) -> None:
        """Remember how long terms may be from now on. Called and kept as `note_lease` is, in one order with its notes.

        A note that dies with its machine is needed only for as long as the longest term, which is shorter than a
        machine's start (`admin_server.lease_terms.STRETCHED_TTL_NS_MAX`).
        """
        ...

    def newest_session(self, feed_id: int) -> int:
        """The greatest session noted; 0 if none was."""
        ...

    def note_session(self, feed_id: int, session: int) -> None:
        """Remember the session that the feed's adapters have gone on to. Called and kept as `note_lease` is; a note
        that dies with its machine is made again by the adapters' next reports.
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


class ClusterRecords(LeaseRecords, Protocol):
    """All that outlives a server. May wait for the disk or the network: never called with a broker's lock held.

    All methods raise `RecordsUnavailable`, and no error of the database's own.
    """

    @property
    def key_times(self) -> KeyTimes:
        """How long the stream keys live."""
        ...

    def new_start(self, feed_id: int, adapter_id: int, public_key: bytes) -> common_pb2.AdapterStart:
        """A start of an adapter: with an incarnation that no start of any adapter ever had, and a fresh random salt.

        Durable when this returns.
        """
        ...

    def starts(self, feed_id: int) -> dict[int, list[common_pb2.AdapterStart]]:
        """The last STARTS_KEPT starts of each adapter, the newest last."""
        ...

    def note_registration(self, feed_id: int, adapter_id: int, incarnation: int, rpc_endpoint: str) -> None:
        """Remember where the adapter was last, for those who ask another server, or after a restart."""
        ...

    def registrations(self, feed_id: int) -> dict[int, tuple[int, str]]:
        """(incarnation, RPC endpoint) of each adapter that ever registered."""
        ...

    def note_process(self, feed_id: int, adapter_id: int, record: ProcessRecord) -> None:
        """Remember which process is registered as an adapter. Durable when this returns."""
        ...

    def processes(self, feed_id: int) -> dict[int, ProcessRecord]:
        """By adapter_id, what was noted last."""
        ...

    def stream_keys(self, feed_id: int, channel_id: int) -> list[ChannelKey]:
        """The channel's keys that have not expired, in the order in which they begin.

        Makes one where `key_times` says that one is due. Durable when this returns.
        """
        ...
