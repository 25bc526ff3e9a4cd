"""Contributors that send what they should not: each request is refused alone, and others are served."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tandemfeed.spark_feed.contributions.service import CALLS_OF_ONE_MAX, MESSAGES_MAX, NUMBERS_MAX
from tandemfeed.transport.calls.server_names import source_gateway
from tandemfeed.v1 import contribution_pb2, contribution_pb2_grpc
from tests.spark_feed.contributions.contribution_material import A, B, trade
from tests.spark_feed.contributions.gateway_site import FEED, TOPIC, GatewaySite, gateway_site, holder_of

PATIENCE_S = 60.0
DAY_NS = 86_400_000_000_000
pytestmark = pytest.mark.processes


@contextmanager
def stub_of(site: GatewaySite, endpoint: str, identity: str) -> Iterator[contribution_pb2_grpc.ContributionStub]:
    """Calls of an identity, without the client's manners."""
    with site.connect(identity) as client, client._session.open_channel(endpoint, source_gateway(FEED)) as channel:
        yield contribution_pb2_grpc.ContributionStub(channel)


def contribute_request(**changes: Any) -> contribution_pb2.ContributeRequest:
    fields = {"topic": TOPIC, "producer": "p", "instance": A, "first_number": 1, "messages": [trade(1)]} | changes
    return contribution_pb2.ContributeRequest(**fields)


def code_of(call: Any, request: Any) -> grpc.StatusCode:
    try:
        call(request, timeout=PATIENCE_S)
    except grpc.RpcError as refused:
        code: grpc.StatusCode = refused.code()  # type: ignore[attr-defined]
        return code
    return grpc.StatusCode.OK


def test_requests_that_break_the_rules_are_refused_and_change_nothing(tmp_path: Path) -> None:
    invalid, cancel = grpc.StatusCode.INVALID_ARGUMENT, contribution_pb2.CancelContributionsRequest
    with (
        gateway_site(tmp_path) as site,
        site.gateway() as gateway,
        stub_of(site, holder_of(gateway).endpoint, "alice") as stub,
    ):
        opening = contribution_pb2.OpenProducerRequest(topic=TOPIC, producer="p", instance=A)
        assert code_of(stub.Contribute, contribute_request()) is grpc.StatusCode.FAILED_PRECONDITION  # not open
        assert code_of(stub.Open, opening) is grpc.StatusCode.OK
        for changes in (
            {"producer": ""}, {"producer": "../p"}, {"producer": "p" * 65}, {"instance": b"short"}, {"messages": []},
            {"messages": [trade(1)] * (MESSAGES_MAX + 1)}, {"first_number": 0}, {"first_number": 1 << 63},
            {"hold_ns": DAY_NS + 1}, {"messages": [bytes(100_000)]},
        ):  # fmt: skip
            assert code_of(stub.Contribute, contribute_request(**changes)) is invalid, changes
        assert code_of(stub.Contribute, contribute_request(instance=B)) is grpc.StatusCode.FAILED_PRECONDITION
        assert code_of(stub.Contribute, contribute_request(first_number=2)) is grpc.StatusCode.OUT_OF_RANGE
        assert code_of(stub.Contribute, contribute_request(topic="x")) is grpc.StatusCode.PERMISSION_DENIED
        assert code_of(stub.Cancel, cancel(topic=TOPIC, numbers=[1])) is invalid
        assert code_of(stub.Cancel, cancel(topic=TOPIC, producer="p", numbers=[1] * (NUMBERS_MAX + 1))) is invalid
        oversize = contribute_request(messages=[bytes(300 << 10)])
        assert code_of(stub.Contribute, oversize) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert stub.Contribute(contribute_request(), timeout=PATIENCE_S).next_number == 2


def test_an_identity_cannot_take_the_threads_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gateway_site(tmp_path) as site, site.gateway() as gateway, ExitStack() as opened:
        alice = opened.enter_context(stub_of(site, holder_of(gateway).endpoint, "alice"))
        bob = opened.enter_context(stub_of(site, holder_of(gateway).endpoint, "bob"))
        bob.Open(contribution_pb2.OpenProducerRequest(topic=TOPIC, producer="p", instance=A), timeout=PATIENCE_S)
        arrived, may_continue = threading.Semaphore(0), threading.Event()
        (stream,) = holder_of(gateway)._log.streams.values()
        cancel = stream.cancel

        def wait_then_cancel(*arguments: Any) -> Any:
            arrived.release()
            may_continue.wait(PATIENCE_S)
            return cancel(*arguments)

        monkeypatch.setattr(stream, "cancel", wait_then_cancel)
        opened.callback(may_continue.set)
        request = contribution_pb2.CancelContributionsRequest(topic=TOPIC)
        calls = [alice.Cancel.future(request, timeout=PATIENCE_S) for _ in range(CALLS_OF_ONE_MAX)]
        for _ in calls:
            assert arrived.acquire(timeout=PATIENCE_S)
        assert code_of(alice.Cancel, request) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert bob.Contribute(contribute_request(), timeout=PATIENCE_S).next_number == 2
        may_continue.set()
        assert [call.result(PATIENCE_S).count for call in calls] == [0] * len(calls)
