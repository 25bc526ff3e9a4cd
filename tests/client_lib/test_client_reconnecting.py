"""Everything in a client that calls a server returns to it after failures: once, twice, and another time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tandemfeed.client_lib import AdminUnavailable, HistoryUnavailable
from tandemfeed.client_lib.contribution import contribution
from tandemfeed.client_lib.login import grant_stream
from tandemfeed.client_lib.replay import worker
from tests.client_lib.toy_cluster import (
    TOPIC,
    ToyCluster,
    channel_key,
    collect,
    has_messages,
    heartbeat,
    packet,
    subscribe_and_hear_all,
)
from tests.client_lib.toy_gateway import ToyGateway

SOON_S = 30.0
Use = Callable[[], None]


def await_so(is_so: Callable[[], object]) -> None:
    give_up_at_s = time.monotonic() + SOON_S
    while not is_so():
        assert time.monotonic() < give_up_at_s
        time.sleep(0.01)


def until_it_works(work: Callable[[], object], *refusals: type[Exception]) -> None:
    """As an application does that tries again."""
    give_up_at_s = time.monotonic() + SOON_S
    while True:
        try:
            work()
        except refusals:
            assert time.monotonic() < give_up_at_s
        else:
            return


@contextmanager
def login(cluster: ToyCluster) -> Iterator[Use]:
    with cluster.connect() as client:

        def use() -> None:
            client._session.forget_token(client._session.current_token())
            until_it_works(client.open, AdminUnavailable)
            assert client._session.current_token()

        yield use


@contextmanager
def grants(cluster: ToyCluster) -> Iterator[Use]:
    with cluster.connect() as client, client.subscribe(feed="equities", start="live") as subscription:
        assert cluster.admin.subscribed.acquire(timeout=SOON_S)

        def use() -> None:
            cluster.admin.end_calls()
            assert cluster.admin.subscribed.acquire(timeout=SOON_S)
            cluster.more_keys.append(channel_key(100 + len(cluster.more_keys)))
            cluster.admin.push()
            await_so(lambda: subscription.poll(0.01) or len(subscription.grant.keys) == 1 + len(cluster.more_keys))

        yield use


@contextmanager
def renewal(cluster: ToyCluster) -> Iterator[Use]:
    with cluster.connect() as client, client.subscribe(feed="equities", start="live") as subscription:
        assert cluster.admin.subscribed.acquire(timeout=SOON_S)

        def renewed() -> int:
            return len([each for each in cluster.admin.requests if each.HasField("renew")])

        def use() -> None:
            before, grants = renewed(), subscription._grants
            client._session.forget_token(client._session.current_token())
            with grants._changed:
                grants._renew_after(0)
            await_so(lambda: renewed() == before + 1)

        yield use


@contextmanager
def contributions(cluster: ToyCluster) -> Iterator[Use]:
    gateway = ToyGateway(cluster)
    with cluster.connect() as client:
        contribution = client.contribute(TOPIC)

        def use() -> None:
            number = len(gateway.accepted) + 1
            assert contribution.send(b"message %d" % number).number == number
            assert gateway.accepted[-1:] == [b"message %d" % number]
            assert len(gateway.accepted) == number

        yield use
    gateway.close()


@contextmanager
def producers(cluster: ToyCluster) -> Iterator[Use]:
    gateway = ToyGateway(cluster)
    with cluster.connect() as client:
        yield lambda: until_it_works(lambda: client.contribute(TOPIC), AdminUnavailable)
    gateway.close()


@contextmanager
def replays(cluster: ToyCluster) -> Iterator[Use]:
    with cluster.connect() as client:
        subscription, sent = subscribe_and_hear_all(cluster, client), [0]

        def use() -> None:
            first = sent[0] + 1
            sent[0] += 5
            for adapter in cluster.adapters:
                adapter.lose(packet(first, first, 5))

            def beat() -> bool:
                for adapter in cluster.adapters:
                    adapter.send(heartbeat(first + 5))
                return True

            collect(subscription, lambda items: beat() and has_messages(5)(items))

        yield use


@contextmanager
def history(cluster: ToyCluster) -> Iterator[Use]:
    began_ns = time.time_ns()
    for adapter in cluster.adapters:
        adapter.lose(packet(1, 1, 5)._replace(source_sent_at_ns=began_ns))

    def subscribe() -> None:
        with cluster.connect() as client:
            client.subscribe(feed="equities", start=began_ns).close()

    yield lambda: until_it_works(subscribe, HistoryUnavailable)


# What: how it is used, which calls fail, and how many of them make one try.
KINDS = {
    "login": (login, ("Begin",), 2),
    "grants": (grants, ("Subscribe",), 1),
    "renewal": (renewal, ("Begin",), 2),
    "contributions": (contributions, ("Contribute",), 1),
    "contributions while no gateway is found": (contributions, ("Contribute", "FindContributionGateway"), 1),
    "producers": (producers, ("Open",), 1),
    "producers whose gateway is not found": (producers, ("FindContributionGateway",), 1),
    "replays": (replays, ("Replay",), 2),
    "history": (history, ("Locate",), 2),
}


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grant_stream, "RENEW_AGAIN_S", 0.05)
    monkeypatch.setattr(worker, "BACKOFF_NS", 50_000_000)
    monkeypatch.setattr(contribution, "PAUSE_S", 0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_it_returns_after_its_server_failed_once_and_twice_and_again(cluster: ToyCluster, kind: str) -> None:
    make, methods, calls = KINDS[kind]
    with make(cluster) as use:
        use()
        for count in (1, 2, 1, 2):
            before = dict(cluster.failed)
            cluster.failing = dict.fromkeys(methods, count * calls)
            use()
            for method in methods[:1]:
                assert cluster.failed.get(method, 0) == before.get(method, 0) + count * calls
            cluster.failing = {}
            use()
