"""Admits calls by the policy in force: the caller's identity must still be in it, and within its rate."""

from __future__ import annotations

import time

import grpc

from tandemfeed.admin_server.policy.limits import CallRates
from tandemfeed.admin_server.policy.policy_keeper import PolicyKeeper
from tandemfeed.transport.calls.serving.call_context import CallContext


class PolicyGate:
    """Must come after the gate that authenticates. Calls of public services, which have no caller, pass."""

    def __init__(self, policy: PolicyKeeper) -> None:
        self._policy, self._rates = policy, CallRates()

    def __call__(self, call: CallContext) -> None:
        """Refuse the call, or count it."""
        if call.caller is None:
            return
        name = call.caller.identity
        if (refusal := self.expulsion(name)) is not None:
            call.abort(grpc.StatusCode.UNAUTHENTICATED, refusal)
        if (refusal := self.excess(name)) is not None:
            call.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refusal)

    def expulsion(self, name: str) -> str | None:
        """Why an identity may not call at all; None: it may."""
        return None if name in self._policy.policy.identities else f"{name} is no longer in the policy"

    def excess(self, name: str) -> str | None:
        """Count a call, or a request within a call; or why the identity may not make one now."""
        identity = self._policy.policy.identities.get(name)
        rate = None if identity is None else identity.calls_per_second_max
        if rate is None or self._rates.admit(name, rate, time.monotonic_ns()):
            return None
        return f"{name} may make {rate:g} calls a second (calls_per_second_max in the policy); try again later"
