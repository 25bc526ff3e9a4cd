"""What an adapter or an operator can make the server keep is bounded, in memory and on the disk."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import grpc
import pytest

from tandemfeed.admin_server.feed.feed_history import REASON_LENGTH_MAX, FeedHistory
from tandemfeed.admin_server.feed.keys.key_times import SECOND
from tandemfeed.admin_server.feed.members.registrations import ENDPOINT_LENGTH_MAX
from tandemfeed.admin_server.feed.streams import ESSENTIAL_WAITING_MAX, Attendance
from tandemfeed.admin_server.records.lease_records import STARTS_KEPT
from tandemfeed.admin_server.records.store import Store
from tandemfeed.admin_server.settings import load_cluster
from tandemfeed.v1 import admin_pb2
from tests.admin_server.adapter_by_hand import Adapter
from tests.admin_server.cluster_files import running_server, write_settings

HOUR = 3_600 * SECOND


def rows_of(path: Path, table: str) -> int:
    with sqlite3.connect(path) as database:
        ((count,),) = database.execute(f"SELECT COUNT(*) FROM {table}")
    database.close()
    return int(count)


def test_an_adapter_that_reads_none_of_its_orders_gets_a_bounded_number_and_its_stream_ends(tmp_path: Path) -> None:
    cluster, _ = write_settings(tmp_path)
    attendance = Attendance(load_cluster(cluster)["equities"].adapters[0], 1, 1, 0)
    for _ in range(3 * ESSENTIAL_WAITING_MAX):
        attendance.order(lease_lost=admin_pb2.LeaseLost(epoch=7, reason="not the holder"))
    assert attendance.orders.qsize() == ESSENTIAL_WAITING_MAX + 1
    orders = [attendance.orders.get_nowait() for _ in range(ESSENTIAL_WAITING_MAX + 1)]
    assert orders[-1] is None, "the stream ends after them"
    assert None not in orders[:-1]


def test_an_adapter_that_starts_again_and_again_fills_no_disk_and_repeats_no_incarnation(tmp_path: Path) -> None:
    path = tmp_path / "leases.sqlite"
    store = Store(path)
    starts = [store.new_start(1, 1 + place % 2, bytes(32)).incarnation for place in range(40)]
    assert starts == list(range(1, 41))
    assert rows_of(path, "starts") == 2 * STARTS_KEPT
    assert [start.incarnation for start in store.starts(1)[1]] == [37, 39]
    store.close()
    store = Store(path)
    assert store.new_start(2, 1, bytes(32)).incarnation == 41
    store.close()


def test_keys_that_expired_hours_ago_are_deleted_and_those_before_a_step_of_the_clock_are_not(tmp_path: Path) -> None:
    path, now = tmp_path / "leases.sqlite", [1_800_000_000 * SECOND]
    store = Store(path, now_unix_ns=lambda: now[0])
    for _ in range(10):
        store.stream_keys(1, 1)
        store.replace_stream_key(1, 1, SECOND)
        now[0] += HOUR
    assert rows_of(path, "channel_keys") <= 5
    now[0] -= HOUR
    assert store.stream_keys(1, 1)
    store.close()


def test_a_long_reason_is_cut_in_the_history(tmp_path: Path) -> None:
    store = Store(tmp_path / "leases.sqlite")
    history = FeedHistory(1, store, str)
    history.note("adapter failed", {"adapter": "a", "reason": "x" * 100_000}, 1)
    assert [len(event.reason) for event in store.history(1)] == [REASON_LENGTH_MAX]
    store.close()


def test_an_address_that_no_host_can_have_is_refused(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        with pytest.raises(grpc.RpcError, match=f"at most {ENDPOINT_LENGTH_MAX} are allowed") as refused:
            Adapter(server, "a", rpc_endpoint="x" * 1_000)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
