"""The lifeline's guard: its call is open again after whatever ended it, and a lifeline that ends harms no adapter."""

from __future__ import annotations

import logging
import os
import stat
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tandemfeed.adapter.reporting.guard import Guard
from tandemfeed.adapter.reporting.lifeline import Lifeline, LifelineUnavailable
from tests.adapter.reporting.admin_by_hand import AdminByHand

INCARNATION = 7


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[AdminByHand]:
    made = AdminByHand(tmp_path)
    yield made
    made.stop()


def test_an_end_is_reported_on_the_call_that_replaced_a_lost_one(admin: AdminByHand) -> None:
    guard = Guard(admin.connection)
    admin.wait_for_streams(1)
    admin.end_streams()
    admin.wait_for_count("Guard", 2)
    admin.wait_for_streams(1)
    guard.report_end(INCARNATION, bytes(32))
    assert admin.endings == [INCARNATION]
    assert not guard._thread.is_alive()


def test_an_end_is_reported_once_and_then_nothing_calls_any_more(admin: AdminByHand) -> None:
    guard = Guard(admin.connection)
    admin.wait_for_streams(1)
    guard.report_end(INCARNATION, bytes(32))
    assert (admin.endings, admin.log.count("Guard")) == ([INCARNATION], 1)


def test_an_end_while_the_call_is_lost_waits_for_no_server(admin: AdminByHand) -> None:
    guard = Guard(admin.connection)
    admin.wait_for_streams(1)
    admin.stop()
    guard.report_end(INCARNATION, bytes(32))
    assert admin.endings == []
    admin.start()  # the guard's thread is not left calling a server that is away
    guard._thread.join(60.0)
    assert not guard._thread.is_alive()


def test_an_end_while_no_server_answers_ends_the_guard(admin: AdminByHand) -> None:
    admin.stop()
    guard = Guard(replace(admin.connection, admin=f"{admin.endpoint},{admin.endpoint}"))
    guard.report_end(INCARNATION, bytes(32))
    guard._thread.join(60.0)
    assert not guard._thread.is_alive()


def script(folder: Path, *lines: str) -> str:
    """An executable that takes the place of the interpreter which runs the lifeline."""
    path = folder / "lifeline.sh"
    path.write_text("\n".join(("#!/bin/sh", *lines)) + "\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize("lines", [("exit 9",), ("exec <&-", "sleep 60")], ids=["ends", "stops reading"])
def test_a_lifeline_that_ends_as_it_starts_is_no_lifeline_and_does_not_end_the_adapter(
    tmp_path: Path, admin: AdminByHand, monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "executable", script(tmp_path, *lines))
    monkeypatch.setattr("tandemfeed.adapter.reporting.lifeline.REPORT_TIMEOUT_S", 0.2)
    wordy = replace(admin.connection, ca_pem=b"x" * (1 << 20))  # more than the pipe holds: it must be read
    with pytest.raises(LifelineUnavailable, match=r"ended as it started, with status -?9"):
        Lifeline(wordy)


def test_a_missing_interpreter_is_no_lifeline(admin: AdminByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/does/not/exist")
    with pytest.raises(LifelineUnavailable, match="No such file"):
        Lifeline(admin.connection)


def test_a_lifeline_that_ends_later_is_reported_once(
    tmp_path: Path, admin: AdminByHand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", script(tmp_path, "cat >/dev/null", "exec sleep 60"))
    lifeline = Lifeline(admin.connection)
    assert lifeline.check()
    os.kill(lifeline._process.pid, 9)
    os.waitid(os.P_PID, lifeline._process.pid, os.WEXITED | os.WNOWAIT)
    with caplog.at_level(logging.WARNING):
        assert not lifeline.check()
        assert not lifeline.check()
    assert [(record.message, record.__dict__["status"]) for record in caplog.records] == [
        ("the lifeline has ended; a kill of this process will be noticed later", -9)
    ]
    lifeline.close()  # and an orderly end does not wait for it


def test_the_guards_thread_that_fails_ends_the_lifeline(admin: AdminByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the adapter notices that it has none; a lifeline that looks alive and reports nothing would be worse."""
    ended = threading.Event()
    failed: list[str] = []

    def end(name: str, failure: BaseException) -> None:
        failed.append(f"{name}: {failure}")
        ended.set()

    monkeypatch.setattr("tandemfeed.adapter.reporting.guard.end_process", end)
    monkeypatch.setattr(Guard, "_find", lambda _guard, _address: 1 // 0)
    Guard(admin.connection)
    assert ended.wait(60.0)
    assert failed == ["guard: integer division or modulo by zero"]
