"""The exceptions of `connect` and `subscribe`: the type says what went wrong, the message is the server's."""

from __future__ import annotations

import grpc

from tandemfeed.transport.calls.channels import status_of
from tandemfeed.v1 import admin_pb2


class ClientError(Exception):
    """The base of all errors that a cluster causes for a client."""


class ForkedProcess(ClientError):
    """This process was forked from one that uses the client; the message says what to do instead."""


class ThreadFailed(ClientError, RuntimeError):
    """A thread of the client ended with an unexpected error, which is the `__cause__`: close the client, and connect
    again."""


class AuthenticationRefused(ClientError):
    """The administration server does not accept this identity and secret (gRPC UNAUTHENTICATED)."""


class AuthorizationRefused(ClientError):
    """The feed or a topic does not exist, or the policy does not grant it (gRPC PERMISSION_DENIED).

    Attributes:
        topics: the requested topics; the message names what was refused.
    """

    def __init__(self, message: str, topics: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.topics = topics


class FeedUnknown(ClientError):
    """The administration server cannot use the request (gRPC NOT_FOUND or INVALID_ARGUMENT)."""


class LimitReached(ClientError):
    """The identity has as many subscriptions open as the policy or the server allows, or contributes too much."""


class TooSlow(ClientError):
    """The application reads more slowly than messages arrive, and `on_lag="disconnect"` has ended the subscription."""


class HistoryUnavailable(ClientError):
    """No adapter said where the subscription is to begin."""


class AdminUnavailable(ClientError):
    """No administration server answered: it is down, unreachable or too slow, or has the wrong certificate."""


def client_error(error: grpc.RpcError, endpoint: str, topics: tuple[str, ...] = ()) -> ClientError:
    """The exception for a failed call to the administration server at `endpoint`."""
    code, details = status_of(error)
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return AuthenticationRefused(details)
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return AuthorizationRefused(details, topics)
    if code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT):
        return FeedUnknown(details)
    return AdminUnavailable(f"administration server {endpoint}: {code.name}: {details}")


def refusal_error(refused: admin_pb2.RequestRefused, topics: tuple[str, ...] = ()) -> ClientError:
    """The exception for a request that was refused within a call."""
    if refused.kind == admin_pb2.REFUSAL_KIND_NOT_GRANTED:
        return AuthorizationRefused(refused.reason, topics)
    if refused.kind == admin_pb2.REFUSAL_KIND_LIMIT:
        return LimitReached(refused.reason)
    return FeedUnknown(refused.reason)
