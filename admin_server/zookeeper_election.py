"""Which of several admin servers is active: stands for it, proves it again and again, steps down when it cannot.

Two things make it safe. The node `leader` has a version, the *generation*: whoever takes over raises it, and every
write of an older generation fails. And no leader grants without a confirmation, itself such a write, that was asked for
less than `validity` ago by its own clock. A successor waits out the validity that its predecessor wrote down before it
looks at any lease, and each lease's term after that. So what an old leader granted has run out before a new one grants,
however long either was paused, and whatever ZooKeeper's sessions did: they only decide how soon somebody takes over.

A leader whose connection breaks steps down at once: it ends every stream, and adapters without any admin server keep
their roles by consent. It stands again when ZooKeeper answers.
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

from admin_server.leadership import Fence
from admin_server.lease_records import RecordsUnavailable
from admin_server.zookeeper import AWAY, Conflict, ZooKeeperSettings, commit, read, write
from admin_server.zookeeper_records import ZooKeeperRecords
from admin_server.zookeeper_sealing import KeySealer

LOG = logging.getLogger("admin_server.election")
RETRY_PAUSE_S = 0.2
CONFIRMATIONS_PER_VALIDITY = 4  # three may be late


class Candidate(Protocol):
    """What the election tells its server, from one thread, always in this order: prepare, open, close."""

    def prepare(self, records: ZooKeeperRecords) -> None:
        """Read what the predecessor left; nothing is served yet."""

    def open(self) -> None:
        """Serve: this server is active."""

    def close(self) -> None:
        """Be a standby: end every stream. May come without open, and without prepare."""

    def follow(self, active_endpoint: str) -> None:
        """Another server is active, or this one; "" if none is known. From any thread, at any time."""


@dataclass(slots=True)
class _Term:
    """One time of leading."""

    generation: int
    fence: Fence
    ended: threading.Event = field(default_factory=threading.Event)

    def end(self) -> None:
        self.fence.close()  # first: nothing is granted from here on
        self.ended.set()


class Election:
    """One server's standing for leadership.

    Args:
        endpoint: where this server's clients reach it; told to those who ask a standby.
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
        self._name = f"{uuid.uuid4().hex}-"  # finds the own node even if the reply to its making was lost
        self._timeout_s = settings.validity_ns / 1e9
        self._stopped = threading.Event()
        self._is_connected = threading.Event()
        self._moved = threading.Event()  # the queue before us, the connection, or a stop
        self._term: _Term | None = None
        self._thread = threading.Thread(target=self._run, name="election", daemon=True)

    def start(self) -> None:
        """Stand from now on."""
        self._client.add_listener(self._on_connection)
        self._on_connection(self._client.state)
        self._thread.start()

    def stop(self) -> None:
        """Step down and leave; another server takes over at once, if ZooKeeper hears of it."""
        self._stopped.set()
        self._end_term()
        self._moved.set()
        self._thread.join()  # every wait of it is bounded
        self._client.stop()  # ends the session, and with it the own node
        self._client.close()

    def _on_connection(self, state: str) -> None:
        """Called in the client's thread."""
        if state == KazooState.CONNECTED:
            self._is_connected.set()
        else:
            self._is_connected.clear()
            self._end_term()
            self._candidate.follow("")  # who is active now is not known here
        self._moved.set()

    def _end_term(self) -> None:
        if (term := self._term) is not None:
            term.end()

    # ---- the election's thread ----

    def _run(self) -> None:
        while not self._stopped.is_set():
            if not self._is_connected.wait(RETRY_PAUSE_S):
                continue
            try:
                if (own_node := self._await_turn()) is not None:
                    self._lead(own_node)
            except (*AWAY, Conflict, RecordsUnavailable) as away:
                LOG.warning("not active", extra={"why": f"{type(away).__name__}: {away}"})
            except Exception:  # whatever it is: without this thread the server is a standby for ever
                LOG.exception("not active")
            finally:
                self._withdraw()
            self._stopped.wait(RETRY_PAUSE_S)

    def _await_turn(self) -> str | None:
        """Stand in the queue until nobody is before us: the own node's path; None if the place was lost or given up."""
        own = min(self._own_names(), key=_place_of, default="")
        if not own:
            made = self._client.create_async(
                f"{self._stand_path}/{self._name}", self._endpoint.encode(), ephemeral=True, sequence=True
            )
            own = made.get(timeout=self._timeout_s).rpartition("/")[2]
        while True:
            self._moved.clear()  # first: what moves from here on is seen
            if self._stopped.is_set() or not self._is_connected.is_set():
                return None
            queue = sorted(self._names(), key=_place_of)
            if own not in queue:
                return None
            if queue[0] == own:
                return f"{self._stand_path}/{own}"
            self._candidate.follow(self._endpoint_of(queue[0]))
            before = f"{self._stand_path}/{queue[queue.index(own) - 1]}"
            watched = self._client.exists_async(before, watch=lambda _event: self._moved.set())
            if watched.get(timeout=self._timeout_s) is not None:
                self._moved.wait()

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
            LOG.info("active", extra={"generation": term.generation})
            while not term.ended.wait(self._timeout_s / CONFIRMATIONS_PER_VALIDITY):
                self._confirm(term, own_node)
        finally:
            term.end()
            self._candidate.follow("")
            self._candidate.close()
            LOG.info("standby", extra={"generation": term.generation})
        self._resign(term)

    def _take_over(self, own_node: str) -> tuple[_Term, int]:
        """Raise the generation; how long the predecessor may still believe that it leads."""
        row, version = read(self._client, self._leader_path, self._timeout_s)
        self._term = term = _Term(version + 1, Fence(self._settings.validity_ns))
        if not self._is_connected.is_set() or self._stopped.is_set():
            term.end()  # it happened before there was a term to end
        transaction = self._client.transaction()
        transaction.set_data(own_node, self._endpoint.encode())  # is there as long as the session is
        told = {"endpoint": self._endpoint, "validity_ns": self._settings.validity_ns}
        write(transaction, self._leader_path, told, version)
        commit(transaction, self._timeout_s)
        return term, 0 if row is None else int(row["validity_ns"])

    def _confirm(self, term: _Term, own_node: str) -> None:
        asked_at_ns = time.monotonic_ns()
        transaction = self._client.transaction()
        transaction.check(self._leader_path, term.generation)
        transaction.set_data(own_node, self._endpoint.encode())
        commit(transaction, self._timeout_s)
        term.fence.confirm(asked_at_ns)

    def _resign(self, term: _Term) -> None:
        """The fence is closed: no successor needs to wait for what this server might grant."""
        if self._is_connected.is_set():
            transaction = self._client.transaction()
            write(transaction, self._leader_path, {"endpoint": "", "validity_ns": 0}, term.generation)
            commit(transaction, self._timeout_s)

    def _withdraw(self) -> None:
        """Leave the queue, so as not to stand behind oneself the next time."""
        try:
            for name in self._own_names() if self._is_connected.is_set() else ():
                self._client.delete_async(f"{self._stand_path}/{name}").get(timeout=self._timeout_s)
        except NoNodeError:
            pass
        except AWAY as away:  # then the session ends it, or the next turn finds it
            LOG.info("the place in the queue could not be given up", extra={"why": type(away).__name__})

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
    """ZooKeeper numbers the nodes with ten digits."""
    return name[-10:]
