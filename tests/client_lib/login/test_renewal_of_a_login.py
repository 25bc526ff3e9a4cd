"""A client's login is renewed by one timer at a time, whatever happens to its call meanwhile."""

from __future__ import annotations

import threading

import pytest

from tandemfeed.client_lib.login.session import Session
from tests.client_lib.toy_cluster import ToyCluster

WAIT_S = 60.0


def test_a_call_that_is_replaced_while_the_login_is_renewed_is_not_renewed_by_two_timers(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The renewal of the first call ends when the second one already has a timer of its own."""
    pauses_s = [0.01]
    monkeypatch.setattr(Session, "renew_in_s", property(lambda _session: pauses_s.pop() if pauses_s else 600.0))
    renewing: list[threading.Thread] = []
    begun, replaced = threading.Event(), threading.Event()
    bearer = Session.bearer

    def slow(session: Session, server_name: str) -> str:
        thread = threading.current_thread()
        if thread.name not in ("MainThread", "tandemfeed-grants"):  # which also send it, with each call
            renewing.append(thread)
            begun.set()
            assert replaced.wait(WAIT_S)
        return bearer(session, server_name)

    monkeypatch.setattr(Session, "bearer", slow)
    with cluster.connect() as client, client.subscribe(feed="equities", start="live"):
        assert cluster.admin.subscribed.acquire(timeout=WAIT_S)
        assert begun.wait(WAIT_S)
        cluster.admin.end_calls()
        assert cluster.admin.subscribed.acquire(timeout=WAIT_S)
        replaced.set()
        renewing[0].join(WAIT_S)
        before = set(threading.enumerate())
        assert not [request for request in cluster.admin.requests if request.HasField("renew")]
        timers = [each for each in before if type(each) is threading.Timer]
        assert len(timers) <= 1


def test_a_login_is_renewed_again_and_again_on_one_call(cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses_s = [0.01, 0.01, 0.01]
    monkeypatch.setattr(Session, "renew_in_s", property(lambda _session: pauses_s.pop() if pauses_s else 600.0))
    renewed = threading.Semaphore(0)
    bearer = Session.bearer

    def noted(session: Session, server_name: str) -> str:
        if threading.current_thread().name not in ("MainThread", "tandemfeed-grants"):
            renewed.release()
        return bearer(session, server_name)

    monkeypatch.setattr(Session, "bearer", noted)
    with cluster.connect() as client, client.subscribe(feed="equities", start="live"):
        for _ in range(3):
            assert renewed.acquire(timeout=WAIT_S)
