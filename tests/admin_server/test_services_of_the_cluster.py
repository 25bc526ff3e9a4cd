"""Services for tools on every server of the cluster: the standard health service, and reflection on request."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tests.admin_server.cluster_files import ca_of, channel_as, running_server

WAIT_S = 60


def services_listed_for(channel: grpc.Channel) -> set[str]:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    reply = next(stub.ServerReflectionInfo(iter([request]), timeout=WAIT_S))
    return {service.name for service in reply.list_services_response.service}


def code_of_listing_for(channel: grpc.Channel) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as refused:
        services_listed_for(channel)
    return refused.value.code()


def test_health_answers_without_a_token(tmp_path: Path) -> None:
    with running_server(tmp_path) as server, open_channel(server.endpoint, ca_of(server), ADMIN_SERVER) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "tandemfeed.v1.AdapterRegistry"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=WAIT_S)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_there_is_no_reflection_unless_it_is_requested(tmp_path: Path) -> None:
    with running_server(tmp_path) as server, channel_as(server, "operator") as channel:
        assert code_of_listing_for(channel) is grpc.StatusCode.UNIMPLEMENTED


def test_reflection_answers_administrators_only(tmp_path: Path) -> None:
    with running_server(tmp_path, offers_reflection=True) as server:
        with channel_as(server, "operator") as channel:
            listed = services_listed_for(channel)
            assert {"tandemfeed.v1.Authentication", "tandemfeed.v1.StreamAdministration"} <= listed
        with channel_as(server, "reader") as channel:
            assert code_of_listing_for(channel) is grpc.StatusCode.PERMISSION_DENIED
        with open_channel(server.endpoint, ca_of(server), ADMIN_SERVER) as channel:
            assert code_of_listing_for(channel) is grpc.StatusCode.UNAUTHENTICATED
