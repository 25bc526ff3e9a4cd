"""Admits calls by the policy in force: the caller's identity must still be in it, and within its rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import grpc

from tandemfeed.admin_server.policy.limits import CallRates
from tandemfeed.admin_server.policy.policy_keeper import PolicyKeeper
from tandemfeed.transport.calls.rpc import Handler, behavior_of, caller_of, rebuild


class PolicyGate(grpc.ServerInterceptor):
    """Must be the last interceptor, because it asks for the authenticated caller.

    Args:
        services: full names of the services whose callers are authenticated.
        why_refused: why a token that an identity got at a time is refused now; None if it is not.
    """

    def __init__(
        self, policy: PolicyKeeper, services: Collection[str], why_refused: Callable[[str, int], str | None]
    ) -> None:
        self._policy, self._services, self._why_refused = policy, services, why_refused
        self._rates, self._lock = CallRates(), threading.Lock()

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Check the caller before the handler runs."""
        handler = continuation(handler_call_details)
        service = str(handler_call_details.method).strip("/").partition("/")[0]
        if handler is None or service not in self._services:
            return handler
        behavior = behavior_of(handler)

        def serve_unary(request: Any, context: grpc.ServicerContext) -> Any:
            self._admit(context)
            return behavior(request, context)

        def serve_stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            self._admit(context)
            yield from behavior(request, context)

        return rebuild(handler, serve_stream if handler.response_streaming else serve_unary)

    def _admit(self, context: grpc.ServicerContext) -> None:
        caller = caller_of(context)
        name = caller.identity
        if (why := self._why_refused(name, caller.issued_unix_ns)) is not None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, why)
        identity = self._policy.policy.identities.get(name)
        if identity is None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, f"{name} is no longer in the policy")
            raise AssertionError("abort raises")
        if (rate := identity.calls_per_second_max) is not None:
            with self._lock:
                is_admitted = self._rates.admit(name, rate, time.monotonic_ns())
            if not is_admitted:
                text = f"{name} may make {rate:g} calls a second (calls_per_second_max in the policy); try again later"
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
