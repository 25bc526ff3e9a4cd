"""The standard health service (grpc.health.v1), for any caller; a watcher costs memory, not a thread.

Once a thread of the process has failed, no service is serving any more (`runtime.threads`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

Status = health_pb2.HealthCheckResponse
WATCHER_COUNT_MAX = 256


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # grpc_health has no types
    """Says which services this server serves now. All its methods run on the loop."""

    def __init__(self) -> None:
        self._statuses: dict[str, Any] = {}
        self._is_failed = False
        self._changes: set[asyncio.Event] = set()

    def set(self, status: Any, *services: str) -> None:
        """Set services' status."""
        self._statuses |= dict.fromkeys(services, Status.NOT_SERVING if self._is_failed else status)
        for changed in self._changes:
            changed.set()

    def fail(self) -> None:
        """Report every service as not serving, for good."""
        self._is_failed = True
        self.set(Status.NOT_SERVING, *self._statuses)

    async def Check(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """The status of a service."""
        status = self._statuses.get(request.service)
        if status is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "this server has no such service")
        return Status(status=status)

    async def List(self, _request: Any, _context: grpc.ServicerContext) -> Any:  # noqa: N802
        """The status of every service."""
        statuses = {name: Status(status=status) for name, status in self._statuses.items()}
        return health_pb2.HealthListResponse(statuses=statuses)

    async def Watch(self, request: Any, context: grpc.ServicerContext) -> AsyncGenerator[Any, None]:  # noqa: N802
        """The status of a service, now and whenever it changes."""
        if len(self._changes) >= WATCHER_COUNT_MAX:
            text = f"{WATCHER_COUNT_MAX} callers watch this server's health, which is the limit; use Check"
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        changed, sent = asyncio.Event(), None
        self._changes.add(changed)
        try:
            while True:
                changed.clear()
                status = self._statuses.get(request.service, Status.SERVICE_UNKNOWN)
                if status != sent:
                    yield Status(status=status)
                    sent = status
                await changed.wait()
        finally:
            self._changes.discard(changed)
