"""A grant notice moves an adapter like the order that follows it, and the order then changes nothing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from tandemfeed.adapter.peers.epoch_knowledge import EpochKnowledge
from tandemfeed.adapter.reporting.grant_inbox import GrantInbox, open_grant_notices
from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.replica.effects import AdapterEffect
from tandemfeed.transport.calls.notices.adapter import GrantNoticeReceiver
from tandemfeed.transport.calls.notices.layout import GrantNotice
from tandemfeed.transport.calls.notices.server import ServerNotices
from tests.adapter.test_loop_joining import Joining
from tests.transport.calls.notices.test_notices import await_datagram, free_endpoint, nothing

INCARNATION, WAIT_S, SECOND = 7, 60.0, 1_000_000_000


class Granting:
    """An admin server's notices, and an adapter whose loop joins and receives them."""

    def __init__(self, folder: Path) -> None:
        self.joining, self.notices = Joining(folder), ServerNotices()
        server, self.endpoint = free_endpoint(), free_endpoint()
        self.notices.listen(server, nothing)
        self.receiver = GrantNoticeReceiver(self.endpoint)
        self.receiver.follow(server, INCARNATION, self.notices.key(INCARNATION))
        self.engine = self.joining.joiner.engine
        self.asked: list[tuple[int, int]] = []
        self.inbox = GrantInbox(
            self.receiver, self.engine, self.valid_until_ns, EpochKnowledge(self.engine, CounterSet(), ())
        )
        loop = self.joining.loop
        loop._grants = self.inbox
        loop._poller.register(self.inbox.fileno(), zmq.POLLIN)
        loop.perform = lambda effects: None  # type: ignore[method-assign]  # the shell has no channels to publish on

    def valid_until_ns(self, report_id: int, ttl_ns: int) -> int:
        self.asked.append((report_id, ttl_ns))
        return time.monotonic_ns() + ttl_ns

    def grant(self, epoch: int) -> None:
        self.notices.granter(self.endpoint)(GrantNotice(INCARNATION, epoch, 60 * SECOND, 41))

    def close(self) -> None:
        self.joining.shell.close()
        self.receiver.close()
        self.notices.close()


@pytest.fixture
def granting(tmp_path: Path) -> Iterator[Granting]:
    made = Granting(tmp_path / "journal")
    yield made
    made.close()


def test_a_grant_notice_makes_the_adapter_hold_the_lease_and_its_order_changes_nothing(granting: Granting) -> None:
    granting.grant(5)
    await_datagram(granting.receiver)
    granting.joining.loop._receive(granting.inbox.fileno(), time.monotonic_ns())
    assert granting.engine.lease.epoch == 5
    assert granting.asked == [(41, 60 * SECOND)]
    now_ns = time.monotonic_ns()
    assert granting.engine.on_lease_granted(5, now_ns + SECOND, now_ns) == []
    assert granting.engine.lease.may_transmit(now_ns + 30 * SECOND)  # not shortened


def test_a_grant_that_has_run_out_is_not_taken(granting: Granting) -> None:
    granting.inbox._valid_until_ns = lambda report_id, ttl_ns: 0  # of a forgotten report
    granting.grant(5)
    await_datagram(granting.receiver)
    granting.joining.loop._receive(granting.inbox.fileno(), time.monotonic_ns())
    assert granting.engine.lease.epoch == 0


def test_an_adapter_that_joins_leaves_a_grant_to_the_thread_that_goes_on(
    granting: Granting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tandemfeed.adapter.loop.JOIN_NS_MAX", 600 * SECOND)  # only the notice ends the join
    took: list[str] = []
    taken = granting.engine.on_lease_granted

    def note(epoch: int, valid_until_ns: int, now_ns: int) -> list[AdapterEffect]:
        took.append(threading.current_thread().name)
        return taken(epoch, valid_until_ns, now_ns)

    granting.engine.on_lease_granted = note  # type: ignore[method-assign]
    loop = granting.joining.loop
    yielding = threading.Thread(target=loop.join, name="yielding")
    with caplog.at_level(logging.INFO):
        yielding.start()
        granting.grant(5)
        yielding.join(WAIT_S)
    assert not yielding.is_alive()
    assert [vars(record)["why"] for record in caplog.records if record.message == "joined"] == [
        "this adapter is needed"
    ]
    assert took == []
    granting.joining.post(granting.joining.stop)
    loop.run()
    assert took == [threading.current_thread().name]
    assert granting.engine.lease.epoch == 5


def test_an_adapter_runs_without_the_port(caplog: pytest.LogCaptureFixture) -> None:
    occupied = GrantNoticeReceiver(free_endpoint())
    host, port = occupied._socket.getsockname()
    assert open_grant_notices(f"{host}:{port}") is None
    assert "cannot receive grant notices; a takeover will take longer" in caplog.text
    occupied.close()
