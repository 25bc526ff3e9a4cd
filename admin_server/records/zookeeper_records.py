"""The durable state in ZooKeeper, for admin servers that take over from each other; has the methods of `store.Store`.

Invariant: only the leader of the newest generation writes. Every write is a transaction that first checks the version
of the node `leader` against this generation, so that late writes of a deposed leader, or repetitions by the client
library, change nothing. No epoch, incarnation or key id is used twice, because each is written before it is used.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from kazoo.client import KazooClient, TransactionRequest
from kazoo.handlers.threading import AsyncResult

from tandemfeed.admin_server.feed.keys.channel_keys import ChannelKey, new_channel_key, new_start
from tandemfeed.admin_server.feed.keys.key_times import KeyTimes
from tandemfeed.admin_server.feed.members.registrations import ProcessRecord, ProcessStart
from tandemfeed.admin_server.records.leadership import Fence
from tandemfeed.admin_server.records.lease_records import EPOCH_BLOCK, STARTS_KEPT, HistoryEvent, RecordsUnavailable
from tandemfeed.admin_server.records.zookeeper import ZOOKEEPER_ERRORS, Conflict, check, commit, read, write
from tandemfeed.admin_server.records.zookeeper_sealing import KeySealer
from tandemfeed.transport.sealing.announced_starts import SALT_SIZE
from tandemfeed.v1 import common_pb2

TRIES_MAX = 8  # for a change whose node was changed concurrently, which only threads of this server can do
Result = TypeVar("Result")
Row = dict[str, Any]


class Deposed(RecordsUnavailable):
    """Another server leads, so the writes of this one have no effect."""


class ZooKeeperRecords:
    """The records, as the leader of one generation sees them. Safe to call from any thread.

    Args:
        generation: the version of the node `leader` that this leadership created.
        fence: says whether this server may grant.
        on_failure: called when an operation fails, because a server that cannot write must not lead.
        now_unix_ns: the wall clock, which the validity of keys follows.
    """

    def __init__(
        self,
        client: KazooClient,
        root: str,
        generation: int,
        fence: Fence,
        sealer: KeySealer,
        on_failure: Callable[[], None],
        now_unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._now_unix_ns = now_unix_ns
        self._client, self._root, self._generation = client, root, generation
        self._fence, self._sealer, self._on_failure = fence, sealer, on_failure
        self._timeout_s = fence.validity_ns / 1e9  # after a longer wait for an answer, the leadership has ended anyway
        self.key_times = KeyTimes()
        self._lock = threading.Lock()
        self._existing: set[str] = set()
        self._changes: tuple[int, int] | None = None  # the node "changes": its value and version; None: to be read
        self._known_generation = 0

    @property
    def generation(self) -> int:
        """Counts the changes that were committed; 0 until it was read, which `read_generation` does."""
        return self._known_generation

    def read_generation(self) -> int:
        """The generation as recorded."""
        row, _ = self._read("changes")
        self._known_generation = 0 if row is None else int(row["count"])
        return self._known_generation

    def raise_generation(self, at_least: int) -> None:
        """Make the generation at least this, after a restored backup."""
        self._until_done(lambda: self._commit([], at_least))

    def may_grant(self) -> bool:
        """True while no other server can have taken over."""
        return self._fence.allows_grants(time.monotonic_ns())

    def last_lease(self, feed_id: int) -> tuple[int, int] | None:
        """The last recorded (epoch, holder); None if the feed's lease was never held."""
        row, _ = self._read(f"feeds/{feed_id}/lease")
        return None if row is None else (row["epoch"], row["adapter_id"])

    def reserved_end(self, feed_id: int) -> int:
        """The last reserved epoch; 0 if none."""
        row, _ = self._read(f"feeds/{feed_id}/epochs")
        return 0 if row is None else int(row["reserved_end"])

    def reserve_epochs(self, feed_id: int, after: int) -> int:
        """Reserve a block of epochs that follow `after`; return the last."""

        def extend(row: Row | None) -> Row:
            known = 0 if row is None else int(row["reserved_end"])
            return {"reserved_end": max(known, after + EPOCH_BLOCK)}

        self._change(f"feeds/{feed_id}/epochs", extend)
        self._guarded(lambda: self._ensure(f"feeds/{feed_id}/lease"))  # so that later notes need not create it
        self._guarded(lambda: self._ensure(f"feeds/{feed_id}/term"))
        self._guarded(lambda: self._ensure(f"feeds/{feed_id}/history"))
        return after + EPOCH_BLOCK

    def note_lease(self, feed_id: int, epoch: int, adapter_id: int) -> None:
        """Record the holder, so that it may continue under another server; does not wait.

        The writes of a session take effect in the order of their sending. A failed write ends the leadership.
        """
        self._note(f"feeds/{feed_id}/lease", {"epoch": epoch, "adapter_id": adapter_id})

    def noted_ttl_ns(self, feed_id: int) -> int:
        """The longest term that may have been announced; 0 if none was noted."""
        row, _ = self._read(f"feeds/{feed_id}/term")
        return 0 if row is None else int(row["ttl_ns"])

    def note_ttl(self, feed_id: int, ttl_ns: int) -> None:
        """Record the longest term; does not wait, like `note_lease`."""
        self._note(f"feeds/{feed_id}/term", {"ttl_ns": ttl_ns})

    def newest_session(self, feed_id: int) -> int:
        """The newest noted session; 0 if none."""
        row, _ = self._read(f"feeds/{feed_id}/session")
        return 0 if row is None else int(row["session"])

    def note_session(self, feed_id: int, session: int) -> None:
        """Record the session that the feed's adapters have begun; does not wait, like `note_lease`."""
        self._note(f"feeds/{feed_id}/session", {"session": session})

    def failed_adapters(self, feed_id: int) -> dict[int, str]:
        """adapter_id -> reason, for the adapters that were failed and not readmitted."""
        row, _ = self._read(f"feeds/{feed_id}/failed")
        return {int(adapter_id): str(reason) for adapter_id, reason in (row or {}).items()}

    def note_failed(self, feed_id: int, adapter_id: int, reason: str) -> None:
        """Record that an adapter is failed."""
        self._change(f"feeds/{feed_id}/failed", lambda row: {**(row or {}), str(adapter_id): reason})

    def note_readmitted(self, feed_id: int, adapter_id: int) -> None:
        """Record that an adapter is no longer failed."""
        self._change(f"feeds/{feed_id}/failed", lambda row: _without(row, adapter_id))

    def drained_adapters(self, feed_id: int) -> dict[int, str]:
        """adapter_id -> reason, for the adapters that were drained and not undrained."""
        row, _ = self._read(f"feeds/{feed_id}/drained")
        return {int(adapter_id): str(reason) for adapter_id, reason in (row or {}).items()}

    def note_drained(self, feed_id: int, adapter_id: int, reason: str) -> None:
        """Record that an adapter is drained."""
        self._change(f"feeds/{feed_id}/drained", lambda row: {**(row or {}), str(adapter_id): reason})

    def note_undrained(self, feed_id: int, adapter_id: int) -> None:
        """Record that an adapter is no longer drained."""
        self._change(f"feeds/{feed_id}/drained", lambda row: _without(row, adapter_id))

    def history(self, feed_id: int) -> list[HistoryEvent]:
        """The last noted events, the newest last."""
        rows, _ = self._read(f"feeds/{feed_id}/history")
        return [HistoryEvent(*event) for event in rows or []]

    def note_history(self, feed_id: int, events: list[HistoryEvent]) -> None:
        """Record the last events; does not wait, like `note_lease`."""
        self._note(f"feeds/{feed_id}/history", events)

    def new_start(self, feed_id: int, adapter_id: int, public_key: bytes) -> common_pb2.AdapterStart:
        """A new start, with an incarnation that no other start ever had."""

        def attempt() -> common_pb2.AdapterStart:
            row, version = self._read("incarnations")
            start = new_start(public_key, incarnation=1 if row is None else int(row["newest"]) + 1)
            path = f"feeds/{feed_id}/starts/{adapter_id}"
            rows, own_version = self._read(path)
            place = _start_place(feed_id, adapter_id, start.incarnation)
            sealed = self._sealer.seal(start.salt + public_key, place)  # so that only admin servers can add one
            made = {"incarnation": start.incarnation, "start": sealed, "since_unix_ns": start.since_unix_ns}
            kept = [*(rows or []), made][-STARTS_KEPT:]
            self._commit([("incarnations", {"newest": start.incarnation}, version), (path, kept, own_version)])
            return start

        return self._until_done(attempt)

    def newest_incarnation(self) -> int:
        """The newest incarnation that any start had; 0 if none."""
        row, _ = self._read("incarnations")
        return 0 if row is None else int(row["newest"])

    def skip_incarnations(self, after: int) -> None:
        """Make later starts have incarnations after this."""
        self._change("incarnations", lambda row: {"newest": max(after, 0 if row is None else int(row["newest"]))})

    def starts(self, feed_id: int) -> dict[int, list[common_pb2.AdapterStart]]:
        """The last STARTS_KEPT starts of each adapter, the newest last."""
        return {
            adapter_id: [self._start_from(row, feed_id, adapter_id) for row in rows]
            for adapter_id, rows in self._read_all(f"feeds/{feed_id}/starts").items()
        }

    def _start_from(self, row: Row, feed_id: int, adapter_id: int) -> common_pb2.AdapterStart:
        opened = self._sealer.open(row["start"], _start_place(feed_id, adapter_id, row["incarnation"]))
        return common_pb2.AdapterStart(
            incarnation=row["incarnation"],
            salt=opened[:SALT_SIZE],
            public_key=opened[SALT_SIZE:],
            since_unix_ns=row["since_unix_ns"],
        )

    def note_registration(self, feed_id: int, adapter_id: int, incarnation: int, rpc_endpoint: str) -> None:
        """Record the adapter's address, for clients that ask another server."""
        row = {"incarnation": incarnation, "rpc_endpoint": rpc_endpoint}
        self._change(f"feeds/{feed_id}/adapters/{adapter_id}", lambda _row: row)

    def registrations(self, feed_id: int) -> dict[int, tuple[int, str]]:
        """(incarnation, RPC endpoint) of each adapter that has ever registered."""
        rows = self._read_all(f"feeds/{feed_id}/adapters")
        return {adapter_id: (row["incarnation"], row["rpc_endpoint"]) for adapter_id, row in rows.items()}

    def note_process(self, feed_id: int, adapter_id: int, record: ProcessRecord) -> None:
        """Record which process is registered as an adapter."""
        start = record.start
        row = {
            "nonce": start.nonce.hex(),
            "process_id": start.process_id,
            "host": start.host,
            "peer": start.peer,
            "at_unix_ns": record.at_unix_ns,
            "is_attended": record.is_attended,
            "replaced": [nonce.hex() for nonce in record.replaced],
        }
        self._change(f"feeds/{feed_id}/processes/{adapter_id}", lambda _row: row)

    def processes(self, feed_id: int) -> dict[int, ProcessRecord]:
        """adapter_id -> its last noted process."""
        return {
            adapter_id: ProcessRecord(
                ProcessStart(bytes.fromhex(row["nonce"]), row["process_id"], row["host"], row["peer"]),
                row["at_unix_ns"],
                row["is_attended"],
                tuple(bytes.fromhex(nonce) for nonce in row["replaced"]),
            )
            for adapter_id, row in self._read_all(f"feeds/{feed_id}/processes").items()
        }

    def stream_keys(self, feed_id: int, channel_id: int) -> list[ChannelKey]:
        """The channel's keys that have not expired; creates the first key, and a successor when one is due."""

        def attempt() -> list[Row]:
            now = self._now_unix_ns()
            path = f"feeds/{feed_id}/keys/{channel_id}"
            rows, version = self._read(path)
            valid = [row for row in rows or [] if row["expires_unix_ns"] > now]
            begins = self.key_times.next_begins_ns(valid[-1]["expires_unix_ns"] if valid else None, now)
            if begins is None:
                return valid
            return self._add_key(feed_id, channel_id, valid, version, begins)

        return [self._key_from(row, feed_id, channel_id) for row in self._until_done(attempt)]

    def replace_stream_key(self, feed_id: int, channel_id: int, lead_ns: int) -> None:
        """Create a new key, and let the channel's other keys expire soon."""

        def attempt() -> list[Row]:
            now, times = self._now_unix_ns(), self.key_times
            rows, version = self._read(f"feeds/{feed_id}/keys/{channel_id}")
            ends = now + times.rotation_kept_ns
            valid = [row for row in rows or [] if now < row["expires_unix_ns"]]
            begun = [row for row in valid if not times.begins_in_ns(row["not_before_unix_ns"], now)]
            kept = [{**row, "expires_unix_ns": min(row["expires_unix_ns"], ends)} for row in begun]
            return self._add_key(feed_id, channel_id, kept, version, now + lead_ns)

        self._until_done(attempt)

    def documents(self, kind: str) -> dict[str, bytes]:
        """Every document of a kind, by its name."""
        rows = {name: self._read(f"{kind}/{name}")[0] for name in self._names(kind)}
        return {name: self._sealer.open(row["sealed"], f"{kind} {name}") for name, row in rows.items()}

    def note_document(self, kind: str, name: str, document: bytes) -> None:
        """Record a document, sealed, so that only admin servers can read or make one."""
        row = {"sealed": self._sealer.seal(document, f"{kind} {name}")}
        self._change(f"{kind}/{name}", lambda _row: row)

    def _add_key(self, feed_id: int, channel_id: int, rows: list[Row], version: int, begins: int) -> list[Row]:
        """Commit these rows of a channel with a new key after them."""
        now = self._now_unix_ns()
        ids, ids_version = self._read("key_ids")
        live = {key_id: ends for key_id, ends in (ids or {}).items() if ends > now}
        key = new_channel_key(channel_id, begins, begins + self.key_times.valid_ns, {int(each) for each in live})
        live[str(key.key_id)] = key.expires_unix_ns
        made = [*rows, self._row_of(key, feed_id)]
        self._commit([("key_ids", live, ids_version), (f"feeds/{feed_id}/keys/{channel_id}", made, version)])
        return made

    def _row_of(self, key: ChannelKey, feed_id: int) -> Row:
        place = _place(feed_id, key.channel_id, key.key_id)
        return {
            "key_id": key.key_id,
            "key": self._sealer.seal(key.key, place),
            "decision_key": self._sealer.seal(key.decision_key, f"{place} decisions"),
            "not_before_unix_ns": key.not_before_unix_ns,
            "expires_unix_ns": key.expires_unix_ns,
        }

    def _key_from(self, row: Row, feed_id: int, channel_id: int) -> ChannelKey:
        place = _place(feed_id, channel_id, row["key_id"])
        return ChannelKey(
            row["key_id"],
            channel_id,
            self._sealer.open(row["key"], place),
            self._sealer.open(row["decision_key"], f"{place} decisions"),
            row["not_before_unix_ns"],
            row["expires_unix_ns"],
        )

    # ---- rights that were given out ----

    def granted(self, feed_id: int) -> dict[int, set[str]]:
        """channel_id -> the identities that may have its keys."""
        return {
            channel_id: set(names or ()) for channel_id, names in self._read_all(f"feeds/{feed_id}/granted").items()
        }

    def note_granted(self, feed_id: int, channel_ids: Collection[int], identity: str) -> None:
        """Record that an identity is about to get keys."""
        for channel_id in channel_ids:
            self._change(f"feeds/{feed_id}/granted/{channel_id}", lambda names: sorted({*(names or ()), identity}))

    def forget_granted(self, feed_id: int, channel_id: int, identities: Collection[str]) -> None:
        """Record that the keys that these identities have are no longer used."""
        path = f"feeds/{feed_id}/granted/{channel_id}"
        self._change(path, lambda names: [name for name in names or () if name not in identities])

    def revoked_tokens(self, feed_id: int) -> dict[str, int]:
        """identity ("": all) -> the time before which its tokens were revoked."""
        row, _ = self._read(f"feeds/{feed_id}/revoked_tokens")
        return dict(row or {})

    def note_revoked_tokens(self, feed_id: int, revoked: dict[str, int]) -> None:
        """Record what `revoked_tokens` returns from now on."""
        self._change(f"feeds/{feed_id}/revoked_tokens", lambda _row: dict(revoked))

    def audit_head(self) -> tuple[int, str] | None:
        """None: each server has a log of its own, and only the leader could write its head here."""
        return None

    def note_audit_head(self, number: int, digest: str) -> None:
        """Nothing, because the head is not kept here."""

    # ---- reading and writing ----

    def _note(self, path: str, row: Any) -> None:
        self._guarded(lambda: self._ensure(path))
        transaction: TransactionRequest = self._client.transaction()
        transaction.check(f"{self._root}/leader", self._generation)
        transaction.set_data(f"{self._root}/{path}", json.dumps(row).encode())
        transaction.commit_async().rawlink(self._note_outcome)

    def _note_outcome(self, outcome: AsyncResult) -> None:
        """Called in the client's thread."""
        try:
            check(outcome.get_nowait())
        except (*ZOOKEEPER_ERRORS, Conflict):
            self._on_failure()

    def _read(self, path: str) -> tuple[Any, int]:
        return self._guarded(lambda: read(self._client, f"{self._root}/{path}", self._timeout_s))

    def _read_all(self, path: str) -> dict[int, Any]:
        """The nodes under a path, by their numbers."""
        return {int(name): self._read(f"{path}/{name}")[0] for name in self._names(path)}

    def _names(self, path: str) -> list[str]:
        """The names of the nodes under a path."""
        self._guarded(lambda: self._ensure(path))
        children = self._client.get_children_async
        return self._guarded(lambda: list(children(f"{self._root}/{path}").get(timeout=self._timeout_s)))

    def _change(self, path: str, change: Callable[[Any], Any]) -> None:
        def attempt() -> None:
            row, version = self._read(path)
            self._commit([(path, change(row), version)])

        self._until_done(attempt)

    def _until_done(self, attempt: Callable[[], Result]) -> Result:
        """Repeat the attempt as long as another thread of this server changed the node first."""
        with self._lock:
            for _ in range(TRIES_MAX):
                try:
                    return attempt()
                except Conflict as conflict:
                    self._changes = None
                    if conflict.operation == 0:
                        self._on_failure()
                        raise Deposed("another admin server has become active") from conflict
        raise RecordsUnavailable(f"gave up writing a record to ZooKeeper: it changed during {TRIES_MAX} attempts")

    def _commit(self, changes: list[tuple[str, Any, int]], generation: int = 0) -> None:
        """Write nodes, and count the change; the generation is then at least the given one."""
        if self._changes is None:
            row, found = self._read("changes")
            self._changes = (0 if row is None else int(row["count"])), found
        known, version = self._changes
        count = max(known, generation) + 1

        def send() -> list[Any]:
            transaction: TransactionRequest = self._client.transaction()
            transaction.check(f"{self._root}/leader", self._generation)
            for path, value, each_version in [*changes, ("changes", {"count": count}, version)]:
                if "/" in path:
                    self._ensure(path.rpartition("/")[0])
                write(transaction, f"{self._root}/{path}", value, each_version)
            return commit(transaction, self._timeout_s)

        try:
            self._guarded(send)
        except BaseException:
            self._changes = None  # whether it was applied may be unknown
            raise
        self._changes, self._known_generation = (count, version + 1), count

    def _ensure(self, path: str) -> None:
        """Create the parent node of others if necessary, because a transaction cannot create a path."""
        if path not in self._existing:
            self._client.ensure_path_async(f"{self._root}/{path}").get(timeout=self._timeout_s)
            self._existing.add(path)

    def _guarded(self, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except ZOOKEEPER_ERRORS as away:
            self._on_failure()
            raise RecordsUnavailable(f"ZooKeeper failed or did not answer: {type(away).__name__}") from away


def _without(row: Row | None, adapter_id: int) -> Row:
    return {known: value for known, value in (row or {}).items() if known != str(adapter_id)}


def _start_place(feed_id: int, adapter_id: int, incarnation: int) -> str:
    return f"feed {feed_id} adapter {adapter_id} incarnation {incarnation}"


def _place(feed_id: int, channel_id: int, key_id: int) -> str:
    return f"feed {feed_id} channel {channel_id} key {key_id}"
