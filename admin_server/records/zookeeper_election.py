"""The election of the active admin server: a server becomes a candidate, confirms its leadership regularly, and steps
down when it cannot.

Two mechanisms make it safe. The version of the node `leader` is the *generation*: a server that takes over increases
it, and every write of an older generation fails. And a leader grants only if a confirmation, which is such a write, was
requested less than `validity` ago by its own clock. A successor waits for the validity that its predecessor recorded
before it reads any lease, and then for each lease's term. So every grant of an old leader has expired before a new
leader grants, however long either was paused. ZooKeeper's sessions only determine how soon a successor takes over.

A leader whose connection breaks steps down immediately and ends every stream; adapters without an admin server keep
their roles by consent. It becomes a candidate again when ZooKeeper answers.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import KazooState

from tandemfeed.admin_server.records.leadership import Fence
from tandemfeed.admin_server.records.lease_records import RecordsUnavailable
from tandemfeed.admin_server.records.zookeeper import ZOOKEEPER_ERRORS, Conflict, ZooKeeperSettings, commit, read, write
from tandemfeed.admin_server.records.zookeeper_records import ZooKeeperRecords
from tandemfeed.admin_server.records.zookeeper_sealing import KeySealer
from tandemfeed.runtime.threads import end_process, start_thread

LOG = logging.getLogger("tandemfeed.admin_server.election")
RETRY_PAUSE_S = 0.2
CONFIRMATIONS_PER_VALIDITY = 4  # three of them may be late


class Candidate(Protocol):
    """The election's calls to its server, made from one thread and always in this order: prepare, open, close."""

    def prepare(self, records: ZooKeeperRecords) -> None:
        """Read the records of the predecessor. The server does not serve calls yet."""

    def open(self) -> None:
        """Serve calls: this server is active."""

    def close(self) -> None:
        """Become a standby: end every stream. May be called without open, and without prepare."""

    def follow(self, active_endpoint: str) -> None:
        """Which server is active; "" if unknown. Called from any thread, at any time."""


@dataclass(slots=True)
class _Term:
    """One leadership of this server."""

    generation: int
    fence: Fence
    ended: threading.Event = field(default_factory=threading.Event)

    def end(self) -> None:
        self.fence.close()  # first, so that nothing is granted after this line
        self.ended.set()


class Election:
    """One server's candidacy.

    Args:
        endpoint: the address of this server for clients; standbys report it to their callers.
    """

    def __init__(
        self,
        client: KazooClient,
        settings: ZooKeeperSettings,
        endpoint: str,
        sealer: KeySealer,
        candidate: Candidate,
    ) -> None:
        self._client, self._settings, self._endpoint = client, settings, endpoint
        self._sealer, self._candidate = sealer, candidate
        self._leader_path = f"{settings.root}/leader"
        self._stand_path = f"{settings.root}/election"
        self._name = f"{uuid.uuid4().hex}-"  # identifies this server's node even if the reply to its creation was lost
        self._timeout_s = settings.validity_ns / 1e9
        self._stopped = threading.Event()
        self._is_connected = threading.Event()
        self._changed = threading.Event()  # the queue ahead of this server changed, the connection changed, or a stop
        self._term: _Term | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Become a candidate."""
        self._client.add_listener(self._on_connection)
        self._on_connection(self._client.state)
        self._thread = start_thread(self._run, "election", self._on_failure)

    def stop(self) -> None:
        """Step down and leave the election; another server takes over immediately if ZooKeeper can be reached."""
        self._stopped.set()
        self._end_term()
        self._changed.set()
        if self._thread is not None:
            self._thread.join()  # all its waits are bounded
        self._client.stop()  # ends the session, which deletes this server's node
        self._client.close()

    def step_down(self) -> None:
        """End this leadership, if this server leads; then it is a candidate again, like the others."""
        self._end_term()

    def _on_connection(self, state: str) -> None:
        """Called in the client's thread."""
        if state == KazooState.CONNECTED:
            self._is_connected.set()
        else:
            self._is_connected.clear()
            self._end_term()
            self._candidate.follow("")  # the active server is unknown now
        self._changed.set()

    def _end_term(self) -> None:
        if (term := self._term) is not None:
            term.end()

    def _on_failure(self, name: str, failure: BaseException) -> None:
        """Without its thread, this server would lead without confirmation, or stay a standby for ever: end the process,
        so that another server leads and this one is restarted."""
        self._end_term()
        end_process(name, failure)

    # ---- the election's thread ----

    def _run(self) -> None:
        while not self._stopped.is_set():
            if not self._is_connected.wait(RETRY_PAUSE_S):
                continue
            try:
                if (own_node := self._await_turn()) is not None:
                    self._lead(own_node)
            except (*ZOOKEEPER_ERRORS, Conflict, RecordsUnavailable, OSError) as away:
                LOG.warning("not active; retrying", extra={"why": f"{type(away).__name__}: {away}"})
            finally:
                self._withdraw()
            self._stopped.wait(RETRY_PAUSE_S)

    def _await_turn(self) -> str | None:
        """Wait in the queue until this server is first; return its node's path, or None if it is no longer queued."""
        own = min(self._own_names(), key=_place_of, default="")
        if not own:
            made = self._client.create_async(
                f"{self._stand_path}/{self._name}", self._endpoint.encode(), ephemeral=True, sequence=True
            )
            own = made.get(timeout=self._timeout_s).rpartition("/")[2]
        while True:
            self._changed.clear()  # first, so that no later change is missed
            if self._stopped.is_set() or not self._is_connected.is_set():
                return None
            queue = sorted(self._names(), key=_place_of)
            if own not in queue:
                return None
            if queue[0] == own:
                return f"{self._stand_path}/{own}"
            self._candidate.follow(self._endpoint_of(queue[0]))
            before = f"{self._stand_path}/{queue[queue.index(own) - 1]}"
            watched = self._client.exists_async(before, watch=lambda _event: self._changed.set())
            if watched.get(timeout=self._timeout_s) is not None:
                self._changed.wait()

    def _lead(self, own_node: str) -> None:
        term, predecessor_validity_ns = self._take_over(own_node)
        LOG.info("taking over", extra={"generation": term.generation, "wait_ms": predecessor_validity_ns // 1_000_000})
        try:
            if term.ended.wait(predecessor_validity_ns / 1e9):
                return
            records = ZooKeeperRecords(
                self._client, self._settings.root, term.generation, term.fence, self._sealer, term.end
            )
            self._candidate.prepare(records)
            self._confirm(term, own_node)
            self._candidate.open()
            LOG.info("became active", extra={"generation": term.generation})
            while not term.ended.wait(self._timeout_s / CONFIRMATIONS_PER_VALIDITY):
                self._confirm(term, own_node)
        finally:
            term.end()
            self._candidate.follow("")
            self._candidate.close()
            LOG.info("became standby", extra={"generation": term.generation})
        self._resign(term)

    def _take_over(self, own_node: str) -> tuple[_Term, int]:
        """Increase the generation; return the new term, and how long the predecessor may still rely on its own."""
        row, version = read(self._client, self._leader_path, self._timeout_s)
        self._term = term = _Term(version + 1, Fence(self._settings.validity_ns))
        if not self._is_connected.is_set() or self._stopped.is_set():
            term.end()  # the connection broke, or a stop came, before the term existed
        transaction = self._client.transaction()
        transaction.set_data(own_node, self._endpoint.encode())  # fails if the session has ended
        row_written = {"endpoint": self._endpoint, "validity_ns": self._settings.validity_ns}
        write(transaction, self._leader_path, row_written, version)
        commit(transaction, self._timeout_s)
        return term, 0 if row is None else int(row["validity_ns"])

    def _confirm(self, term: _Term, own_node: str) -> None:
        requested_at_ns = time.monotonic_ns()
        transaction = self._client.transaction()
        transaction.check(self._leader_path, term.generation)
        transaction.set_data(own_node, self._endpoint.encode())
        commit(transaction, self._timeout_s)
        term.fence.confirm(requested_at_ns)

    def _resign(self, term: _Term) -> None:
        """Record that no successor needs to wait, because the closed fence prevents further grants."""
        if self._is_connected.is_set():
            transaction = self._client.transaction()
            write(transaction, self._leader_path, {"endpoint": "", "validity_ns": 0}, term.generation)
            commit(transaction, self._timeout_s)

    def _withdraw(self) -> None:
        """Leave the queue, so that this server does not later wait for its own old node."""
        try:
            for name in self._own_names() if self._is_connected.is_set() else ():
                self._client.delete_async(f"{self._stand_path}/{name}").get(timeout=self._timeout_s)
        except NoNodeError:
            pass
        except ZOOKEEPER_ERRORS as away:  # the end of the session deletes the node, or the next candidacy finds it
            LOG.info("could not leave the election queue", extra={"why": type(away).__name__})

    def _names(self) -> list[str]:
        names: list[str] = self._client.get_children_async(self._stand_path).get(timeout=self._timeout_s)
        return names

    def _own_names(self) -> list[str]:
        return [name for name in self._names() if name.startswith(self._name)]

    def _endpoint_of(self, name: str) -> str:
        try:
            data, _ = self._client.get_async(f"{self._stand_path}/{name}").get(timeout=self._timeout_s)
        except NoNodeError:
            return ""
        return str(data.decode())


def _place_of(name: str) -> str:
    """The number of a node: ZooKeeper appends ten digits to its name."""
    return name[-10:]
