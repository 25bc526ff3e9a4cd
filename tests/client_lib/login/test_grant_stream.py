"""A client's call to the administration server: what ends it, what replaces it, and what the application learns."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519

from tandemfeed.client_lib import AdminUnavailable, Client, ThreadFailed
from tandemfeed.client_lib.login.call_core import CallCore
from tandemfeed.client_lib.login.grant_stream import GrantLetter, GrantStream
from tandemfeed.feedcore.topics import TopicEntry
from tests.client_lib.toy_cluster import TOPIC, ToyCluster, channel_key

SOON_S = 30.0
THREADS = {"tandemfeed-grants", "tandemfeed-renewal"}
TOPICS = (TopicEntry(TOPIC),)


@pytest.fixture
def client(cluster: ToyCluster) -> Iterator[Client]:
    with cluster.connect() as made:
        yield made


@pytest.fixture
def grants(client: Client) -> Iterator[GrantStream]:
    made = GrantStream(client._session)
    yield made
    made.close()


def in_time(work: Callable[[], object]) -> None:
    """Do something that must not hang."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(SOON_S)
    assert not thread.is_alive()


def await_so(is_so: Callable[[], object]) -> None:
    give_up_at_s = time.monotonic() + SOON_S
    while not is_so():
        assert time.monotonic() < give_up_at_s
        time.sleep(0.005)


def running() -> set[str]:
    return {each.name for each in threading.enumerate()} & THREADS


def subscribed(grants: GrantStream, timeout_s: float = SOON_S) -> tuple[int, queue.SimpleQueue[GrantLetter]]:
    letters: queue.SimpleQueue[GrantLetter] = queue.SimpleQueue()
    subscription_id, grant = grants.subscribe("equities", TOPICS, letters.put, timeout_s)
    assert grant.feed_name == "equities"
    return subscription_id, letters


def requests(cluster: ToyCluster, kind: str) -> list[Any]:
    return [getattr(each, kind) for each in cluster.admin.requests if each.HasField(kind)]


def test_closing_ends_the_call_and_the_threads_of_open_subscriptions(cluster: ToyCluster, grants: GrantStream) -> None:
    subscribed(grants)
    subscribed(grants)
    assert running() == THREADS
    in_time(grants.close)
    assert not running()


def test_the_threads_end_with_the_last_subscription_and_the_next_one_starts_others(
    cluster: ToyCluster, grants: GrantStream
) -> None:
    for _ in range(3):
        first, _ = subscribed(grants)
        second, letters = subscribed(grants)
        grants.cancel(first)
        cluster.more_keys.append(channel_key(100 + len(cluster.more_keys)))
        cluster.admin.push()
        letters.get(timeout=SOON_S)
        assert running() == THREADS
        grants.cancel(second)
        await_so(lambda: not running())


def test_a_subscription_that_is_not_answered_raises_and_is_not_requested_again(
    cluster: ToyCluster, grants: GrantStream
) -> None:
    cluster.admin.unanswered.add("subscribe")
    with pytest.raises(AdminUnavailable, match=r"did not answer Subscribe within 0\.2 s"):
        subscribed(grants, 0.2)
    cluster.admin.unanswered.clear()
    subscribed(grants)
    assert len({each.subscription_id for each in requests(cluster, "subscribe")}) == 2
    assert len(requests(cluster, "subscribe")) == 2


def test_an_interrupted_subscription_is_cancelled(
    cluster: ToyCluster, grants: GrantStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribed(grants)
    with monkeypatch.context() as patched:

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        patched.setattr("tandemfeed.client_lib.patient_wait.PatientWait.take", interrupt)
        with pytest.raises(KeyboardInterrupt):
            subscribed(grants)
    await_so(lambda: requests(cluster, "cancel"))
    assert len(grants._core.requests) == len(grants._receivers) == 1


def test_a_change_whose_server_is_lost_before_it_answers_raises_immediately(
    cluster: ToyCluster, grants: GrantStream
) -> None:
    subscription_id, _ = subscribed(grants)
    cluster.admin.unanswered.add("modify")
    raised: queue.SimpleQueue[Exception] = queue.SimpleQueue()

    def modify() -> None:
        try:
            grants.modify(subscription_id, TOPICS, 3_600)
        except AdminUnavailable as error:
            raised.put(error)

    thread = threading.Thread(target=modify)
    thread.start()
    await_so(lambda: requests(cluster, "modify"))
    cluster.admin.end_calls()
    assert str(raised.get(timeout=SOON_S)).endswith("before it answered")
    thread.join()
    assert not grants._answers


def test_a_change_that_is_not_answered_raises_after_the_time_out(cluster: ToyCluster, grants: GrantStream) -> None:
    subscription_id, _ = subscribed(grants)
    cluster.admin.unanswered.add("modify")
    with pytest.raises(AdminUnavailable, match=r"did not answer within 0\.2 s"):
        grants.modify(subscription_id, TOPICS, 0.2)
    assert not grants._answers


def test_a_change_waits_for_a_server_and_says_so_if_none_comes(cluster: ToyCluster, grants: GrantStream) -> None:
    subscription_id, letters = subscribed(grants)
    cluster.stop_admin()
    await_so(lambda: grants._outbox is None)
    with pytest.raises(AdminUnavailable, match="cannot be reached; modify again later"):
        grants.modify(subscription_id, TOPICS, 0.1)
    cluster.restart_admin()
    grants.modify(subscription_id, TOPICS, SOON_S)
    assert len(requests(cluster, "modify")) == 1
    letters.get(timeout=SOON_S)


def test_a_change_of_an_ended_subscription_is_refused(cluster: ToyCluster, grants: GrantStream) -> None:
    subscription_id, _ = subscribed(grants)
    grants.cancel(subscription_id)
    with pytest.raises(ValueError, match="the subscription has ended"):
        grants.modify(subscription_id, TOPICS, SOON_S)


def test_a_token_that_the_server_refuses_leads_to_a_new_login(cluster: ToyCluster, grants: GrantStream) -> None:
    """As when the server was restored from a backup, and signs with another key."""
    _, letters = subscribed(grants)
    cluster.stop_admin()
    cluster._token_key = ed25519.Ed25519PrivateKey.generate()
    cluster.restart_admin()
    assert cluster.admin.subscribed.acquire(timeout=SOON_S)
    assert cluster.admin.logins == 1
    cluster.more_keys.append(channel_key(100))
    cluster.admin.push()
    while len(letters.get(timeout=SOON_S).keys) != 2:  # type: ignore[union-attr]
        pass


def test_a_lost_server_ends_a_first_subscription_that_it_has_not_granted(
    cluster: ToyCluster, grants: GrantStream
) -> None:
    cluster.admin.unanswered.add("subscribe")
    began_s = time.monotonic()

    def end() -> None:
        await_so(lambda: requests(cluster, "subscribe"))
        cluster.stop_admin()

    thread = threading.Thread(target=end)
    thread.start()
    with pytest.raises(AdminUnavailable) as raised:
        subscribed(grants, 3_600)
    thread.join()
    assert "within 3600" not in str(raised.value)
    assert time.monotonic() - began_s < SOON_S
    await_so(lambda: not running())


@pytest.mark.parametrize("waiting", ["subscribe", "modify"])
def test_a_thread_that_fails_is_raised_by_whatever_waits_and_later_subscriptions_start_others(
    cluster: ToyCluster, grants: GrantStream, monkeypatch: pytest.MonkeyPatch, waiting: str
) -> None:
    failed: list[tuple[str, BaseException]] = []
    planted = ValueError("planted")
    subscription_id, _ = grants.subscribe(
        "equities", TOPICS, lambda letter: None, SOON_S, fail=lambda *what: failed.append(what)
    )

    def fail(*_: object) -> None:
        raise planted

    with monkeypatch.context() as patched:
        patched.setattr(CallCore, "on_update", fail)
        waits: dict[str, Callable[[], object]] = {
            "subscribe": lambda: subscribed(grants),
            "modify": lambda: grants.modify(subscription_id, TOPICS, SOON_S),
        }
        with pytest.raises(ThreadFailed, match="planted") as raised:
            waits[waiting]()
        assert raised.value.__cause__ is planted
        assert failed == [("tandemfeed-grants", planted)]
        await_so(lambda: not running())
    subscribed(grants)
    assert running() == THREADS


def test_a_renewal_that_fails_unexpectedly_ends_the_call_and_later_subscriptions_start_others(
    cluster: ToyCluster, grants: GrantStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: queue.SimpleQueue[str] = queue.SimpleQueue()
    grants.subscribe("equities", TOPICS, lambda letter: None, SOON_S, fail=lambda name, _: failed.put(name))

    def fail() -> None:
        raise ValueError("planted")

    with monkeypatch.context() as patched:
        patched.setattr(grants._session, "ensure_token", fail)
        with grants._changed:
            grants._renew_after(0)
        assert failed.get(timeout=SOON_S) == "tandemfeed-renewal"
        await_so(lambda: not running())
    subscribed(grants)
    assert running() == THREADS
