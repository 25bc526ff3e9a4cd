"""A client's login is renewed by one thread, whatever happens to its call meanwhile."""

from __future__ import annotations

import threading

import pytest

from tandemfeed.client_lib.login.grant_stream import GrantStream
from tandemfeed.client_lib.login.session import Session
from tests.client_lib.toy_cluster import ToyCluster

WAIT_S = 60.0
RENEWAL = "tandemfeed-renewal"


def test_a_renewal_during_which_the_call_is_replaced_neither_renews_the_new_call_nor_sets_its_time(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses_s = [0.01]
    monkeypatch.setattr(Session, "renew_in_s", property(lambda _session: pauses_s.pop() if pauses_s else 600.0))
    begun, replaced, waits = threading.Event(), threading.Event(), threading.Semaphore(0)
    bearer, wait_for_renewal = Session.bearer, GrantStream._wait_for_renewal

    def slow(session: Session, server_name: str) -> str:
        if threading.current_thread().name == RENEWAL:
            begun.set()
            assert replaced.wait(WAIT_S)
        return bearer(session, server_name)

    def noted(grants: GrantStream) -> object:
        waits.release()
        return wait_for_renewal(grants)

    monkeypatch.setattr(Session, "bearer", slow)
    monkeypatch.setattr(GrantStream, "_wait_for_renewal", noted)
    with cluster.connect() as client, client.subscribe(feed="equities", start="live") as subscription:
        assert cluster.admin.subscribed.acquire(timeout=WAIT_S)
        assert waits.acquire(timeout=WAIT_S)
        assert begun.wait(WAIT_S)
        cluster.admin.end_calls()
        assert cluster.admin.subscribed.acquire(timeout=WAIT_S)
        due_at_ns = subscription._grants._renew_at_ns
        replaced.set()
        assert waits.acquire(timeout=WAIT_S)
        assert [each.name for each in threading.enumerate()].count(RENEWAL) == 1
        assert not [request for request in cluster.admin.requests if request.HasField("renew")]
        assert subscription._grants._renew_at_ns == due_at_ns


def test_a_login_is_renewed_again_and_again_on_one_call(cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses_s = [0.01, 0.01, 0.01]
    monkeypatch.setattr(Session, "renew_in_s", property(lambda _session: pauses_s.pop() if pauses_s else 600.0))
    renewed = threading.Semaphore(0)
    bearer = Session.bearer

    def noted(session: Session, server_name: str) -> str:
        if threading.current_thread().name == RENEWAL:
            renewed.release()
        return bearer(session, server_name)

    monkeypatch.setattr(Session, "bearer", noted)
    with cluster.connect() as client, client.subscribe(feed="equities", start="live"):
        for _ in range(3):
            assert renewed.acquire(timeout=WAIT_S)
