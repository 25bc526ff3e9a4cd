"""How a call is served: gates, then the request, then the handler, then the replies.

All of it runs on the loop, except what waits or computes:

| handler | runs |
|---|---|
| `def`, returns a reply | in a thread, after the request has arrived |
| `def`, yields replies | each step in a thread; none is held while the caller does not read |
| `async def` | on the loop; it may only wait for events, and use `in_thread` for the rest |

The threads are reserved: each service has a pool for each role that may call it, so that no kind of caller can use up
the threads of another. The gates run before anything is read, so a call that is refused costs no more than its headers.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc
from grpc import aio

from tandemfeed.transport.calls.serving.call_context import CallAborted, CallContext, in_thread

LOG = logging.getLogger("tandemfeed.transport.calls.serving.handling")
THREADS_PER_POOL = 8
_END = object()

Gate: TypeAlias = Callable[[CallContext], None]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class CallHandling(grpc.GenericRpcHandler):
    """Serves every call of one server.

    Args:
        gates: called in this order, on the loop; a gate refuses a call by its `abort`.
        on_refused: called in a thread for each call that ends with a status other than OK, before the caller is told.
        unavailable: exceptions of handlers that mean UNAVAILABLE, with their text.
    """

    def __init__(
        self,
        gates: Sequence[Gate],
        on_refused: Callable[[CallContext, CallAborted], None] | None,
        unavailable: tuple[type[Exception], ...],
    ) -> None:
        self._gates, self._on_refused, self._unavailable = gates, on_refused, unavailable
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._pools: dict[tuple[str, frozenset[str]], ThreadPoolExecutor] = {}
        self._open: set[asyncio.Task[Any]] = set()

    # ---- what generated code calls to register a servicer ----

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Serve these handlers' methods."""
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Handler]) -> None:
        """Nothing: generated code registers the same methods by `add_generic_rpc_handlers`."""

    # ---- what grpc calls ----

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """How to serve a call; None if its method does not exist.

        To grpc, each method takes and sends streams: so it leaves the reading of the request to us, after the gates.
        """
        method = str(handler_call_details.method)
        found = (each.service(handler_call_details) for each in self._handlers)
        handler = next((each for each in found if each is not None), None)
        if handler is None:
            return None

        async def serve(_requests: Any, aio_context: aio.ServicerContext[Any, Any]) -> None:
            await self._serve(CallContext(method, aio_context), handler)

        return grpc.stream_stream_rpc_method_handler(serve)

    async def wait_until_idle(self) -> None:
        """Wait until every handler has ended, then end the threads."""
        if self._open:
            await asyncio.wait(set(self._open))
        for pool in self._pools.values():
            pool.shutdown(wait=False)

    # ---- inside ----

    async def _serve(self, call: CallContext, handler: Handler) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._reply(call, handler)
        except CallAborted as aborted:
            await self._refuse(call, aborted)
        except self._unavailable as failed:
            await self._refuse(call, CallAborted(grpc.StatusCode.UNAVAILABLE, str(failed)))
        except aio.BaseError:
            raise  # grpc's own: the caller has left
        except Exception as failed:
            if call.aborted is not None:  # a library has replaced the exception
                await self._refuse(call, call.aborted)
            LOG.exception("a call failed", extra={"method": call.method})
            text = f"internal error ({type(failed).__name__}); the server's log has the details"
            await self._refuse(call, CallAborted(grpc.StatusCode.UNKNOWN, text))
        finally:
            self._open.discard(task)

    async def _reply(self, call: CallContext, handler: Handler) -> None:
        call.threads = self._pool(call.service, frozenset())
        for gate in self._gates:
            gate(call)
        if call.caller is not None:
            call.threads = self._pool(call.service, call.caller.roles)
        request = _requests(call, handler) if handler.request_streaming else await _request(call, handler)
        behavior = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        async with aclosing(_replies(call, behavior, request, is_stream=bool(handler.response_streaming))) as replies:
            async for reply in replies:
                if call.aborted is not None:
                    raise call.aborted
                await call.aio_context.write(_bytes_of(reply, handler.response_serializer))
        call.aio_context.set_trailing_metadata(call.trailing_metadata)

    async def _refuse(self, call: CallContext, aborted: CallAborted) -> None:
        if self._on_refused is not None:
            await in_thread(call, self._on_refused, call, aborted)  # type: ignore[arg-type]  # seen as grpc's context
        await call.aio_context.abort(aborted.code, aborted.details, call.trailing_metadata)

    def _pool(self, service: str, roles: frozenset[str]) -> Executor:
        pool = self._pools.get((service, roles))
        if pool is None:
            name = f"{service.rpartition('.')[2]}-{'-'.join(sorted(roles))}"
            pool = self._pools[service, roles] = ThreadPoolExecutor(THREADS_PER_POOL, thread_name_prefix=name)
        return pool


async def _request(call: CallContext, handler: Handler) -> Any:
    """The request of a call that has one."""
    async with aclosing(_requests(call, handler)) as requests:
        async for request in requests:
            return request
    raise CallAborted(grpc.StatusCode.INVALID_ARGUMENT, f"{call.method} needs a request")


async def _requests(call: CallContext, handler: Handler) -> AsyncGenerator[Any, None]:
    """The requests of a call, until the caller has sent its last one or the call has ended."""
    while True:
        try:
            data = await call.aio_context.read()
        except (aio.AbortError, aio.UsageError):  # this server has ended the call
            return
        if data is aio.EOF:
            return
        if handler.request_deserializer is None:
            yield data
            continue
        try:
            request = handler.request_deserializer(data)
        except Exception as malformed:
            raise CallAborted(grpc.StatusCode.INVALID_ARGUMENT, f"the request is malformed: {malformed}") from malformed
        yield request


async def _replies(call: CallContext, behavior: Any, request: Any, *, is_stream: bool) -> AsyncGenerator[Any, None]:
    """What a handler replies."""
    context: Any = call
    if inspect.isasyncgenfunction(behavior):
        async with aclosing(behavior(request, context)) as replies:
            async for reply in replies:
                yield reply
    elif inspect.iscoroutinefunction(behavior):
        yield await behavior(request, context)
    elif not is_stream:
        yield await in_thread(context, behavior, request, context)
    else:
        steps: Generator[Any, None, None] = behavior(request, context)
        try:
            while (reply := await in_thread(context, next, steps, _END)) is not _END:
                yield reply
        finally:
            await in_thread(context, steps.close)


def _bytes_of(reply: Any, serializer: Callable[[Any], bytes] | None) -> bytes:
    return bytes(reply) if serializer is None else serializer(reply)
