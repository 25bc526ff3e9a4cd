"""Why a request of a client is refused. The text for what does not exist is that for what is not granted. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import grpc

from tandemfeed.v1 import admin_pb2

_KINDS = {
    grpc.StatusCode.PERMISSION_DENIED: admin_pb2.REFUSAL_KIND_NOT_GRANTED,
    grpc.StatusCode.INVALID_ARGUMENT: admin_pb2.REFUSAL_KIND_INVALID,
    grpc.StatusCode.RESOURCE_EXHAUSTED: admin_pb2.REFUSAL_KIND_LIMIT,
}


class Refused(Exception):
    """A request is refused. Attributes: code: as for a refused call; fields: for the audit log."""

    def __init__(self, code: grpc.StatusCode, reason: str, **fields: str) -> None:
        super().__init__(reason)
        self.code, self.fields = code, fields


def not_granted(what: str, identity: str, available: Iterable[str], **fields: str) -> Refused:
    """It does not exist, or the caller may not use it."""
    names = ", ".join(sorted(available)) or "none"
    text = f"{what} does not exist or is not granted to {identity}; available to you: {names}"
    return Refused(grpc.StatusCode.PERMISSION_DENIED, text, **fields)


def unusable(reason: str, **fields: str) -> Refused:
    """The request makes no sense, whatever the caller's rights."""
    return Refused(grpc.StatusCode.INVALID_ARGUMENT, reason, **fields)


def one_too_many(reason: str, **fields: str) -> Refused:
    """A limit is reached."""
    return Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, reason, **fields)


def request_refused(refused: Refused) -> admin_pb2.SubscriptionUpdate:
    """The answer to a refused request."""
    reply = admin_pb2.RequestRefused(kind=_KINDS[refused.code], reason=str(refused))
    return admin_pb2.SubscriptionUpdate(refused=reply)
