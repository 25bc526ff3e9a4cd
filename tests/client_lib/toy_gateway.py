"""A contribution gateway for the client's tests: it accepts messages of one producer, and keeps them in memory."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import grpc

from tandemfeed.transport.calls.server_names import source_gateway
from tandemfeed.v1 import contribution_pb2, contribution_pb2_grpc
from tests.client_lib.toy_cluster import ToyCluster

Refusal = tuple[grpc.StatusCode, str]


class ToyGateway(contribution_pb2_grpc.ContributionServicer):
    """Attributes:
    accepted: the messages, in order. Gateways of one feed share it.
    refusals: with which the next calls of a method end, by method; "after": once the messages were accepted.
    calls: the requests, by method.
    holding: set while an answer is held back, until `release` is set.
    """

    def __init__(self, cluster: ToyCluster, accepted: list[bytes] | None = None) -> None:
        self._cluster = cluster
        self.accepted: list[bytes] = [] if accepted is None else accepted
        self.refusals: dict[str, deque[Refusal]] = {"Open": deque(), "Contribute": deque(), "after": deque()}
        self.calls: dict[str, list[Any]] = {"Open": [], "Contribute": [], "Cancel": []}
        self.is_holding, self.holding, self.release = False, threading.Event(), threading.Event()
        add = contribution_pb2_grpc.add_ContributionServicer_to_server
        self.rpc = cluster.serve(source_gateway("equities"), self, add, "tandemfeed.v1.Contribution")
        cluster.gateway_endpoint = self.rpc.endpoint

    def Open(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self.calls["Open"].append(request)
        self._cluster.fail("Open", context)
        self._refuse("Open", context)
        return contribution_pb2.OpenProducerReply(next_number=len(self.accepted) + 1, message_size_max=1_000, session=1)

    def Contribute(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self.calls["Contribute"].append(request)
        if self.is_holding:
            self.is_holding = False
            self.holding.set()
            self.release.wait(30)
        self._cluster.fail("Contribute", context)
        self._refuse("Contribute", context)
        assert request.first_number <= len(self.accepted) + 1
        self.accepted += request.messages[len(self.accepted) + 1 - request.first_number :]
        self._refuse("after", context)
        return contribution_pb2.ContributeReply(next_number=len(self.accepted) + 1)

    def Cancel(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self.calls["Cancel"].append(request)
        return contribution_pb2.CancelContributionsReply(count=7, numbers=request.numbers[:1])

    def close(self) -> None:
        self.rpc.stop(0)

    def _refuse(self, method: str, context: grpc.ServicerContext) -> None:
        if self.refusals[method]:
            context.abort(*self.refusals[method].popleft())
