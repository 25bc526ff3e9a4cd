"""Services for tools on every server of the cluster: reflection, and the standard health service."""

from __future__ import annotations

from pathlib import Path

from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tests.admin_server.cluster_files import running_server


def test_reflection_and_health_answer_without_a_token(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        ca = (server.folder.path / "ca.pem").read_bytes()
        with open_channel(server.endpoint, ca, ADMIN_SERVER) as channel:
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            reply = next(reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request])))
            names = {service.name for service in reply.list_services_response.service}
            assert {"tandemfeed.v1.Authentication", "tandemfeed.v1.StreamAdministration"} <= names
            health = health_pb2_grpc.HealthStub(channel)
            for name in ("", "tandemfeed.v1.AdapterRegistry"):
                answer = health.Check(health_pb2.HealthCheckRequest(service=name))
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
