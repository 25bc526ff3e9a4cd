"""What a feed's history keeps, and how an epoch came about."""

from __future__ import annotations

from pathlib import Path

from tandemfeed.admin_server.feed.feed_history import FeedHistory
from tandemfeed.admin_server.feed.members.sources import KEPT_COUNT as SOURCES_KEPT
from tandemfeed.admin_server.feed.members.sources import FeedSources
from tandemfeed.admin_server.lease.takeovers import TakeoverReason
from tandemfeed.admin_server.records.lease_records import HISTORY_KEPT_COUNT
from tandemfeed.admin_server.records.store import Store
from tandemfeed.v1 import admin_pb2


def history_in(folder: Path) -> FeedHistory:
    return FeedHistory(1, Store(folder / "leases.sqlite"), {1: "a", 2: "b"}.__getitem__)


def test_an_epoch_says_why_the_one_before_ended_also_after_a_restart(tmp_path: Path) -> None:
    history = history_in(tmp_path)
    history.note("lease granted", {"epoch": 1, "adapter_id": 1}, 10)
    history.note("lease vacated", {"epoch": 1, "reason": TakeoverReason.PROCESS_ENDED}, 20)
    history.note("lease granted", {"epoch": 2, "adapter_id": 2}, 21)
    history.note("lease handed over", {"epoch": 3, "adapter_id": 1, "former": 2}, 30)
    history.note("subscription revoked", {"identity": "reader"}, 31)
    for known in (history, history_in(tmp_path)):
        began = known.epoch_began(2)
        assert began is not None
        assert (began.at_unix_ns, began.adapter, began.reason) == (21, "b", "its adapter's process ended")
        began = known.epoch_began(3)
        assert began is not None
        assert (began.adapter, began.reason) == ("a", "its adapter handed it over")
        assert known.epoch_began(9) is None
        assert len(known.events()) == 4


def test_only_the_last_events_are_kept(tmp_path: Path) -> None:
    history = history_in(tmp_path)
    for at in range(HISTORY_KEPT_COUNT + 5):
        history.note("left", {"adapter_id": 1}, at)
    assert [event.at_unix_ns for event in history_in(tmp_path).events()] == list(range(5, HISTORY_KEPT_COUNT + 5))


def test_the_number_of_remembered_sources_has_a_limit_even_if_all_report() -> None:
    sources = FeedSources()
    for number in range(3 * SOURCES_KEPT):
        sources.note("gateway", admin_pb2.SourceReport(process_nonce=bytes([number])), 1, 1)
    assert len(sources.statuses(1)) == SOURCES_KEPT
