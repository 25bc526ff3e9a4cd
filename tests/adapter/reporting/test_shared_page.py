"""What an adapter and its lifeline share: the death of the one is seen by the other, with the start and the key."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemfeed.adapter.reporting import guard as guard_module
from tandemfeed.adapter.reporting.lifeline import PAGE_SIZE, Lifeline, LifelineUnavailable, SharedPage
from tandemfeed.transport.calls.notices.layout import KEY_SIZE
from tandemfeed.transport.process_shell import Connection
from tests.adapter.reporting.admin_by_hand import AdminByHand

KEY = bytes(range(KEY_SIZE))


@pytest.fixture
def descriptor() -> Iterator[int]:
    made = os.memfd_create("page")
    os.ftruncate(made, PAGE_SIZE)
    yield made
    os.close(made)


@pytest.fixture
def pages(descriptor: int) -> tuple[SharedPage, SharedPage]:
    """The page as the adapter and as its lifeline map it."""
    own = SharedPage(descriptor)
    own.initialise()
    return own, SharedPage(descriptor)


def lock_and_die(page: SharedPage) -> None:
    """As a killed process: the thread that holds the mutex ends."""
    thread = threading.Thread(target=page.lock)
    thread.start()
    thread.join()


def test_start_and_key_are_seen_on_the_other_side(pages: tuple[SharedPage, SharedPage]) -> None:
    own, other = pages
    own.incarnation, own.key = 7, KEY
    assert (other.incarnation, other.key) == (7, KEY)
    own.incarnation, own.key = 0, b""
    assert (other.incarnation, other.key) == (0, bytes(KEY_SIZE))


def test_a_holder_that_died_is_told_from_one_that_let_go(pages: tuple[SharedPage, SharedPage]) -> None:
    own, other = pages
    assert not own.lock()
    own.unlock()
    assert not other.lock()
    other.unlock()
    lock_and_die(own)
    assert other.lock()
    other.unlock()  # a thread that holds the mutex must keep its memory


def test_a_refused_call_of_the_c_library_says_which_and_why(pages: tuple[SharedPage, SharedPage]) -> None:
    own, _ = pages
    with pytest.raises(LifelineUnavailable, match="pthread_mutex_unlock: Operation not permitted"):
        own.unlock()  # another thread's, or none's
    with pytest.raises(LifelineUnavailable, match="the C library has no pthread_missing"):
        own._call("pthread_missing")


def test_without_memory_to_share_there_is_no_lifeline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_name: str) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(LifelineUnavailable, match="memfd_create: Too many open files"):
        Lifeline(Connection("127.0.0.1:1", b"", "", None))  # type: ignore[arg-type]


def test_an_orderly_end_leaves_nothing_to_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if the lifeline gets the mutex of a thread that ended."""
    interpreter = tmp_path / "lifeline.sh"
    interpreter.write_text("#!/bin/sh\ncat >/dev/null\n")
    interpreter.chmod(interpreter.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    admin = AdminByHand(tmp_path)
    try:
        lifeline = Lifeline(admin.connection)
    finally:
        admin.stop()
    lifeline.use_incarnation(7, KEY)
    assert (lifeline._page.incarnation, lifeline._page.key) == (7, KEY)
    lifeline.close()
    assert lifeline._page.incarnation == 0


class Exited(Exception):
    """The process has ended."""


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bytes]]:
    """What a guard reports; a process that ends raises Exited."""
    found: list[tuple[int, bytes]] = []

    class Recording:
        def __init__(self, connection: Connection) -> None:
            assert (connection.admin, connection.identity) == ("127.0.0.1:1", "adapter-a")

        def report_end(self, incarnation: int, key: bytes) -> None:
            found.append((incarnation, key))

    def end(status: int) -> None:
        raise Exited(status)

    words = {"admin": "127.0.0.1:1", "ca": "", "identity": "adapter-a", "credential": {}}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(words)))
    monkeypatch.setattr(guard_module, "Guard", Recording)
    monkeypatch.setattr(guard_module, "from_words", lambda given: given)
    monkeypatch.setattr(guard_module, "configure_logging", lambda *_: None)
    monkeypatch.setattr(guard_module, "run_in_background", lambda: None)
    monkeypatch.setattr(os, "_exit", end)
    return found


def watch(descriptor: int) -> list[BaseException]:
    """Watch in a thread, which ends with the mutex that it takes, as the lifeline's process does; returns its end."""
    ends: list[BaseException] = []

    def run() -> None:
        try:
            guard_module.watch(descriptor)
        except Exited as end:
            ends.append(end)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return ends


def test_the_lifeline_reports_the_start_of_an_adapter_that_died_and_ends_immediately(
    descriptor: int, pages: tuple[SharedPage, SharedPage], reports: list[tuple[int, bytes]]
) -> None:
    own, _ = pages
    own.incarnation, own.key = 7, KEY
    lock_and_die(own)
    assert [str(end) for end in watch(descriptor)] == ["0"]
    assert reports == [(7, KEY)]


@pytest.mark.parametrize(("incarnation", "dies"), [(7, False), (0, True)], ids=["ended in order", "never registered"])
def test_the_lifeline_reports_nothing_of_an_adapter_that_ended_in_order_or_never_registered(
    descriptor: int,
    pages: tuple[SharedPage, SharedPage],
    reports: list[tuple[int, bytes]],
    incarnation: int,
    dies: bool,
) -> None:
    own, _ = pages
    own.incarnation = incarnation
    if dies:
        lock_and_die(own)
    assert watch(descriptor) == []
    assert reports == []
