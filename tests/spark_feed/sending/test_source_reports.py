"""A gateway's reports to a real admin server: by the answers, it follows the keys of tokens and of its own packets."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tandemfeed.spark_feed.sending.source_keys import sealer_of
from tandemfeed.spark_feed.sending.source_reports import Progress, SourceReporter
from tandemfeed.transport.calls.login import login
from tandemfeed.transport.calls.server_names import source_gateway
from tandemfeed.transport.calls.tokens import TokenVerifier
from tandemfeed.transport.process_shell import Connection
from tandemfeed.v1 import admin_pb2
from tests.admin_server.cluster_files import CLUSTER, ca_of, running_server, secret_of

WAIT_S = 60.0
INTERVAL_S = 0.05


class StoppedAtTheFirstWait(threading.Event):
    """Notes for how long a thread would wait, and stops it."""

    waited_s = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        self.waited_s = timeout or 0.0
        self.set()
        return True


def test_a_gateway_follows_the_keys_also_when_its_own_token_is_refused(tmp_path: Path) -> None:
    reported = threading.Condition()

    def describe(_report: admin_pb2.SourceReport) -> Progress:
        with reported:
            reported.notify_all()
        return Progress(0, 0, tmp_path / "journal")

    def wait_until(condition: Callable[[], bool]) -> None:
        with reported:
            assert reported.wait_for(condition, WAIT_S)

    def key_id() -> bytes:
        assert sealer is not None
        return sealer.seal(b"packet")[4:8]

    with running_server(tmp_path, cluster_text=CLUSTER.replace('source_lines = "open"', "")) as server:
        connection = Connection(server.endpoint, ca_of(server), "source", secret_of(server, "source"))
        broker = server.brokers["equities"]
        sealer = sealer_of(connection, broker.describe())
        verifier = TokenVerifier(source_gateway("equities"), server.token_keys.accepted())
        reporter = SourceReporter(connection, "equities", describe, verifier, sealer, INTERVAL_S)
        reporter.start()
        former, session = key_id(), login(server.endpoint, ca_of(server), "reader", secret_of(server, "reader"))
        assert verifier.accepts(session.token)
        broker.rotate_keys(broker.key_ring.channel_ids, "operator")
        wait_until(lambda: key_id() != former)
        second = key_id()
        server._drop_token_keys("operator", "stolen")
        wait_until(lambda: not verifier.accepts(session.token))
        wait_until(lambda: key_id() != second)
        reporter.stop()


def test_after_a_failed_report_the_next_one_comes_after_the_interval_of_this_reporter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_reporter: SourceReporter, _address: str) -> None:
        raise ConnectionRefusedError("a test says so")

    monkeypatch.setattr(SourceReporter, "_report_to", fail)
    monkeypatch.setattr("tandemfeed.transport.calls.admin_servers.AdminServers.move_on", lambda *_: 0.0)
    connection = Connection("127.0.0.1:1", b"", "source", "secret")
    verifier = TokenVerifier(source_gateway("equities"), [])
    reporter = SourceReporter(connection, "equities", lambda _report: Progress(0), verifier, None, INTERVAL_S)
    reporter._stopped = stopped = StoppedAtTheFirstWait()
    reporter._run()
    assert stopped.waited_s == INTERVAL_S
