"""Admits calls by the policy in force: the caller's identity must still be in it, and within its rate."""

from __future__ import annotations

import time
from collections.abc import Callable

import grpc

from tandemfeed.admin_server.policy.limits import CallRates
from tandemfeed.admin_server.policy.policy_keeper import PolicyKeeper
from tandemfeed.transport.calls.serving.call_context import CallContext


class PolicyGate:
    """Must come after the gate that authenticates. Calls of public services, which have no caller, pass.

    Args:
        why_refused: why a token that an identity got at a time is refused now; None if it is not.
    """

    def __init__(self, policy: PolicyKeeper, why_refused: Callable[[str, int], str | None]) -> None:
        self._policy, self._why_refused, self._rates = policy, why_refused, CallRates()

    def __call__(self, call: CallContext) -> None:
        """Refuse the call, or count it."""
        if call.caller is None:
            return
        name = call.caller.identity
        if (refusal := self.expulsion(name, call.caller.issued_unix_ns)) is not None:
            call.abort(grpc.StatusCode.UNAUTHENTICATED, refusal)
        if (refusal := self.excess(name)) is not None:
            call.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refusal)

    def expulsion(self, name: str, issued_unix_ns: int) -> str | None:
        """Why an identity may not call with a token that it got at this time; None: it may."""
        if name not in self._policy.policy.identities:
            return f"{name} is no longer in the policy"
        if name in self._policy.disabled:
            return f"{name} is disabled"
        return self._why_refused(name, issued_unix_ns)

    def excess(self, name: str) -> str | None:
        """Count a call, or a request within a call; or why the identity may not make one now."""
        identity = self._policy.policy.identities.get(name)
        rate = None if identity is None else identity.calls_per_second_max
        if rate is None or self._rates.admit(name, rate, time.monotonic_ns()):
            return None
        return f"{name} may make {rate:g} calls a second (calls_per_second_max in the policy); try again later"
