"""A gateway's part as its threads share it, by a clock that the test sets."""

from __future__ import annotations

import threading

from tandemfeed.journal.replication import LeaderStatus
from tandemfeed.spark_feed.contributions.pair.membership import Acknowledge, GatewayState
from tandemfeed.spark_feed.contributions.pair.part import LOOK_NS, PATIENCE_NS, LogState, Part
from tandemfeed.v1 import admin_pb2

COPY, OTHER, END = b"copy", b"other", 10


class Gateway:
    """A part that holds a term with a standby, and looks as often as it must."""

    def __init__(self) -> None:
        self.now_ns, self.woken = 0, threading.Event()
        self.part = Part(Acknowledge.AVAILABLE, "host:1", b"key", b"salt", self.woken.set, lambda: self.now_ns)
        self.part.log = LogState(copy=COPY)
        self.report()
        self.part.begin_term(LogState(COPY, b"", 1, END, "host:2"))
        self.part.on_leader_status(status_of({}))

    def report(self) -> admin_pb2.GatewayReport:
        """Report, and be answered."""
        report = admin_pb2.GatewayReport()
        self.part.describe(report, 0)
        self.part.on_answer(
            admin_pb2.GatewayAssignment(
                number=report.number, term=1, is_holder=True, holder_copy_id=COPY, standby_copy_id=OTHER
            )
        )
        return report

    def look_until(self, end_ns: int) -> None:
        """The gateway's thread turns, as it does while nothing happens."""
        while self.now_ns < end_ns:
            self.part.on_time()
            self.now_ns = min(self.now_ns + LOOK_NS, self.part.next_deadline_ns() or end_ns, end_ns)
        self.part.on_time()


def status_of(followers: dict[bytes, int]) -> LeaderStatus:
    return LeaderStatus(0, followers, 0, 0)


def test_a_standby_that_does_not_acknowledge_is_given_up_after_the_patience() -> None:
    gateway = Gateway()
    assert gateway.part.state is GatewayState.HOLDER
    gateway.look_until(PATIENCE_NS - 1)
    assert gateway.report().standby_copy_id == OTHER
    gateway.look_until(PATIENCE_NS)
    assert gateway.report().standby_copy_id == b""


def test_a_pause_of_the_gateway_does_not_give_its_standby_up_and_what_was_acknowledged_meanwhile_counts() -> None:
    gateway = Gateway()
    gateway.look_until(PATIENCE_NS - 1)
    gateway.now_ns += 90 * PATIENCE_NS
    gateway.look_until(gateway.now_ns)
    assert gateway.report().standby_copy_id == OTHER
    gateway.woken.clear()
    gateway.part.on_leader_status(status_of({OTHER: END}))  # it was in the queue
    assert (gateway.part.committed_index, gateway.woken.is_set()) == (END, True)
    assert gateway.part.next_deadline_ns() is None
