"""Stream keys are created, become valid and expire, and are announced, without a restart."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemfeed.admin_server.audit.log import AuditLog
from tandemfeed.admin_server.feed.broker import FeedBroker
from tandemfeed.admin_server.feed.keys.key_ring import SOURCE, KeyRing
from tandemfeed.admin_server.feed.keys.key_times import SECOND, KeyTimes
from tandemfeed.admin_server.feed.streams import Subscriber
from tandemfeed.admin_server.policy.rules import WHOLE
from tandemfeed.admin_server.records.store import Store
from tandemfeed.admin_server.settings import load_cluster
from tests.admin_server.cluster_files import write_settings
from tests.admin_server.subscriber_by_hand import keys_of

DAY = 86_400 * SECOND


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "leases.sqlite", KeyTimes(3 * SECOND, 2 * SECOND, SECOND))
    yield opened
    opened.close()


def test_a_successor_is_created_a_day_before_a_key_expires_and_is_valid_a_minute_later() -> None:
    times = KeyTimes()
    assert times.next_begins_ns(None, 5) == 5, "without a key, one is due immediately"
    assert times.next_begins_ns(30 * DAY, 29 * DAY - 1) is None
    assert times.next_begins_ns(30 * DAY, 29 * DAY) == 29 * DAY + 60 * SECOND


def test_key_times_that_leave_a_time_without_a_valid_key_are_refused() -> None:
    with pytest.raises(AssertionError):
        KeyTimes(valid_ns=SECOND, overlap_ns=SECOND, lead_ns=1)


def test_keys_overlap_and_no_key_id_repeats(store: Store) -> None:
    ring = KeyRing(store, 1, (1, 2))
    (first,) = ring.keys([1])
    seen: set[int] = set()
    halves: dict[int, bytes] = {}
    end_ns = first.expires_unix_ns + 2 * SECOND
    while (now_ns := time.time_ns()) < end_ns:
        keys = ring.keys([1])
        assert [key for key in keys if key.not_before_unix_ns <= now_ns < key.expires_unix_ns], "no valid key"
        seen.update(key.key_id for key in ring.keys([1, 2]))
        halves.update({half.key_id: half.key for half in ring.decision_keys()})
        assert [half.key_id for half in ring.decision_keys()] == [key.key_id for key in ring.keys([1, 2])]
        assert {key.channel_id for key in ring.source_keys()} == {SOURCE}
        time.sleep(max(0.0, ring.pause_ns() / SECOND))
        ring.refresh()
    assert len(seen) >= 6
    assert len(set(halves.values())) == len(halves) == len(seen), "each decision key is renewed with its stream key"
    assert first.key_id not in {key.key_id for key in ring.keys([1])}


class Clocks:
    """Two clocks that a test sets."""

    def __init__(self) -> None:
        self.unix_ns, self.ns = 1_800_000_000 * SECOND, 5 * SECOND

    def pass_by(self, ns: int) -> None:
        self.unix_ns += ns
        self.ns += ns


@pytest.mark.parametrize("step_s", [-3_600, 0, 3_600])
def test_a_new_key_becomes_valid_after_its_lead_whatever_the_wall_clock_does(tmp_path: Path, step_s: int) -> None:
    clocks = Clocks()
    store = Store(tmp_path / "leases.sqlite", now_unix_ns=lambda: clocks.unix_ns)
    ring = KeyRing(store, 1, (1,), now_unix_ns=lambda: clocks.unix_ns, now_ns=lambda: clocks.ns)
    lead_ns = store.key_times.rotation_lead_ns
    for _ in range(3):
        former = ring.keys([1])[-1].key_id
        ring.replace([1])
        clocks.unix_ns += step_s * SECOND
        assert ring.keys([1])[-1].key_id != former
        assert ring.keys([1])[-1].not_before_unix_ns, "it is announced before it is valid"
        clocks.pass_by(lead_ns)
        assert ring.pause_ns() <= 0, "its validity is to be announced"
        ring.refresh()
        assert ring.keys([1])[-1].key_id != former
        assert ring.keys([1])[-1].not_before_unix_ns == 0
        assert ring.pause_ns() > 0
    store.close()


@pytest.mark.parametrize("step_s", [-3_600, 3_600])
def test_after_a_restart_on_a_host_whose_clock_was_set_the_keys_are_valid_and_in_order(
    tmp_path: Path, step_s: int
) -> None:
    clocks = Clocks()
    for _ in range(4):
        store = Store(tmp_path / "leases.sqlite", now_unix_ns=lambda: clocks.unix_ns)
        ring = KeyRing(store, 1, (1,), now_unix_ns=lambda: clocks.unix_ns, now_ns=lambda: clocks.ns)
        assert ring.keys([1])[-1].not_before_unix_ns == 0
        ring.replace([1])
        newest = ring.keys([1])[-1].key_id
        clocks.pass_by(store.key_times.rotation_lead_ns)
        ring.refresh()
        assert ring.keys([1])[-1].key_id == newest
        assert ring.keys([1])[-1].not_before_unix_ns == 0
        store.close()
        clocks.unix_ns += step_s * SECOND


def test_if_every_key_is_distrusted_the_new_ones_wait_until_each_process_could_log_in_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "leases.sqlite")
    ring, times = KeyRing(store, 1, (1,)), store.key_times
    leads = []
    for replace in (lambda: ring.replace([1]), ring.replace_all):
        now_ns = time.time_ns()
        replace()
        leads.append(ring.keys([1])[-1].not_before_unix_ns - now_ns)
    assert leads[0] >= times.rotation_lead_ns
    assert leads[1] >= times.distrust_lead_ns > times.rotation_lead_ns
    assert ring.source_keys()[-1].not_before_unix_ns >= now_ns + times.distrust_lead_ns
    store.close()


def test_subscribers_are_updated_before_a_key_becomes_valid_and_when_it_does(store: Store, tmp_path: Path) -> None:
    cluster, _ = write_settings(tmp_path)
    audit = AuditLog(tmp_path)
    broker = FeedBroker(load_cluster(cluster)["equities"], store, audit, list)
    try:
        notified: queue.SimpleQueue[bool] = queue.SimpleQueue()
        broker.subscribe(Subscriber("reader", {1: WHOLE}, lambda: notified.put(True), lambda _reason: None))
        first = {key.key_id for key in keys_of(broker.grant({1: WHOLE}))}
        heard: list[tuple[int, list[tuple[int, int]]]] = []
        while len({key_id for _, keys in heard for key_id, _ in keys} - first) < 2:
            assert notified.get(timeout=20)
            keys = keys_of(broker.grant({1: WHOLE}))
            heard.append((time.time_ns(), [(key.key_id, key.not_before_unix_ns) for key in keys]))
        key_id, begins_ns = next(key for _, keys in heard for key in keys if key[0] not in first)
        announced_ns = [at_ns for at_ns, keys in heard if key_id in dict(keys)]
        assert announced_ns[0] < begins_ns, "before any adapter seals with it"
        assert any(at_ns >= begins_ns for at_ns in announced_ns), "this update makes adapters switch to the key"
    finally:
        broker.stop()
        audit.close()
