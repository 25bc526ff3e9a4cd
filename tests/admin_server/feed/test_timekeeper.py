"""The two threads of a feed: timers never wait for the records, and what is due is prepared, once for each time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from tandemfeed.admin_server.feed.timekeeper import Timekeeper
from tandemfeed.admin_server.records.lease_records import RecordsUnavailable

WAIT_S = 60.0


class Feed:
    """A feed's state and its keys, which say what they are asked to do.

    Attributes:
        said: what was done, in order.
        needs_epochs: what the timers answer.
        pause_ns: until keys are due.
        is_refusing: the records cannot be written.
    """

    def __init__(self) -> None:
        self.said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.needs_epochs, self.is_stopped, self.is_refusing = False, False, False
        self.due_ns = 1
        self.records = threading.Semaphore(1_000)  # taken by every write
        self.is_writing = threading.Event()
        self._changes = threading.Semaphore(0)

    def run_timers(self) -> bool:
        self.said.put("timers")
        return self.needs_epochs

    def wait_for_change(self) -> None:
        assert self._changes.acquire(timeout=WAIT_S)

    def change(self) -> None:
        self._changes.release()

    def stop(self) -> None:
        self.is_stopped = True
        self.change()

    def reserve_epochs(self) -> None:
        self.is_writing.set()
        assert self.records.acquire(timeout=WAIT_S)
        self.said.put("epochs")

    def announce(self) -> None:
        self.said.put("announced")

    def pause_ns(self) -> int:
        return self.due_ns

    def refresh(self) -> None:
        if self.is_refusing:
            self.said.put("refused")
            raise RecordsUnavailable("the disk is full")
        self.said.put("keys")
        self.due_ns = 1

    def heard(self, count: int) -> list[str]:
        return [self.said.get(timeout=WAIT_S) for _ in range(count)]


@pytest.fixture
def feed() -> Feed:
    return Feed()


@pytest.fixture
def keeper(feed: Feed) -> Iterator[Timekeeper]:
    made = Timekeeper("equities", feed, feed)  # type: ignore[arg-type]
    yield made
    feed.stop()
    made.join()
    assert not [thread for thread in made._threads if thread.is_alive()]
    assert feed.said.empty()


def test_timers_run_at_every_change_and_nothing_is_prepared_that_is_not_due(feed: Feed, keeper: Timekeeper) -> None:
    keeper.start()
    assert feed.heard(1) == ["timers"]
    feed.change()
    assert feed.heard(1) == ["timers"]


def test_epochs_are_reserved_when_the_timers_say_so(feed: Feed, keeper: Timekeeper) -> None:
    feed.needs_epochs = True
    keeper.start()
    assert sorted(feed.heard(2)) == ["epochs", "timers"]


@pytest.mark.parametrize("due_ns", [0, -1])
def test_keys_that_are_due_are_renewed_and_announced(feed: Feed, keeper: Timekeeper, due_ns: int) -> None:
    feed.due_ns = due_ns
    keeper.start()
    assert feed.heard(1) == ["timers"]
    assert feed.heard(3) == ["epochs", "keys", "announced"]


def test_keys_that_could_not_be_renewed_are_not_announced_and_tried_at_the_next_change(
    feed: Feed, keeper: Timekeeper, caplog: pytest.LogCaptureFixture
) -> None:
    feed.due_ns, feed.is_refusing = 0, True
    keeper.start()
    assert feed.heard(3) == ["timers", "epochs", "refused"]
    feed.is_refusing = False
    feed.change()
    assert feed.heard(4) == ["timers", "epochs", "keys", "announced"]
    assert [each.message for each in caplog.records] == ["could not renew the stream keys"]


def test_timers_do_not_wait_for_records_that_are_slow(feed: Feed, keeper: Timekeeper) -> None:
    feed.needs_epochs, feed.records = True, threading.Semaphore(0)
    keeper.start()
    assert feed.is_writing.wait(WAIT_S)
    for _ in range(3):
        assert feed.heard(1) == ["timers"]
        feed.change()
    assert feed.heard(1) == ["timers"]
    feed.needs_epochs = False
    feed.records.release(2)  # what became due while it waited is prepared once
    assert feed.heard(2) == ["epochs", "epochs"]


def test_the_end_waits_for_both_threads(feed: Feed) -> None:
    feed.needs_epochs, feed.records = True, threading.Semaphore(0)
    keeper = Timekeeper("equities", feed, feed)  # type: ignore[arg-type]
    keeper.start()
    assert feed.is_writing.wait(WAIT_S)
    feed.heard(1)
    feed.needs_epochs = False
    feed.stop()
    ending = threading.Thread(target=keeper.join)
    ending.start()
    ending.join(0.2)
    assert ending.is_alive()  # it waits for the one that writes
    feed.records.release(2)
    ending.join(WAIT_S)
    assert not ending.is_alive()
    assert not [thread for thread in keeper._threads if thread.is_alive()]
