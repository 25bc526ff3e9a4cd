"""What a contributor does with each answer of a gateway, and without one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import pytest

from tandemfeed.client_lib import AuthorizationRefused, Client, ClientError, LimitReached
from tandemfeed.client_lib.contribution import contribution as module
from tandemfeed.client_lib.contribution.contribution import (
    Contribution,
    ContributionId,
    ContributionInDoubt,
    ContributionRefused,
    ContributionSuperseded,
)
from tandemfeed.client_lib.contribution.outbox import REQUEST_MESSAGES_MAX
from tests.client_lib.toy_cluster import TOPIC, ToyCluster
from tests.client_lib.toy_gateway import ToyGateway

Code = grpc.StatusCode


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.01)


@pytest.fixture
def gateway(cluster: ToyCluster) -> Iterator[ToyGateway]:
    made = ToyGateway(cluster)
    yield made
    made.close()


@pytest.fixture
def client(cluster: ToyCluster, gateway: ToyGateway) -> Iterator[Client]:
    with cluster.connect() as made:
        yield made


def unopened(client: Client, timeout_s: float = 30.0) -> Contribution:
    return Contribution(client._session, TOPIC, "p", timeout_s)


def test_a_producer_is_opened_once_by_whatever_is_called_first(client: Client, gateway: ToyGateway) -> None:
    contribution = unopened(client)
    assert contribution.feed == "equities"
    assert contribution.next_number == 1
    contribution.open()
    assert contribution.send(b"a") == ContributionId("p", 1)
    assert len(gateway.calls["Open"]) == 1
    other = unopened(client)
    assert other.cancel_all() == 7
    (first, second) = gateway.calls["Open"]
    assert first.instance != second.instance
    assert (first.topic, first.producer, len(first.instance)) == (TOPIC, "p", 16)


def test_a_producer_whose_gateway_did_not_answer_is_opened_later_at_the_same_one(
    client: Client, gateway: ToyGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[float] = []
    find = Contribution._find
    monkeypatch.setattr(Contribution, "_find", lambda self, timeout_s: found.append(timeout_s) or find(self, timeout_s))
    contribution = unopened(client, timeout_s=0)
    gateway.refusals["Open"].append((Code.UNAVAILABLE, "restarting"))
    with pytest.raises(ContributionInDoubt, match="not accepted within 0 s: restarting"):
        contribution.open()
    contribution.open()
    assert found == [module.FIND_TIMEOUT_S]


def test_many_messages_leave_in_requests_in_their_order(client: Client, gateway: ToyGateway) -> None:
    messages = [b"%d" % number for number in range(REQUEST_MESSAGES_MAX + 5)]
    contribution = unopened(client)
    assert [each.number for each in contribution.send_many(messages, hold_s=1.5)] == [*range(1, len(messages) + 1)]
    assert gateway.accepted == messages
    assert [(each.first_number, each.hold_ns) for each in gateway.calls["Contribute"]] == [
        (1, 1_500_000_000), (REQUEST_MESSAGES_MAX + 1, 1_500_000_000),
    ]  # fmt: skip
    assert contribution.next_number == len(messages) + 1


def test_what_had_no_answer_is_sent_first_by_the_next_call_under_the_same_number(
    client: Client, gateway: ToyGateway
) -> None:
    contribution = unopened(client, timeout_s=0)
    for _ in range(2):  # the second time as well
        number = contribution.next_number
        gateway.refusals["after"].append((Code.UNAVAILABLE, "restarting"))
        with pytest.raises(ContributionInDoubt):
            contribution.send(b"first")
        assert contribution.send(b"second").number == number + 1
    assert gateway.accepted == [b"first", b"second"] * 2
    assert [each.first_number for each in gateway.calls["Contribute"]] == [1, 1, 2, 3, 3, 4]


def test_a_full_gateway_is_asked_again_and_a_refusal_leaves_the_number_free(
    client: Client, gateway: ToyGateway
) -> None:
    full = Code.RESOURCE_EXHAUSTED, "too many messages are pending"
    contribution = unopened(client)
    gateway.refusals["Contribute"] += [full, full]
    assert contribution.send(b"first").number == 1
    hasty = unopened(client, timeout_s=0)
    gateway.refusals["Contribute"].append(full)
    with pytest.raises(LimitReached, match="too many messages are pending"):
        hasty.send(b"second")
    assert hasty.send(b"third").number == 2
    assert gateway.accepted == [b"first", b"third"]


def test_a_full_gateway_does_not_say_what_became_of_a_message_in_doubt(client: Client, gateway: ToyGateway) -> None:
    contribution = unopened(client, timeout_s=0)
    gateway.refusals["after"].append((Code.ABORTED, "in progress"))
    with pytest.raises(ContributionInDoubt):
        contribution.send(b"first")
    gateway.refusals["Contribute"].append((Code.RESOURCE_EXHAUSTED, "full"))
    with pytest.raises(ContributionInDoubt, match="full"):
        contribution.send(b"second")
    assert contribution.send(b"second").number == 2
    assert gateway.accepted == [b"first", b"second"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (Code.INVALID_ARGUMENT, ContributionRefused),
        (Code.PERMISSION_DENIED, AuthorizationRefused),
    ],
)
def test_what_is_refused_is_forgotten_and_its_number_is_used_again(
    client: Client, gateway: ToyGateway, code: grpc.StatusCode, kind: type[ClientError]
) -> None:
    contribution = unopened(client)
    gateway.refusals["Contribute"] += [(code, "refused")] * 2
    with pytest.raises(kind, match="refused"):
        contribution.send_many([b"first", b"second"])
    gateway.refusals["Contribute"].clear()
    assert contribution.send(b"third").number == 1
    assert gateway.accepted == [b"third"]


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (Code.FAILED_PRECONDITION, ContributionSuperseded, "^no$"),
        (Code.UNIMPLEMENTED, ClientError, "contribution gateway: UNIMPLEMENTED: no"),
    ],
)
def test_other_refusals_are_raised(
    client: Client, gateway: ToyGateway, code: grpc.StatusCode, kind: type[ClientError], text: str
) -> None:
    contribution = unopened(client)
    gateway.refusals["Contribute"].append((code, "no"))
    with pytest.raises(kind, match=text) as raised:
        contribution.send(b"a")
    assert type(raised.value) is kind


@pytest.mark.parametrize("code", [Code.PERMISSION_DENIED, Code.UNAUTHENTICATED])
def test_a_token_that_is_refused_or_lacks_a_new_right_is_renewed_once(
    client: Client, cluster: ToyCluster, gateway: ToyGateway, code: grpc.StatusCode
) -> None:
    contribution = unopened(client)
    for number in (1, 2):
        logins = cluster.admin.logins
        gateway.refusals["Contribute"].append((code, "an old token"))
        assert contribution.send(b"a").number == number
        assert cluster.admin.logins == logins + 1
    gateway.refusals["Contribute"] += [(Code.PERMISSION_DENIED, "no right")] * 2
    with pytest.raises(AuthorizationRefused, match="no right") as raised:
        contribution.send(b"b")
    assert raised.value.topics == (TOPIC,)
    assert not gateway.refusals["Contribute"]


@pytest.mark.parametrize("code", sorted(module.STALE_VERDICTS, key=str))
def test_a_gateway_that_knows_nothing_of_what_another_one_accepted_is_not_believed(
    client: Client, cluster: ToyCluster, gateway: ToyGateway, code: grpc.StatusCode
) -> None:
    contribution = unopened(client)
    contribution.send(b"first")
    former = ToyGateway(cluster, gateway.accepted)
    former.refusals["Contribute"] += [(code, "of former times")] * 3
    gateway.close()
    assert contribution.send(b"second").number == 2
    assert not former.refusals["Contribute"]
    assert contribution.send(b"third").number == 3
    former.refusals["Contribute"].append((Code.FAILED_PRECONDITION, "superseded"))
    with pytest.raises(ContributionSuperseded):  # by the gateway that accepted the last message
        contribution.send(b"fourth")
    former.close()


def test_a_gateway_that_refuses_for_long_is_believed(
    client: Client, cluster: ToyCluster, gateway: ToyGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STALE_PATIENCE_S", 0.05)
    contribution = unopened(client)
    contribution.send(b"first")
    former = ToyGateway(cluster, gateway.accepted)
    former.refusals["Contribute"] += [(Code.FAILED_PRECONDITION, "superseded")] * 10_000
    gateway.close()
    with pytest.raises(ContributionSuperseded):
        contribution.send(b"second")
    former.close()


def test_messages_are_cancelled_by_their_ids(client: Client, gateway: ToyGateway) -> None:
    contribution = unopened(client)
    ids = [ContributionId("p", 3), ContributionId("p", 4)]
    assert contribution.cancel(ids) == ids[:1]
    assert contribution.cancel(ids[1]) == ids[1:]
    assert contribution.cancel([]) == []
    assert contribution.cancel_all() == contribution.cancel_all(every_producer=True) == 7
    asked = [(each.topic, each.producer, list(each.numbers)) for each in gateway.calls["Cancel"]]
    assert asked == [(TOPIC, "p", [3, 4]), (TOPIC, "p", [4]), (TOPIC, "p", []), (TOPIC, "", [])]
    with pytest.raises(ValueError, match="an id is of another producer than 'p'"):
        contribution.cancel(ContributionId("other", 1))


def test_a_closed_contribution_says_so(client: Client, gateway: ToyGateway) -> None:
    with unopened(client) as contribution:
        assert len(gateway.calls["Open"]) == 1
        contribution.send(b"a")
    contribution.close()
    with pytest.raises(ValueError, match=r"the contribution is closed; call Client\.contribute again"):
        contribution.send(b"b")


def test_coroutines_contribute(cluster: ToyCluster, gateway: ToyGateway) -> None:
    async def contribute() -> list[object]:
        async with cluster.connect() as client:
            contribution = client.contribute(TOPIC, producer="p")
            assert gateway.calls["Open"] == []
            await contribution.open_async()
            ids = [await contribution.send_async(b"a"), *await contribution.send_many_async([b"b", b"c"], hold_s=1)]
            return [ids, await contribution.cancel_async(ids), await contribution.cancel_all_async()]

    ids = [ContributionId("p", number) for number in (1, 2, 3)]
    assert asyncio.run(contribute()) == [ids, ids[:1], 7]
    assert gateway.accepted == [b"a", b"b", b"c"]
