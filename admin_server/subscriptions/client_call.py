"""The shell of one client's call: it reads requests, follows the feeds, records and sends. It decides nothing.

Runs on the serving loop. At most one update is being sent at a time; while the client does not read it, changes only
mark their subscription in the core, and after REQUESTS_WAITING_MAX requests no further one is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import partial

import grpc

from tandemfeed.admin_server.feed.streams import Subscriber
from tandemfeed.admin_server.policy.policy_gate import PolicyGate
from tandemfeed.admin_server.subscriptions.client_session import ClientSession, GrantingFeed, Outgoing
from tandemfeed.v1 import admin_pb2

PACE_S = 0.05
Record = Callable[[Outgoing], Awaitable[None]]


class ClientCall:
    """One open call.

    Args:
        record: records what an update says, before it is sent.
        gate: admits the caller, and each of its requests.
        now_unix_ns: the wall clock, by which the caller's token expires.
    """

    def __init__(
        self,
        session: ClientSession,
        context: grpc.ServicerContext,
        record: Record,
        gate: PolicyGate,
        now_unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._now_unix_ns = now_unix_ns
        self._session, self._context, self._record, self._gate = session, context, record, gate
        self._loop = asyncio.get_running_loop()
        self._work, self._room = asyncio.Event(), asyncio.Event()
        self._is_over, self._reason = False, ""  # this server stops serving, or an operator ends the call
        self._followed: dict[int, tuple[GrantingFeed, Subscriber]] = {}  # by subscription_id

    async def updates(
        self, requests: AsyncIterator[admin_pb2.SubscriptionRequest]
    ) -> AsyncGenerator[admin_pb2.SubscriptionUpdate, None]:
        """Serve the call: yield each update when the client can receive it, until the call is over.

        A client that half-closes the call keeps its subscriptions until it cancels it.
        """
        reading = asyncio.create_task(self._read(requests))
        reading.add_done_callback(lambda _reading: self._work.set())
        try:
            while not self._is_over:
                self._work.clear()  # before looking: what happens afterwards sets it again
                if reading.done():
                    reading.result()  # raises if a request could not be read
                outgoing = self._session.take_update()
                if outgoing is None and (refusal := self._refusal()) is not None:
                    for subscription_id in tuple(
                        self._session.subscriptions
                    ):  # the feeds' notices may still be under way
                        self._session.on_change(subscription_id)
                    outgoing = self._session.take_update()
                    if outgoing is None:
                        self._context.abort(grpc.StatusCode.UNAUTHENTICATED, refusal)
                if outgoing is None:
                    await self._wait()
                    continue
                self._room.set()
                if outgoing.event:
                    await self._record(outgoing)
                self._follow()
                yield outgoing.update
            if self._reason:
                self._context.abort(grpc.StatusCode.PERMISSION_DENIED, self._reason)
        finally:
            reading.cancel()
            self._session.on_end()
            self._follow()

    async def _read(self, requests: AsyncIterator[admin_pb2.SubscriptionRequest]) -> None:
        async for request in requests:
            while self._gate.excess(self._session.caller.identity) is not None:
                await asyncio.sleep(PACE_S)  # not refused: a client that returns makes all its requests at once
            self._session.on_request(request)
            self._work.set()
            while self._session.is_full:
                self._room.clear()
                await self._room.wait()

    def _follow(self) -> None:
        """Hear of changes of just the feeds that are subscribed to."""
        subscriptions = self._session.subscriptions
        for subscription_id in self._followed.keys() - subscriptions.keys():
            feed, subscriber = self._followed.pop(subscription_id)
            feed.unsubscribe(subscriber)
        for subscription_id, subscription in subscriptions.items():
            if subscription_id not in self._followed:
                notify = partial(self._call_soon, self._on_change, subscription_id)
                end = partial(self._call_soon, self._on_over)  # with the reason
                identity, key = self._session.caller.identity, subscription.unicast_key
                subscriber = Subscriber(identity, {}, notify, end, self._context.peer(), key)
                self._followed[subscription_id] = subscription.feed, subscriber
                self._session.on_change(subscription_id)  # it may have changed before the feed knew of the subscription
            feed, subscriber = self._followed[subscription_id]
            # Again until it is true: a revocation in between would not have found the channels that this adds.
            while (extents := self._session.extents_of(subscription_id)) != subscriber.extents:
                subscriber.extents = extents
                feed.subscribe(subscriber)

    def _call_soon(self, call: Callable[..., None], *arguments: int | str) -> None:
        """Called from any thread, with a feed's lock held."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call, *arguments)

    def _on_change(self, subscription_id: int) -> None:
        self._session.on_change(subscription_id)
        self._work.set()

    def _on_over(self, reason: str) -> None:
        self._is_over, self._reason = True, reason
        self._work.set()

    async def _wait(self) -> None:
        """Wait for a request or a change, or for the end of the token's life."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, (self._session.caller.expires_unix_ns - self._now_unix_ns()) / 1e9)):
                await self._work.wait()

    def _refusal(self) -> str | None:
        """Why the call must end: its identity left the policy or was disabled, or its token has expired; else None."""
        caller = self._session.caller
        if (refusal := self._gate.expulsion(caller.identity, caller.issued_unix_ns)) is not None:
            return refusal
        if self._now_unix_ns() >= caller.expires_unix_ns:
            return "the call's token has expired; authenticate again (RenewRequest continues a call without a break)"
        return None
