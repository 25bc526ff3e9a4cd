"""A contribution gateway for the client's tests: it accepts messages of one producer, and keeps them in memory."""

from __future__ import annotations

import threading
from typing import Any

import grpc

from tandemfeed.transport.calls.server_names import source_gateway
from tandemfeed.v1 import contribution_pb2, contribution_pb2_grpc
from tests.client_lib.toy_cluster import ToyCluster


class ToyGateway(contribution_pb2_grpc.ContributionServicer):
    """Attributes:
    accepted: the messages, in order.
    holding: set while an answer is held back, until `release` is set.
    """

    def __init__(self, cluster: ToyCluster) -> None:
        self._cluster = cluster
        self.accepted: list[bytes] = []
        self.is_holding, self.holding, self.release = False, threading.Event(), threading.Event()
        add = contribution_pb2_grpc.add_ContributionServicer_to_server
        self.rpc = cluster.serve(source_gateway("equities"), self, add, "tandemfeed.v1.Contribution")
        cluster.gateway_endpoint = self.rpc.endpoint

    def Open(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self._cluster.fail("Open", context)
        return contribution_pb2.OpenProducerReply(next_number=len(self.accepted) + 1, message_size_max=1_000, session=1)

    def Contribute(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        if self.is_holding:
            self.is_holding = False
            self.holding.set()
            self.release.wait(30)
        self._cluster.fail("Contribute", context)
        assert request.first_number <= len(self.accepted) + 1
        self.accepted += request.messages[len(self.accepted) + 1 - request.first_number :]
        return contribution_pb2.ContributeReply(next_number=len(self.accepted) + 1)

    def close(self) -> None:
        self.rpc.stop(0)
