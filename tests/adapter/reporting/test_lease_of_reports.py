"""The shell counts a lease from before its report was sent, in whatever order its threads run (protocol 6.2)."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemfeed.adapter.reporting.report_sender import ReportSender, ReportStream
from tandemfeed.transport.calls.token_source import TokenSource
from tandemfeed.v1 import admin_pb2
from tests.adapter.reporting.admin_by_hand import CA, MS, AdminByHand
from tests.adapter.reporting.attending import Attending
from tests.adapter.server_by_hand import WAIT_S
from tests.admin_server.records.zookeeper_pair import NeverStopped

EPOCH = 5


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[AdminByHand]:
    made = AdminByHand(tmp_path)
    yield made
    made.stop()


def attend(admin: AdminByHand, **options: object) -> Attending:
    tokens = TokenSource(admin.endpoint, CA, "", admin.credential)
    request = admin_pb2.RegisterRequest(feed="equities", adapter="a", public_key=bytes(32))
    adapter = Attending(admin.endpoint, CA, tokens, request, held_epoch=lambda: EPOCH, **options)  # type: ignore[arg-type]
    assert adapter.registry.register(NeverStopped()) is not None  # type: ignore[arg-type]
    adapter.registry.start()
    return adapter


def renewal(adapter: Attending) -> admin_pb2.LeaseRenewed:
    """The next renewal."""
    give_up_at_s = time.monotonic() + WAIT_S
    while True:
        order = adapter.orders.get(timeout=max(0.0, give_up_at_s - time.monotonic()))
        if order.WhichOneof("order") == "lease_renewed":
            return order.lease_renewed


def test_a_renewal_that_a_reconnection_sends_while_the_loop_reports_counts_from_before_it_was_sent(
    admin: AdminByHand,
) -> None:
    """The loop has begun to report, and is slow. Meanwhile the connection breaks and returns, with a renewal."""
    met: list[str] = []

    def slow_counters() -> dict[int, int]:
        if met == ["armed"]:
            met.append("interleaved")
            admin.end_streams()
            admin.wait_for_count("Attend", 2)
            events = [adapter.events.get(timeout=WAIT_S) for _ in range(2)]  # the old stream's end, the new one
            for event in events:
                adapter.events.put(event)
        return {1: 1}

    adapter = attend(admin, next_counters=slow_counters)
    adapter.turn(WAIT_S)
    renewal(adapter)
    admin.is_holding = True
    met.append("armed")
    adapter.report(admin_pb2.AdapterReport())
    assert met == ["armed", "interleaved"]
    adapter.turn(WAIT_S)
    admin.wait_for(lambda: [report.renew_epoch for report, _ in admin.reports][1:] == [EPOCH])
    report, received_at_ns = admin.reports[-1]
    admin.answer()
    renewed = renewal(adapter)
    assert renewed.report_id == report.report_id
    until_ns = adapter.sender.valid_until_ns(renewed)
    assert 0 < until_ns <= received_at_ns + 270 * MS
    adapter.registry.stop()


def test_no_report_shares_its_id_or_is_sent_before_its_time_was_taken(admin: AdminByHand) -> None:
    adapter = attend(admin)
    adapter.turn(WAIT_S)
    for _ in range(20):
        adapter.report(admin_pb2.AdapterReport())
    admin.wait_for(lambda: len(admin.reports) == 21)
    assert [report.report_id for report, _ in admin.reports] == list(range(1, 22))
    for report, received_at_ns in admin.reports:
        assert 0 < adapter.sender.until_ns(report.report_id, 300 * MS) <= received_at_ns + 270 * MS
    adapter.registry.stop()


def test_the_first_report_of_a_stream_renews_the_lease_and_every_report_names_the_start(admin: AdminByHand) -> None:
    adapter = attend(admin)
    adapter.report(admin_pb2.AdapterReport(released_epoch=4))  # before the stream: dropped
    adapter.turn(WAIT_S)
    adapter.report(admin_pb2.AdapterReport(released_epoch=4))
    admin.wait_for(lambda: len(admin.reports) == 2)
    first, second = (report for report, _ in admin.reports)
    assert (first.renew_epoch, second.renew_epoch, second.released_epoch) == (EPOCH, 0, 4)
    assert {report.incarnation for report in (first, second)} == {7}
    assert dict(second.next_packet_counters) == {1: 1}
    adapter.registry.stop()


def test_nothing_is_sent_on_a_stream_that_has_ended(admin: AdminByHand) -> None:
    adapter = attend(admin)
    adapter.turn(WAIT_S)
    admin.wait_for(lambda: len(admin.reports) == 1)
    admin.end_streams()
    ended = adapter.events.get(timeout=WAIT_S)
    ended()
    adapter.sender.send(admin_pb2.AdapterReport(released_epoch=4))  # dropped
    adapter.turn(WAIT_S)
    admin.wait_for(lambda: len(admin.reports) == 2)
    assert [report.released_epoch for report, _ in admin.reports] == [0, 0]
    with pytest.raises(queue.Empty):
        adapter.events.get_nowait()
    adapter.registry.stop()


def test_the_end_of_a_former_stream_does_not_end_the_present_one() -> None:
    sender = ReportSender(dict)
    former, present = ReportStream(7), ReportStream(7)
    sender.begin(former, EPOCH)
    sender.begin(present, EPOCH)
    sender.end(former)
    sender.send(admin_pb2.AdapterReport(released_epoch=4))
    former.end()
    present.end()
    assert [report.report_id for report in former.taken()] == [1]
    assert [report.report_id for report in present.taken()] == [2, 3]
