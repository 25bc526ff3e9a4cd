"""What a handler knows of its call, and how it ends the call, or lets a thread do what waits.

Handlers see a `CallContext` as their `grpc.ServicerContext`. It has the parts of that interface that handlers use. Any
thread may use it, also after the caller has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from typing import Any, NoReturn, TypeVar, cast

import grpc

from tandemfeed.transport.calls.tokens import Caller

Result = TypeVar("Result")
Metadata = tuple[tuple[str, str | bytes], ...]


class CallAborted(Exception):
    """The call ends with this status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code, self.details = code, details


class CallContext:
    """One call.

    Args:
        aio_context: grpc's context. Only the loop's thread may use it, and only while the call is open.

    Attributes:
        method: /SERVICE/METHOD.
        caller: the authenticated caller; None if the service is public.
        threads: where `in_thread` runs the call's work; set before the handler runs.
        aborted: how the call ends, once `abort` was called; even if the exception was caught since.
        trailing_metadata: sent with the status.
        recheck: called before each reply; aborts a call whose caller has lost the right to it meanwhile.
    """

    threads: Executor

    def __init__(self, method: str, aio_context: Any) -> None:
        self.method = method
        self.aio_context = aio_context
        self.caller: Caller | None = None
        self.aborted: CallAborted | None = None
        self.trailing_metadata: Metadata = ()
        self.recheck: Callable[[], None] = lambda: None
        self._peer = str(aio_context.peer())  # now: a thread may ask for it after the call has ended
        self._auth_context: Mapping[str, Iterable[bytes]] = aio_context.auth_context()
        self._metadata: Metadata = tuple(aio_context.invocation_metadata())

    @property
    def service(self) -> str:
        """The full name of the service."""
        return self.method.strip("/").partition("/")[0]

    def peer(self) -> str:
        """The caller's address."""
        return self._peer

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """What TLS knows of the caller, such as its certificate."""
        return self._auth_context

    def invocation_metadata(self) -> Metadata:
        """The metadata sent by the caller."""
        return self._metadata

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Set the metadata to send with the status."""
        self.trailing_metadata = tuple(metadata)

    def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        """End the call with this status."""
        self.aborted = CallAborted(code, details)
        raise self.aborted

    def end(self, code: grpc.StatusCode, details: str) -> None:
        """End the call from outside its handler, which may be reading. On the loop."""
        ending = asyncio.ensure_future(self.aio_context.abort(code, details))
        ending.add_done_callback(lambda done: done.exception())  # abort always raises; the reader ends by it, too


def call_of(context: grpc.ServicerContext) -> CallContext:
    """The context as what it is."""
    return cast(CallContext, context)


def caller_of(context: grpc.ServicerContext) -> Caller:
    """The authenticated caller of the RPC with this context."""
    caller = call_of(context).caller
    assert caller is not None, "the service is public, so its caller is not authenticated"
    return caller


async def in_thread(context: grpc.ServicerContext, work: Callable[..., Result], *args: Any) -> Result:
    """Do what waits, in a thread reserved for calls like this one.

    If the call ends meanwhile, this returns nevertheless, and the next await raises CancelledError: so the work and its
    result are never lost, and a `finally` can undo them.
    """
    future = asyncio.get_running_loop().run_in_executor(call_of(context).threads, work, *args)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return future.result()


async def send_initial_metadata(context: grpc.ServicerContext) -> None:
    """Show the caller, before the first reply, that the call is served."""
    await call_of(context).aio_context.send_initial_metadata(())
