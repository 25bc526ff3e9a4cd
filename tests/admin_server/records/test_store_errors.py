"""For every error of the database, the embedded store raises `RecordsUnavailable`, and never SQLite's own errors."""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tandemfeed.admin_server.feed.members.registrations import ProcessRecord, ProcessStart
from tandemfeed.admin_server.records.lease_records import RecordsUnavailable
from tandemfeed.admin_server.records.store import Store
from tests.admin_server.cluster_files import running_server

WITHOUT_QUERIES = {"may_grant", "read_generation", "close"}
# What the file of notes has: `test_notes` makes its writes fail.
NOTED = {"last_lease", "note_lease", "noted_ttl_ns", "note_ttl", "newest_session", "note_session"}
NOTED |= {"epochs_beyond", "history", "note_history", "audit_head", "note_audit_head"}
ARGUMENTS: dict[str, object] = {
    "feed_id": 1,
    "adapter_id": 1,
    "channel_id": 1,
    "epoch": 1,
    "after": 0,
    "incarnation": 1,
    "reason": "out of sync",
    "at_least": 1,
    "mark": "mark",
    "channel_ids": [1],
    "identity": "reader",
    "identities": ["reader"],
    "revoked": {"reader": 1},
    "number": 1,
    "digest": "0" * 64,
    "kind": "identities",
    "name": "reader",
    "document": b"{}",
    "rpc_endpoint": "127.0.0.1:1",
    "session": 20_261_122,
    "events": [],
    "ttl_ns": 300_000_000,
    "lead_ns": 300_000_000,
    "public_key": bytes(32),
    "record": ProcessRecord(ProcessStart(bytes(16)), 1),
}
METHODS = sorted(
    name
    for name, _ in inspect.getmembers(Store, inspect.isfunction)
    if not name.startswith("_") and name not in WITHOUT_QUERIES | NOTED
)


def deny(connection: sqlite3.Connection) -> None:
    """Make every statement fail when it is prepared."""
    connection.set_authorizer(lambda *_: sqlite3.SQLITE_DENY)


def interrupt(connection: sqlite3.Connection) -> None:
    """Make every statement fail while it runs, including while its rows are fetched."""
    connection.set_progress_handler(lambda: 1, 1)


def close(connection: sqlite3.Connection) -> None:
    """Close the connection, so that SQLite reports misuse."""
    connection.close()


@dataclass
class OpenStore:
    """A store and the connections that it opened."""

    store: Store
    connections: list[sqlite3.Connection]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenStore]:
    connections: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def connect_and_keep(path: Path, **options: Any) -> sqlite3.Connection:
        connections.append(connect(path, **options))
        return connections[-1]

    monkeypatch.setattr(sqlite3, "connect", connect_and_keep)
    store = Store(tmp_path / "leases.sqlite")
    yield OpenStore(store, connections)
    store.close()


def test_every_public_method_is_tested() -> None:
    assert len(METHODS) >= 12
    assert {"new_start", "starts", "registrations", "note_registration"} <= set(METHODS)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fail", [deny, interrupt, close])
def test_a_failing_database_raises_records_unavailable(
    opened: OpenStore, method: str, fail: Callable[[sqlite3.Connection], None]
) -> None:
    assert opened.connections
    for connection in opened.connections:
        fail(connection)
    call = getattr(opened.store, method)
    arguments = {name: ARGUMENTS[name] for name in inspect.signature(call).parameters}
    with pytest.raises(RecordsUnavailable) as raised:
        call(**arguments)
    assert isinstance(raised.value.__cause__, sqlite3.Error)
    assert str(raised.value)


def test_the_error_for_a_file_that_is_not_a_database_names_its_path(tmp_path: Path) -> None:
    path = tmp_path / "leases.sqlite"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(RecordsUnavailable, match=r"leases\.sqlite: file is not a database"):
        Store(path)


def test_a_server_whose_database_is_damaged_does_not_start(tmp_path: Path) -> None:
    with running_server(tmp_path):
        pass
    for part in (tmp_path / "state").glob("leases.sqlite*"):
        part.write_bytes(b"not a database" * 100)
    with pytest.raises(RecordsUnavailable, match="file is not a database"), running_server(tmp_path):
        pass
