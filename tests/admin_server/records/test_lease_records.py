"""The guarantees of all implementations of the records: the embedded store, and ZooKeeper (a real server)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tandemfeed.admin_server.feed.members.registrations import ProcessRecord, ProcessStart
from tandemfeed.admin_server.records.lease_records import EPOCH_BLOCK, ClusterRecords, HistoryEvent, RecordsUnavailable
from tandemfeed.admin_server.records.store import Store
from tandemfeed.admin_server.records.zookeeper import ZooKeeperSettings
from tests.admin_server.records.leader_by_hand import Leader
from tests.admin_server.records.zookeeper_server import ZooKeeperServer, needs_zookeeper, running_zookeeper

KEY = bytes(range(32))
SESSION_MS = 20_000  # no test waits for its end, because candidates leave explicitly
LEAD_NS = 300_000_000  # of a new key


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper") / "server") as server:
        yield server


class EmbeddedRecords:
    """The embedded store, which is closed and reopened as by a restarting server."""

    def __init__(self, path: Path) -> None:
        self._path, self._open = path, Store(path)

    def reopened(self) -> ClusterRecords:
        self._open.close()
        self._open = Store(self._path)
        return self._open

    @property
    def records(self) -> ClusterRecords:
        return self._open

    def close(self) -> None:
        self._open.close()


class SharedRecords:
    """Records in ZooKeeper, used by successive leaders."""

    def __init__(self, settings: ZooKeeperSettings) -> None:
        self._settings, self._cluster_key = settings, secrets.token_bytes(32)
        self._leader = Leader(settings, self._cluster_key)

    def reopened(self) -> ClusterRecords:
        self._leader.election.stop()
        self._leader = Leader(self._settings, self._cluster_key)
        return self.records

    @property
    def records(self) -> ClusterRecords:
        return self._leader.lead()

    def close(self) -> None:
        self._leader.election.stop()


@pytest.fixture(params=["store", pytest.param("zookeeper", marks=needs_zookeeper)])
def implementation(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedRecords | SharedRecords]:
    made: EmbeddedRecords | SharedRecords
    if request.param == "store":
        made = EmbeddedRecords(tmp_path / "leases.sqlite")
    else:
        server: ZooKeeperServer = request.getfixturevalue("zookeeper")
        made = SharedRecords(ZooKeeperSettings(server.hosts, f"/{tmp_path.name}", session_ms=SESSION_MS))
    try:
        yield made
    finally:
        made.close()


def test_the_last_recorded_holder_is_remembered(
    implementation: EmbeddedRecords | SharedRecords,
) -> None:
    records = implementation.records
    assert records.last_lease(1) is None
    records.note_lease(1, 5, 2)
    records.note_lease(1, 6, 1)
    records.note_lease(2, 9, 3)
    assert (records.last_lease(1), records.last_lease(2)) == ((6, 1), (9, 3))
    assert implementation.reopened().last_lease(1) == (6, 1)


def test_the_longest_term_is_remembered(implementation: EmbeddedRecords | SharedRecords) -> None:
    records = implementation.records
    assert records.noted_ttl_ns(1) == 0
    records.note_ttl(1, 600)
    records.note_ttl(1, 2_400)
    records.note_ttl(2, 300)
    assert (records.noted_ttl_ns(1), records.noted_ttl_ns(2)) == (2_400, 300)
    assert implementation.reopened().noted_ttl_ns(1) == 2_400


def test_the_session_is_remembered(implementation: EmbeddedRecords | SharedRecords) -> None:
    records = implementation.records
    assert records.newest_session(1) == 0
    records.note_session(1, 20_261_121)
    records.note_session(1, 20_261_122)
    assert (records.newest_session(1), records.newest_session(2)) == (20_261_122, 0)
    assert implementation.reopened().newest_session(1) == 20_261_122


def test_reserved_epochs_only_grow_and_are_remembered(implementation: EmbeddedRecords | SharedRecords) -> None:
    records = implementation.records
    assert records.reserved_end(1) == 0
    end = records.reserve_epochs(1, 0)
    assert end == EPOCH_BLOCK
    end = records.reserve_epochs(1, end)
    records.reserve_epochs(1, 0)  # by a caller that knows an older value
    assert records.reserved_end(1) == end == 2 * EPOCH_BLOCK
    assert (implementation.reopened().reserved_end(1), implementation.records.reserved_end(2)) == (end, 0)


def test_no_incarnation_is_used_twice(
    implementation: EmbeddedRecords | SharedRecords,
) -> None:
    with ThreadPoolExecutor(8) as callers:
        starts = list(
            callers.map(lambda place: implementation.records.new_start(1 + place % 2, 1 + place % 3, KEY), range(24))
        )
    given = [start.incarnation for start in starts]
    assert len(set(given)) == 24
    assert len({start.salt for start in starts}) == 24
    assert implementation.reopened().new_start(1, 1, KEY).incarnation > max(given)


def test_the_last_two_starts_of_each_adapter_are_remembered(implementation: EmbeddedRecords | SharedRecords) -> None:
    records = implementation.records
    assert records.starts(1) == {}
    _, second, third = (records.new_start(1, 1, bytes([place]) * 32) for place in range(3))
    other = records.new_start(1, 2, KEY)
    records.new_start(2, 1, KEY)
    assert (third.public_key, len(third.salt)) == (bytes([2]) * 32, 32)
    expected = {1: [second, third], 2: [other]}
    assert records.starts(1) == expected
    assert implementation.reopened().starts(1) == expected


def test_an_adapters_last_registration_is_remembered(implementation: EmbeddedRecords | SharedRecords) -> None:
    records = implementation.records
    assert records.registrations(1) == {}
    records.note_registration(1, 1, 3, "127.0.0.1:7001")
    records.note_registration(1, 2, 4, "127.0.0.1:7002")
    records.note_registration(1, 1, 5, "127.0.0.1:7003")
    expected = {1: (5, "127.0.0.1:7003"), 2: (4, "127.0.0.1:7002")}
    assert records.registrations(1) == expected
    assert implementation.reopened().registrations(1) == expected
    assert implementation.records.registrations(2) == {}


def test_the_process_registered_as_an_adapter_is_remembered(implementation: EmbeddedRecords | SharedRecords) -> None:
    records = implementation.records
    assert records.processes(1) == {}
    first = ProcessRecord(ProcessStart(b"1" * 16, 4711, "exchange-1", "ipv4:10.0.0.1:5000"), 1_795_000_000_000_000_000)
    second = ProcessRecord(ProcessStart(b"2" * 16), 5, is_attended=False, replaced=(b"0" * 16, b"1" * 16))
    records.note_process(1, 1, first)
    records.note_process(1, 2, first)
    records.note_process(1, 1, second)
    assert records.processes(1) == {1: second, 2: first}
    assert implementation.reopened().processes(1) == {1: second, 2: first}
    assert implementation.records.processes(2) == {}


def test_each_channel_has_its_own_keys_which_are_created_once(implementation: EmbeddedRecords | SharedRecords) -> None:
    with ThreadPoolExecutor(4) as callers:
        found = list(callers.map(lambda _: implementation.records.stream_keys(1, 1), range(8)))
    assert all(keys == found[0] for keys in found)
    (key,) = found[0]
    assert (len(key.key), len(key.decision_key), key.channel_id) == (32, 32, 1)
    (other,) = implementation.records.stream_keys(1, 2)
    assert other.key_id != key.key_id
    assert len({key.key, key.decision_key, other.key, other.decision_key}) == 4
    assert min(key.key_id, other.key_id) > 2, "ids are random, so a small id is unlikely (one in a billion)"
    assert implementation.reopened().stream_keys(1, 1) == found[0]


def test_a_replaced_key_expires_soon_after_its_successor_becomes_valid(
    implementation: EmbeddedRecords | SharedRecords,
) -> None:
    records = implementation.records
    (former,), (other,) = records.stream_keys(1, 1), records.stream_keys(1, 2)
    replaced_ns = time.time_ns()
    records.replace_stream_key(1, 1, LEAD_NS)
    records = implementation.reopened()
    kept, made = records.stream_keys(1, 1)
    assert (kept.key_id, kept.key) == (former.key_id, former.key)
    assert made.key_id != former.key_id
    assert made.key != former.key
    assert replaced_ns < made.not_before_unix_ns < kept.expires_unix_ns < former.expires_unix_ns
    assert made.expires_unix_ns > former.expires_unix_ns
    assert records.stream_keys(1, 2) == [other]


def test_a_key_that_is_not_valid_yet_is_deleted_when_it_is_replaced(
    implementation: EmbeddedRecords | SharedRecords,
) -> None:
    records = implementation.records
    (former,) = records.stream_keys(1, 1)
    while True:
        records.replace_stream_key(1, 1, LEAD_NS)
        second = records.stream_keys(1, 1)[-1]
        records.replace_stream_key(1, 1, LEAD_NS)
        if time.time_ns() < second.not_before_unix_ns:  # usually so at the first try
            break
    keys = [key.key_id for key in records.stream_keys(1, 1)]
    assert keys[0] == former.key_id
    assert second.key_id not in keys


def test_a_failed_adapter_stays_failed_until_it_is_readmitted(implementation: EmbeddedRecords | SharedRecords) -> None:
    records = implementation.records
    assert records.failed_adapters(1) == {}
    records.note_failed(1, 2, "out of sync")
    records.note_failed(1, 2, "out of sync again")
    records.note_failed(1, 3, "by hand")
    records = implementation.reopened()
    assert records.failed_adapters(1) == {2: "out of sync again", 3: "by hand"}
    assert records.failed_adapters(2) == {}
    records.note_readmitted(1, 2)
    records.note_readmitted(1, 2)
    assert implementation.reopened().failed_adapters(1) == {3: "by hand"}


def test_what_was_given_to_whom_is_remembered_until_it_is_forgotten(
    implementation: EmbeddedRecords | SharedRecords,
) -> None:
    records = implementation.records
    assert records.granted(1) == {}
    records.note_granted(1, (1, 2), "reader")
    records.note_granted(1, (1,), "reader")
    records.note_granted(1, (0, 1), "adapter-a")
    records.note_granted(2, (1,), "stranger")
    records.forget_granted(1, 2, ["reader", "nobody"])
    expected = {0: {"adapter-a"}, 1: {"reader", "adapter-a"}}
    assert {
        channel_id: names for channel_id, names in implementation.reopened().granted(1).items() if names
    } == expected


def test_revoked_tokens_are_remembered(implementation: EmbeddedRecords | SharedRecords) -> None:
    records = implementation.records
    assert records.revoked_tokens(1) == {}
    records.note_revoked_tokens(1, {"reader": 1_795_000_000_000_000_001, "": 5})
    records.note_revoked_tokens(1, {"reader": 1_795_000_000_000_000_002})
    assert implementation.reopened().revoked_tokens(1) == {"reader": 1_795_000_000_000_000_002}
    assert implementation.records.revoked_tokens(2) == {}


def test_the_generation_grows_with_every_durable_change_and_never_shrinks(
    implementation: EmbeddedRecords | SharedRecords,
) -> None:
    records = implementation.records
    before = records.read_generation()
    records.note_failed(1, 2, "out of sync")
    records.replace_stream_key(1, 1, LEAD_NS)
    after = records.generation
    assert after >= before + 2
    assert implementation.reopened().read_generation() >= after
    implementation.records.raise_generation(1_000)
    assert implementation.records.generation >= 1_000
    assert implementation.reopened().read_generation() >= 1_000


def test_skipped_incarnations_are_never_given(implementation: EmbeddedRecords | SharedRecords) -> None:
    records = implementation.records
    first = records.new_start(1, 1, KEY).incarnation
    records.skip_incarnations(first + 40)
    records.skip_incarnations(first)
    assert records.newest_incarnation() == first + 40
    assert implementation.reopened().new_start(1, 2, KEY).incarnation == first + 41
    assert [start.incarnation for start in implementation.records.starts(1)[1]] == [first]


def test_a_drained_adapter_stays_drained_until_it_is_undrained(implementation: EmbeddedRecords | SharedRecords) -> None:
    records = implementation.records
    assert records.drained_adapters(1) == {}
    records.note_drained(1, 2, "new memory")
    records.note_drained(1, 3, "new disk")
    records = implementation.reopened()
    assert records.drained_adapters(1) == {2: "new memory", 3: "new disk"}
    assert records.failed_adapters(1) == {}
    records.note_undrained(1, 2)
    assert implementation.reopened().drained_adapters(1) == {3: "new disk"}


def test_a_feeds_history_outlives_the_server(implementation: EmbeddedRecords | SharedRecords) -> None:
    records = implementation.records
    records.reserve_epochs(1, 0)
    assert records.history(1) == []
    events = [HistoryEvent(5, "lease granted", "a", 7, "", ""), HistoryEvent(6, "left", "a", 0, "", "")]
    records.note_history(1, events[:1])
    records.note_history(1, events)
    records = implementation.reopened()
    assert records.history(1) == events
    assert records.history(2) == []


def test_documents_are_kept_by_kind_and_name(implementation: EmbeddedRecords | SharedRecords) -> None:
    records = implementation.records
    assert records.documents("identities") == {}
    records.note_document("identities", "reader", b"first")
    records.note_document("identities", "reader", b"second \xff")
    records.note_document("identities", "feed.reader-1", b"")
    records.note_document("certificates", "reader", b"another kind")
    records = implementation.reopened()
    assert records.documents("identities") == {"reader": b"second \xff", "feed.reader-1": b""}
    assert records.documents("certificates") == {"reader": b"another kind"}


def test_records_that_cannot_be_used_raise_records_unavailable(implementation: EmbeddedRecords | SharedRecords) -> None:
    records = implementation.records
    implementation.close()
    with pytest.raises(RecordsUnavailable):
        records.reserve_epochs(1, 0)
    with pytest.raises(RecordsUnavailable):
        records.note_lease(1, 1, 1)
    with pytest.raises(RecordsUnavailable):
        records.note_ttl(1, 1)
    with pytest.raises(RecordsUnavailable):
        records.note_document("identities", "reader", b"")


def test_a_server_that_may_write_may_grant(implementation: EmbeddedRecords | SharedRecords) -> None:
    assert implementation.records.may_grant()
    assert implementation.reopened().may_grant()
