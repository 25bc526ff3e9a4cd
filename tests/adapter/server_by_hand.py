"""A server that fails as a test says: over real sockets, TLS and streams.

It can refuse calls, end streams, and go away and come back at its address.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from typing import Any, TypeVar

import grpc

from tandemfeed.transport.calls.serving.call_context import CallContext
from tandemfeed.transport.calls.serving.loop_thread import serving_loop
from tandemfeed.transport.calls.serving.server import RpcServer, serve

WAIT_S = 60.0
Request = TypeVar("Request")


class ServerByHand:
    """The server. Its streams wait in `until_ended`, by which a test can end them.

    Args:
        services: full names.
        registrations: each adds a servicer to what it is given.
        certificate: (certificate, key).

    Attributes:
        log: every call by the name of its method, refused calls included.
        refusals: by method, the status of the next calls; then they are served.
        stream_count: the streams that were open so far.
    """

    def __init__(
        self, services: Sequence[str], registrations: Sequence[Callable[[Any], None]], certificate: tuple[bytes, bytes]
    ) -> None:
        self.log: list[str] = []
        self.refusals: dict[str, deque[grpc.StatusCode]] = {}
        self.changed = threading.Condition()
        self._services, self._registrations, self._certificate = services, registrations, certificate
        self._endings: list[asyncio.Event] = []  # of the open streams
        self.stream_count = 0
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            self.endpoint = f"127.0.0.1:{free.getsockname()[1]}"
        self._server: RpcServer | None = None
        self.start()

    def start(self) -> None:
        """Serve, at the same address as before."""
        gates = [self._admit]
        self._server = serve(self._registrations, self._services, self.endpoint, *self._certificate, gates)

    def stop(self) -> None:
        """Go away: every connection ends."""
        if self._server is not None:
            self.end_streams()
            self._server.stop(0)
            self._server = None

    def refuse(self, method: str, code: grpc.StatusCode, count: int = 1) -> None:
        """Refuse the next calls of a method."""
        self.refusals[method] = deque([code] * count)

    def end_streams(self) -> None:
        """End every open stream."""
        for ending in list(self._endings):
            serving_loop().call_soon_threadsafe(ending.set)

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so that depends on calls, requests or open streams."""
        with self.changed:
            assert self.changed.wait_for(is_so, WAIT_S), self.log

    def wait_for_count(self, method: str, count: int) -> None:
        """Wait until a method was called so often, refused calls included."""
        self.wait_for(lambda: self.log.count(method) >= count)

    def wait_for_streams(self, count: int) -> None:
        """Wait until so many streams are open."""
        self.wait_for(lambda: len(self._endings) == count)

    # ---- for the services ----

    def check(self, call: CallContext) -> None:
        """Called for each call that is not refused; may abort it."""

    def change(self, change: Callable[[], object]) -> None:
        """Change something that a test may be waiting for."""
        with self.changed:
            change()
            self.changed.notify_all()

    async def until_ended(
        self, requests: AsyncIterator[Request], context: grpc.ServicerContext
    ) -> AsyncIterator[Request]:
        """The requests of a stream, until a test ends it."""
        ending = asyncio.Event()
        self.change(lambda: self._open(ending))
        ended = asyncio.ensure_future(ending.wait())
        try:
            while True:
                coming = asyncio.ensure_future(anext(requests, None))
                await asyncio.wait({coming, ended}, return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    coming.cancel()
                    context.abort(grpc.StatusCode.UNAVAILABLE, "ended by the test")
                if (request := coming.result()) is None:
                    return
                yield request
        finally:
            ended.cancel()
            self.change(lambda: self._endings.remove(ending))

    def _open(self, ending: asyncio.Event) -> None:
        self._endings.append(ending)
        self.stream_count += 1

    def _admit(self, call: CallContext) -> None:
        method = call.method.rpartition("/")[2]
        self.change(lambda: self.log.append(method))
        if self.refusals.get(method):
            call.abort(self.refusals[method].popleft(), "refused by the test")
        self.check(call)
