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
        identity = self._policy.policy.identities.get(name)
        if identity is None:
            call.abort(grpc.StatusCode.UNAUTHENTICATED, f"{name} is no longer in the policy")
        rate = identity.calls_per_second_max
        if rate is not None and not self._rates.admit(name, rate, time.monotonic_ns()):
            text = f"{name} may make {rate:g} calls a second (calls_per_second_max in the policy); try again later"
            call.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
