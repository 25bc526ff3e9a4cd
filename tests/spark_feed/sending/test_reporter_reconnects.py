"""A gateway's reporter whose calls fail once, twice, or in several ways, and come back: it reports again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tandemfeed.spark_feed.sending import source_reports
from tandemfeed.spark_feed.sending.source_reports import Progress, SourceReporter
from tandemfeed.transport.calls.credentials import CredentialUnusable, SecretFile
from tandemfeed.transport.calls.login import AuthenticationRefused
from tandemfeed.transport.calls.server_names import source_gateway
from tandemfeed.transport.calls.tokens import TokenVerifier
from tandemfeed.transport.process_shell import Connection
from tandemfeed.v1 import admin_pb2

WAIT_S = 60.0
INTERVAL_S = 0.01


class Failed(grpc.RpcError):
    """A call that failed."""

    def __init__(self, code: grpc.StatusCode) -> None:
        super().__init__(code.name)
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "a test says so"


class ScriptedServer:
    """In place of the admin server. Args: script: how the next calls fail; None: this one is answered; then all are."""

    def __init__(self, script: list[Exception | None], at_connection: bool) -> None:
        self._script, self._at_connection = script, at_connection
        self.connection_count = 0
        self.reports: list[admin_pb2.SourceReport] = []
        self.ended: list[BaseException] = []  # what the reporter's thread ended with
        self.changed = threading.Condition()

    @contextmanager
    def open_channel(self, *_: object) -> Iterator[None]:
        self.connection_count += 1
        if self._at_connection:
            self._fail_if_due()
        yield None

    def stub(self, _channel: None) -> ScriptedServer:
        return self

    def ReportSource(self, report: admin_pb2.SourceReport, timeout: float) -> admin_pb2.SourceReported:  # noqa: N802
        if not self._at_connection:
            self._fail_if_due()
        with self.changed:
            self.reports.append(report)
            self.changed.notify_all()
        return admin_pb2.SourceReported(feed_session=len(self.reports))

    def await_reports(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: bool(self.ended) or len(self.reports) >= count, WAIT_S)
        assert self.ended == []

    def on_end(self, _name: str, failure: BaseException) -> None:
        with self.changed:
            self.ended.append(failure)
            self.changed.notify_all()

    def _fail_if_due(self) -> None:
        if self._script and (failure := self._script.pop(0)) is not None:
            raise failure


UNAVAILABLE = Failed(grpc.StatusCode.UNAVAILABLE)
LATE = Failed(grpc.StatusCode.DEADLINE_EXCEEDED)
UNAUTHENTICATED = Failed(grpc.StatusCode.UNAUTHENTICATED)
SCRIPTS: dict[str, list[Exception | None]] = {
    "once": [UNAVAILABLE],
    "twice": [UNAVAILABLE, UNAVAILABLE],
    "again and again": [UNAVAILABLE, None, LATE, None, None, UNAVAILABLE, LATE],
    "its token is refused": [UNAUTHENTICATED, UNAUTHENTICATED],
    "its login is refused": [AuthenticationRefused("the secret was replaced"), None],
    "its secret is being replaced": [CredentialUnusable("cannot read the secret")],
    "the connection breaks": [ConnectionResetError("reset"), BrokenPipeError("broken")],
    "no descriptor is left": [OSError(24, "too many open files"), UNAVAILABLE],
}


@pytest.mark.parametrize("at_connection", [False, True], ids=["in a call", "as it connects"])
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_a_reporter_comes_back_after_any_failure_and_warns_once_for_each_outage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    script: list[Exception | None],
    at_connection: bool,
) -> None:
    server = ScriptedServer(list(script), at_connection)
    monkeypatch.setattr(source_reports, "open_channel", server.open_channel)
    monkeypatch.setattr(source_reports.admin_pb2_grpc, "AdapterRegistryStub", server.stub)
    monkeypatch.setattr(source_reports, "end_process", server.on_end)
    monkeypatch.setattr("tandemfeed.transport.calls.admin_servers.PAUSE_MAX_S", INTERVAL_S)
    answers = list[Any]()
    connection = Connection("127.0.0.1:1,127.0.0.1:2", b"", "source", SecretFile(tmp_path / "secret"))
    reporter = SourceReporter(
        connection, "equities", lambda _report: Progress(7), TokenVerifier(source_gateway("equities"), []), None,
        INTERVAL_S, answers.append, clock_s=lambda: 0.0,
    )  # fmt: skip
    with caplog.at_level(logging.DEBUG, source_reports.LOG.name):
        reporter.start()
        server.await_reports(len(script) + 3)
        reporter.stop()
    assert server.reports[-1].is_stopping
    assert [answer.feed_session for answer in answers] == list(range(1, len(server.reports) + 1))
    warnings = [each for each in caplog.records if each.levelno == logging.WARNING]
    recoveries = [each for each in caplog.records if each.getMessage() == "reporting again"]
    assert len(warnings) == len(recoveries)
    assert reporter._thread is not None
    assert not reporter._thread.is_alive()
