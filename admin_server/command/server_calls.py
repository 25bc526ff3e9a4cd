"""One command's calls of the admin server: a login, then calls whose methods follow from their requests."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tandemfeed.transport.calls.admin_servers import AdminServers, ask_active
from tandemfeed.transport.calls.channels import open_channel
from tandemfeed.transport.calls.login import Login, login
from tandemfeed.transport.calls.reachability import call_or_explain
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tandemfeed.transport.process_shell import Connection
from tandemfeed.v1 import admin_pb2

ANSWER_TIMEOUT_S = 70  # a hand-over succeeds or fails within one lease term, which is at most a minute
LOGIN_TIMEOUT_S = 10.0  # a server that cannot be reached at all is reported within three seconds


class ServerCalls:
    """Calls of the active admin server as one identity. The first one logs in."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._servers = AdminServers(connection.admin)

    def call(self, request: Message) -> Any:
        """Send a request to the method that takes requests of its type; return the reply.

        Raises:
            AuthenticationRefused: the identity or its secret is wrong.
            Unreachable: no connection can be made.
            grpc.RpcError: the server refused the request, or did not reply in time.
        """
        method = method_of(type(request))
        session = self._session

        def ask(address: str, timeout_s: float) -> Any:
            with open_channel(address, self._connection.ca_pem, ADMIN_SERVER, session.bearer) as channel:
                return channel.unary_unary(
                    f"/{method.containing_service.full_name}/{method.name}",
                    request_serializer=type(request).SerializeToString,
                    response_deserializer=GetMessageClass(method.output_type).FromString,
                )(request, timeout=timeout_s)

        return ask_active(self._servers, ask, timeout_s=ANSWER_TIMEOUT_S)

    @cached_property
    def _session(self) -> Login:
        known = self._servers, self._connection.ca_pem, self._connection.identity, self._connection.credential
        return call_or_explain(
            lambda timeout_s: login(*known, timeout_s=timeout_s),
            self._servers.addresses,
            self._connection.ca_pem,
            timeout_s=LOGIN_TIMEOUT_S,
        )


def method_of(request: type[Message]) -> MethodDescriptor:
    """The method of the admin server's contracts that takes requests of this type."""
    (method,) = (
        method
        for service in admin_pb2.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        if method.input_type is request.DESCRIPTOR
    )
    return method
