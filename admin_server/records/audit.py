"""The audit log: an append-only file with one JSON line for everything that was granted, refused or changed.

It never contains secrets, tokens or keys. It records each refused call once: a service that knows the details calls
`refuse`; `RefusalAudit` records all other refusals.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakSet

import grpc

from tandemfeed.transport.calls.rpc import Handler, behavior_of, rebuild

REFUSALS = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.NOT_FOUND,  # also the answer for what the caller may not see
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
# Health and reflection refuse no call, so they need no wrapper. A wrapped health watch would also occupy a thread, and
# clients without a token could then use up all threads.
OWN_SERVICES = "/tandemfeed."


class AuditLog:
    """An append-only file. Safe to call from any thread."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._is_closed = False
        self._recorded: WeakSet[grpc.ServicerContext] = WeakSet()  # calls whose refusal is in the log

    def write(self, event: str, **fields: object) -> None:
        """Append one line with a single write, so that lines never interleave.

        Raises:
            OSError: the line was not written, so the caller must not grant what it describes.
        """
        line = (json.dumps({"unix_ns": time.time_ns(), "event": event, **fields}, default=str) + "\n").encode()
        with self._lock:
            if self._is_closed:
                raise OSError("the audit log is closed")
            if os.write(self._fd, line) != len(line):
                raise OSError("the audit log was not written: the disk is full")

    def refuse(
        self, context: grpc.ServicerContext, code: grpc.StatusCode, text: str, event: str, **fields: object
    ) -> NoReturn:
        """Record a refusal and end the call with it."""
        self._recorded.add(context)
        self.write(event, code=code.name, peer=context.peer(), **fields)
        context.abort(code, text)

    def note_refused_call(self, method: str, context: Any) -> None:  # Any: the stubs do not know code() and details()
        """Record a call that ended with a refusal, unless a service has recorded it."""
        code = context.code()
        if code in REFUSALS and context not in self._recorded:
            details = context.details()
            reason = details.decode(errors="replace") if isinstance(details, bytes) else str(details)
            self.write("call refused", method=method, code=code.name, peer=context.peer(), reason=reason[:300])

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._is_closed = True
            os.close(self._fd)


class RefusalAudit(grpc.ServerInterceptor):
    """Records refused calls, including those that another interceptor refuses. Must be the first interceptor."""

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
            context.add_callback(lambda: self._audit.note_refused_call(method, context))
            return behavior(request, context)

        def serve_stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            context.add_callback(lambda: self._audit.note_refused_call(method, context))
            yield from behavior(request, context)

        return rebuild(handler, serve_stream if handler.response_streaming else serve_unary)
