"""The audit log: an append-only file with one JSON line for everything that was granted, refused or changed.

It never contains secrets, tokens or keys. It records each refused call once: a service that knows the details calls
`refuse`; `note_refused_call` records all other refusals.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import NoReturn
from weakref import WeakSet

import grpc

from tandemfeed.transport.calls.serving.call_context import CallAborted, CallContext

REFUSALS = frozenset(
    {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED}
)


class AuditLog:
    """An append-only file. Safe to call from any thread."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._is_closed = False
        self._recorded: WeakSet[object] = WeakSet()  # calls whose refusal is in the log

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

    def note_refused_call(self, call: CallContext, aborted: CallAborted) -> None:
        """Record a call that ends with a refusal, unless a service has recorded it."""
        if aborted.code in REFUSALS and call not in self._recorded:
            reason = aborted.details[:300]
            self.write("call refused", method=call.method, code=aborted.code.name, peer=call.peer(), reason=reason)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._is_closed = True
            os.close(self._fd)
