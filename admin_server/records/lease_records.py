"""The state that must survive an admin server: interfaces, and the one error that they raise.

The embedded store (`admin_server.records.store.Store`) implements them for a single server, ZooKeeper for several
servers. Invariants of every implementation: `reserved_end` never shrinks, and after any crash the block that
`reserve_epochs` returned is still reserved. A `note_lease` may be lost: a restarted server waits for the lease term, so
that it grants no lease while another holder may rely on its own.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

from tandemfeed.admin_server.feed.keys.channel_keys import ChannelKey
from tandemfeed.admin_server.feed.keys.key_times import KeyTimes
from tandemfeed.admin_server.feed.members.registrations import ProcessRecord
from tandemfeed.v1 import common_pb2

EPOCH_BLOCK = 64  # epochs reserved at a time
HISTORY_KEPT_COUNT = 200  # the last events of each feed
STARTS_KEPT = 2  # of each adapter: the newest, and the one before, whose last packets may still arrive


class HistoryEvent(NamedTuple):
    """An event of a feed; what does not apply to it is empty, or 0."""

    at_unix_ns: int
    event: str
    adapter: str
    epoch: int
    reason: str
    by: str


class RecordsUnavailable(Exception):
    """The records cannot be read or written now; the text says why."""


class LeaseRecords(Protocol):
    """The durable state of the leases. Implementations are safe to call from any thread.

    All methods may raise `RecordsUnavailable`. Only `note_lease`, `note_ttl`, `note_session` and `note_history` are
    called while a feed's lock is held.
    """

    def may_grant(self) -> bool:
        """False while another server may decide on leases, so that this one must not grant or renew. Never waits.

        Checked between the arrival of a report and the sending of the grant or renewal that answers it.
        """
        ...

    def reserved_end(self, feed_id: int) -> int:
        """The last epoch that was ever reserved; 0 if none. A restarted server grants only epochs after it."""
        ...

    def reserve_epochs(self, feed_id: int, after: int) -> int:
        """Reserve a block of epochs that follow `after`; return the block's last. Durable when this returns.

        May be slow, because it is called while half a block is left.
        """
        ...

    def last_lease(self, feed_id: int) -> tuple[int, int] | None:
        """The last noted (epoch, adapter_id); None if none was ever noted."""
        ...

    def note_lease(self, feed_id: int, epoch: int, adapter_id: int) -> None:
        """Record the holder, so that it may continue in its epoch after a restart of the server.

        Called during takeovers, so it does not wait for the disk or the network. Notes take effect in call order.
        """
        ...

    def noted_ttl_ns(self, feed_id: int) -> int:
        """The longest term that may have been announced, in ns; 0 if none was ever noted."""
        ...

    def note_ttl(self, feed_id: int, ttl_ns: int) -> None:
        """Record the longest term from now on. Behaves like `note_lease`, and is ordered with its notes.

        A note may be lost with the machine: it matters only for one longest term, which is shorter than a machine
        takes to start (`admin_server.lease.lease_terms.STRETCHED_TTL_NS_MAX`).
        """
        ...

    def newest_session(self, feed_id: int) -> int:
        """The newest noted session; 0 if none."""
        ...

    def note_session(self, feed_id: int, session: int) -> None:
        """Record the session that the feed's adapters have begun. Behaves like `note_lease`; if a note is lost with
        the machine, the adapters' next reports cause it again.
        """
        ...

    def failed_adapters(self, feed_id: int) -> dict[int, str]:
        """adapter_id -> reason, for the adapters that were failed and not readmitted."""
        ...

    def note_failed(self, feed_id: int, adapter_id: int, reason: str) -> None:
        """Record that an adapter is failed. Durable when this returns."""
        ...

    def note_readmitted(self, feed_id: int, adapter_id: int) -> None:
        """Record that an adapter is no longer failed; it need not have been. Durable when this returns."""
        ...

    def drained_adapters(self, feed_id: int) -> dict[int, str]:
        """adapter_id -> reason, for the adapters that were drained and not undrained."""
        ...

    def note_drained(self, feed_id: int, adapter_id: int, reason: str) -> None:
        """Record that an adapter is drained. Durable when this returns."""
        ...

    def note_undrained(self, feed_id: int, adapter_id: int) -> None:
        """Record that an adapter is no longer drained. Durable when this returns."""
        ...

    def history(self, feed_id: int) -> list[HistoryEvent]:
        """The last noted events, the newest last."""
        ...

    def note_history(self, feed_id: int, events: list[HistoryEvent]) -> None:
        """Record the last events in place of those noted before. Behaves like `note_lease`."""
        ...


class ClusterRecords(LeaseRecords, Protocol):
    """All durable state. Its methods may wait for the disk or the network, so no feed's lock is held when called.

    All methods may raise `RecordsUnavailable`, and never the database's own errors.
    """

    @property
    def key_times(self) -> KeyTimes:
        """How long stream keys are valid."""
        ...

    def new_start(self, feed_id: int, adapter_id: int, public_key: bytes) -> common_pb2.AdapterStart:
        """A new start of an adapter, with an incarnation that no other start ever had, and a new random salt.

        Durable when this returns.
        """
        ...

    def newest_incarnation(self) -> int:
        """The newest incarnation that any start had; 0 if none."""
        ...

    def skip_incarnations(self, after: int) -> None:
        """Make later starts have incarnations after this. Durable when this returns."""
        ...

    def starts(self, feed_id: int) -> dict[int, list[common_pb2.AdapterStart]]:
        """The last STARTS_KEPT starts of each adapter, the newest last."""
        ...

    def note_registration(self, feed_id: int, adapter_id: int, incarnation: int, rpc_endpoint: str) -> None:
        """Record the adapter's address, for clients that ask another server, or ask after a restart."""
        ...

    def registrations(self, feed_id: int) -> dict[int, tuple[int, str]]:
        """(incarnation, RPC endpoint) of each adapter that has ever registered."""
        ...

    def note_process(self, feed_id: int, adapter_id: int, record: ProcessRecord) -> None:
        """Record which process is registered as an adapter. Durable when this returns."""
        ...

    def processes(self, feed_id: int) -> dict[int, ProcessRecord]:
        """adapter_id -> its last noted process."""
        ...

    def stream_keys(self, feed_id: int, channel_id: int) -> list[ChannelKey]:
        """The channel's keys that have not expired, ordered by the start of their validity.

        Creates a key when `key_times` says that one is due. Durable when this returns.
        """
        ...

    def replace_stream_key(self, feed_id: int, channel_id: int, lead_ns: int) -> None:
        """Create a new key of the channel, which a reader lost the right to. Durable when this returns.

        It becomes valid `lead_ns` from now. Every other key of the channel expires
        `rotation_kept_ns` from now, or is deleted if it has not become valid yet.
        """
        ...

    def documents(self, kind: str) -> dict[str, bytes]:
        """Every document of a kind, by its name: what the server keeps of identities and certificates."""
        ...

    def note_document(self, kind: str, name: str, document: bytes) -> None:
        """Record a document in place of its former content. Durable when this returns."""
        ...

    # ---- rights that were given out, and what proves a restored backup ----

    @property
    def generation(self) -> int:
        """Counts the durable changes, as last read or written here; never waits."""
        ...

    def read_generation(self) -> int:
        """The generation as recorded. The audit log states it, so a lower one proves a restored backup."""
        ...

    def raise_generation(self, at_least: int) -> None:
        """Make the generation at least this, after a restored backup. Durable when this returns."""
        ...

    def granted(self, feed_id: int) -> dict[int, set[str]]:
        """channel_id (0: the source) -> the identities that may have its keys, or a token that names it."""
        ...

    def note_granted(self, feed_id: int, channel_ids: Collection[int], identity: str) -> None:
        """Record that an identity is about to get keys or a token. Durable when this returns."""
        ...

    def forget_granted(self, feed_id: int, channel_id: int, identities: Collection[str]) -> None:
        """Record that what these identities have no longer opens the channel. Durable when this returns."""
        ...

    def revoked_tokens(self, feed_id: int) -> dict[str, int]:
        """identity ("": all) -> the time before which its tokens were revoked."""
        ...

    def note_revoked_tokens(self, feed_id: int, revoked: dict[str, int]) -> None:
        """Record what `revoked_tokens` returns from now on. Durable when this returns."""
        ...

    def audit_head(self) -> tuple[int, str] | None:
        """The last noted entry of this server's audit log: number and digest; None if none was noted."""
        ...

    def note_audit_head(self, number: int, digest: str) -> None:
        """Remember the last entry of this server's audit log; does not wait for the disk."""
        ...
