"""Whether this server may act for the cluster: a fence for grants, and a gate for calls.

If several admin servers share their records, one of them is active. The fence uses only this process's monotonic
clock: a confirmation of leadership counts from the time of its request, and only for as long as every successor waits
before it grants. So a server that was paused or cut off grants nothing when it resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from tandemfeed.admin_server.records.lease_records import RecordsUnavailable
from tandemfeed.transport.calls.admin_servers import ACTIVE_SERVER_KEY
from tandemfeed.transport.calls.rpc import Handler, behavior_of, rebuild

OWN_SERVICES = "/tandemfeed."  # health and reflection also answer on a standby


@dataclass(slots=True)
class Fence:
    """Says whether a grant may be made now. Pure; each leadership of a server has its own fence.

    Attributes:
        validity_ns: how long a confirmation is valid, counted from its request.
    """

    validity_ns: int
    _until_ns: int = 0
    _is_closed: bool = False

    def confirm(self, requested_at_ns: int) -> None:
        """A confirmation that was requested at this time succeeded."""
        self._until_ns = max(self._until_ns, requested_at_ns + self.validity_ns)

    def close(self) -> None:
        """Allow no more grants, even if a confirmation still arrives."""
        self._is_closed = True

    def allows_grants(self, now_ns: int) -> bool:
        """True if a grant or renewal that answers a report heard before `now_ns` may be made."""
        return not self._is_closed and now_ns < self._until_ns


class LeadershipGate(grpc.ServerInterceptor):
    """Lets calls through while this server is active; a standby answers UNAVAILABLE and names the active server.

    Attributes:
        active_endpoint: the active server's endpoint; "" if it is unknown.
    """

    def __init__(self, *, is_open: bool) -> None:
        self.is_open = is_open
        self.active_endpoint = ""

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Wrap the handler so that each call checks the gate."""
        handler = continuation(handler_call_details)
        if handler is None or not str(handler_call_details.method).startswith(OWN_SERVICES):
            return handler
        behavior = behavior_of(handler)

        def serve_unary(request: Any, context: grpc.ServicerContext) -> Any:
            self._check(context)
            try:
                return behavior(request, context)
            except RecordsUnavailable as away:
                context.abort(grpc.StatusCode.UNAVAILABLE, str(away))

        def serve_stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            self._check(context)
            try:
                yield from behavior(request, context)
            except RecordsUnavailable as away:
                context.abort(grpc.StatusCode.UNAVAILABLE, str(away))

        return rebuild(handler, serve_stream if handler.response_streaming else serve_unary)

    def _check(self, context: grpc.ServicerContext) -> None:
        if self.is_open:
            return
        known = self.active_endpoint
        if known:
            context.set_trailing_metadata(((ACTIVE_SERVER_KEY, known),))
        text = "this admin server is a standby; " + (f"{known} is active" if known else "the active one is unknown")
        context.abort(grpc.StatusCode.UNAVAILABLE, text)
