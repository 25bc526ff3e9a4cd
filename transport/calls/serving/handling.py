"""How a call is served: gates, then the request, then the handler, then the replies.

All of it runs on the loop, except what waits or computes:

| handler | runs |
|---|---|
| `def`, returns a reply | in a thread, after the request has arrived |
| `def`, yields replies | each step in a thread; none is held while the caller does not read |
| `async def` | on the loop; it may only wait for events, and use `in_thread` for the rest |

Each service has a lane (`lanes`) for callers without an identity, and one for each set of roles: no kind of caller can
use up the threads or places of another. Within a lane, `limits` keep one identity from taking what others need. The
gates run before anything is read, so a call that is refused costs no more than its headers. Streams have no place in a
lane after their request has arrived; they are counted by identity, and services limit them further.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeAlias

import grpc
from grpc import aio

from tandemfeed.transport.calls.serving.call_context import CallAborted, CallContext, in_thread
from tandemfeed.transport.calls.serving.lanes import Lane, NoRoom
from tandemfeed.transport.calls.serving.limits import OF_CLIENTS, OF_OTHERS, OF_STRANGERS, CallLimits

LOG = logging.getLogger("tandemfeed.transport.calls.serving.handling")
PUBLIC_REQUEST_SIZE_MAX = 64 << 10  # of callers that have not proved who they are
_END = object()

Gate: TypeAlias = Callable[[CallContext], None]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class CallHandling(grpc.GenericRpcHandler):
    """Serves every call of one server.

    Args:
        gates: called in this order, on the loop; a gate refuses a call by its `abort`.
        on_refused: called in a thread for each call that ends with a status other than OK, before its answer.
        unavailable: exceptions of handlers that mean UNAVAILABLE, with their text.
        settle: awaited before each reply of a handler that replies once; what it raises ends the call.
        limits: by service, of each identity, where they differ from those of `limits`.
    """

    def __init__(
        self,
        gates: Sequence[Gate],
        on_refused: Callable[[CallContext, CallAborted], None] | None,
        unavailable: tuple[type[Exception], ...],
        settle: Callable[[], Awaitable[None]] | None = None,
        limits: Mapping[str, CallLimits] | None = None,
    ) -> None:
        self._gates, self._on_refused, self._unavailable, self._settle = gates, on_refused, unavailable, settle
        self._limits = {**OF_CLIENTS, **(limits or {})}
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._lanes: dict[tuple[str, frozenset[str]], Lane] = {}
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
        for lane in self._lanes.values():
            lane.shutdown()

    # ---- inside ----

    async def _serve(self, call: CallContext, handler: Handler) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._reply(call, handler)
        except CallAborted as aborted:
            await self._refuse(call, aborted)
        except NoRoom as full:
            await self._lane(call).pause(call, full.refusal)
            await self._refuse(call, CallAborted(grpc.StatusCode.RESOURCE_EXHAUSTED, full.refusal.text))
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
        for gate in self._gates:
            gate(call)
        lane = self._lane(call)
        call.threads = lane.threads_of(call)
        await lane.turn(call)
        if handler.request_streaming:
            with lane.stream_of(call):
                await self._send_replies(call, handler, _requests(call, handler, lane))
        elif handler.response_streaming:
            with lane.place_for(call):
                request = await _request(call, handler, lane)
            with lane.stream_of(call):
                await self._send_replies(call, handler, request)
        else:
            with lane.place_for(call):
                await self._send_replies(call, handler, await _request(call, handler, lane))

    async def _send_replies(self, call: CallContext, handler: Handler, request: Any) -> None:
        behavior = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        async with aclosing(_replies(call, behavior, request, is_stream=bool(handler.response_streaming))) as replies:
            async for reply in replies:
                if call.aborted is not None:
                    raise call.aborted
                call.recheck()
                if self._settle is not None and not handler.response_streaming:
                    await self._settle()
                await call.aio_context.write(_bytes_of(reply, handler.response_serializer))
        call.aio_context.set_trailing_metadata(call.trailing_metadata)

    async def _refuse(self, call: CallContext, aborted: CallAborted) -> None:
        lane = self._lane(call)
        if self._on_refused is not None and not lane.is_full:  # a flood of refused calls must not pile up
            call.threads = lane.threads_of(call)
            with suppress(NoRoom), lane.place_for(call):
                await in_thread(call, self._on_refused, call, aborted)  # type: ignore[arg-type]  # seen as grpc's
        await call.aio_context.abort(aborted.code, aborted.details, call.trailing_metadata)

    def _lane(self, call: CallContext) -> Lane:
        roles = frozenset() if call.caller is None else call.caller.roles
        lane = self._lanes.get((call.service, roles))
        if lane is None:
            name = f"{call.service.rpartition('.')[2]}-{'-'.join(sorted(roles))}"
            limits = OF_STRANGERS if call.caller is None else self._limits.get(call.service, OF_OTHERS)
            lane = self._lanes[call.service, roles] = Lane(name, limits)
        return lane


async def _request(call: CallContext, handler: Handler, lane: Lane) -> Any:
    """The request of a call that has one."""
    with lane.awaiting_request(call):
        data = await call.aio_context.read()
    if data is aio.EOF:
        raise CallAborted(grpc.StatusCode.INVALID_ARGUMENT, f"{call.method} needs a request")
    if call.caller is None and len(data) > PUBLIC_REQUEST_SIZE_MAX:
        text = f"the request has {len(data)} bytes; at most {PUBLIC_REQUEST_SIZE_MAX} are allowed without a token"
        raise CallAborted(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
    return _decoded(data, handler)


async def _requests(call: CallContext, handler: Handler, lane: Lane) -> AsyncGenerator[Any, None]:
    """The requests of a call, until the caller has sent its last one or the call has ended."""
    while True:
        try:
            data = await call.aio_context.read()
        except (aio.AbortError, aio.UsageError):  # this server has ended the call
            return
        if data is aio.EOF:
            return
        yield _decoded(data, handler)
        await lane.turn(call, is_patient=True)  # the first one was counted with the call


def _decoded(data: bytes, handler: Handler) -> Any:
    if handler.request_deserializer is None:
        return data
    try:
        return handler.request_deserializer(data)
    except Exception as malformed:
        raise CallAborted(grpc.StatusCode.INVALID_ARGUMENT, f"the request is malformed: {malformed}") from malformed


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
