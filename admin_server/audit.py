"""The audit log: one JSON line for everything granted, refused or changed; only ever appended.

Secrets, tokens and keys never go in. Every refused call is in it once: a service that knows more about the refusal
writes it by `refuse`, the rest is `RefusalAudit`'s.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeAlias
from weakref import WeakSet

import grpc

REFUSALS = frozenset(
    {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED}
)
# Health and reflection refuse nobody; and health watches hold no thread, but would if they were wrapped, so that
# whoever has no token could take every thread.
OWN_SERVICES = "/tandemfeed."
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class AuditLog:
    """An append-only file. Safe to call from any thread."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._is_closed = False
        self._told: WeakSet[grpc.ServicerContext] = WeakSet()

    def write(self, event: str, **fields: object) -> None:
        """Append one line; a single write, so that lines never mix.

        Raises:
            OSError: it is not in the file, so what it tells of must not be granted.
        """
        line = (json.dumps({"unix_ns": time.time_ns(), "event": event, **fields}, default=str) + "\n").encode()
        with self._lock:
            if self._is_closed:
                raise OSError("the audit log is closed")
            if os.write(self._fd, line) != len(line):
                raise OSError("the audit log's disk is full")

    def refuse(
        self, context: grpc.ServicerContext, code: grpc.StatusCode, text: str, event: str, **fields: object
    ) -> NoReturn:
        """Write a refusal down and end the call with it."""
        self._told.add(context)
        self.write(event, code=code.name, peer=context.peer(), **fields)
        context.abort(code, text)

    def note_refused_call(self, method: str, context: Any) -> None:  # Any: the stubs do not know code() and details()
        """Write down a call that ended, if it was refused and no service has said so."""
        code = context.code()
        if code in REFUSALS and context not in self._told:
            details = context.details()
            reason = details.decode(errors="replace") if isinstance(details, bytes) else str(details)
            self.write("call refused", method=method, code=code.name, peer=context.peer(), reason=reason[:300])

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._is_closed = True
            os.close(self._fd)


class RefusalAudit(grpc.ServerInterceptor):
    """Hears how calls end, also those that another interceptor refuses. Must be the first."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Wrap the handler so that its end is heard."""
        handler = continuation(handler_call_details)
        method = str(handler_call_details.method)
        if handler is None or not method.startswith(OWN_SERVICES):
            return handler
        behavior: Callable[..., Any] = next(
            filter(None, (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream))
        )

        def serve_unary(request: Any, context: grpc.ServicerContext) -> Any:
            context.add_callback(lambda: self._audit.note_refused_call(method, context))
            return behavior(request, context)

        def serve_stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            context.add_callback(lambda: self._audit.note_refused_call(method, context))
            yield from behavior(request, context)

        makers = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }
        maker = makers[bool(handler.request_streaming), bool(handler.response_streaming)]
        return maker(
            serve_stream if handler.response_streaming else serve_unary,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
