"""Around every call: its refusal is recorded, and it is answered when everything that it noted is on the disk.

A service that knows the details of a refusal calls `AuditLog.refuse`; `CallAudit` records all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from tandemfeed.admin_server.audit.log import AuditLog, AuditUnavailable
from tandemfeed.admin_server.records.lease_records import RecordsUnavailable
from tandemfeed.transport.calls.rpc import Handler, behavior_of, rebuild

REFUSALS = frozenset(
    {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED}
)
# Health and reflection refuse no call, so they need no wrapper. A wrapped health watch would also occupy a thread, and
# clients without a token could then use up all threads.
OWN_SERVICES = "/tandemfeed."


class CallAudit(grpc.ServerInterceptor):
    """Must be the first interceptor, so that it sees the calls that another one refuses."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Wrap the handler so that the end of each call is observed."""
        handler = continuation(handler_call_details)
        method = str(handler_call_details.method)
        if handler is None or not method.startswith(OWN_SERVICES):
            return handler
        behavior = behavior_of(handler)

        def serve_unary(request: Any, context: grpc.ServicerContext) -> Any:
            context.add_callback(lambda: self._note_refused(method, context))
            with _recorded(context):
                reply = behavior(request, context)
                self._audit.sync()
                return reply

        def serve_stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            context.add_callback(lambda: self._note_refused(method, context))
            with _recorded(context):
                yield from behavior(request, context)

        return rebuild(handler, serve_stream if handler.response_streaming else serve_unary)

    def _note_refused(self, method: str, context: Any) -> None:  # Any: the stubs do not know code() and details()
        code = context.code()
        if code in REFUSALS:
            details = context.details()
            reason = details.decode(errors="replace") if isinstance(details, bytes) else str(details)
            self._audit.note_refused_call(method, context, code.name, reason)


@contextmanager
def _recorded(context: grpc.ServicerContext) -> Iterator[None]:
    """End a call whose grant or action cannot be recorded."""
    try:
        yield
    except (AuditUnavailable, RecordsUnavailable) as failed:
        text = f"not answered, because it cannot be recorded: {failed}; try again later"
        context.abort(grpc.StatusCode.UNAVAILABLE, text)
