"""The gate that authenticates callers: which roles may call which services.

Every call carries a bearer (`transport.calls.tokens`), except calls to public services. Every process checks bearers
with only the admin server's public key. This module must never allow a call to a service that is not listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn, TypeVar

import grpc

from tandemfeed.transport.calls.serving.call_context import CallContext
from tandemfeed.transport.calls.tokens import TokenRefused, TokenVerifier

Result = TypeVar("Result")
PUBLIC_SERVICES = frozenset({"grpc.health.v1.Health"})
STANDARD_ROLES = {"grpc.reflection.v1alpha.ServerReflection": frozenset({"admin"})}


class Authorization:
    """Lets a call through if its token has one of the service's roles.

    Args:
        verifier: checks tokens.
        roles_by_service: full service name -> roles that may call it. Calls to a service that is neither here nor
            public are refused.
        public_services: need no token.
        ends_streams: whether a stream ends when its caller's token is revoked.
    """

    def __init__(
        self,
        verifier: TokenVerifier,
        roles_by_service: Mapping[str, frozenset[str]],
        public_services: frozenset[str] = frozenset(),
        *,
        ends_streams: bool = True,
    ) -> None:
        self._ends_streams = ends_streams
        self._verifier = verifier
        self._roles = {**STANDARD_ROLES, **roles_by_service}
        self._public = PUBLIC_SERVICES | public_services

    def __call__(self, call: CallContext) -> None:
        """Note the call's caller, or refuse the call."""
        service = call.service
        if service in self._public:
            return
        scheme, _, token = str(dict(call.invocation_metadata()).get("authorization", "")).partition(" ")
        if scheme != "Bearer" or not token:
            _refuse(call, f"{service} needs a token; authenticate first")
        caller = self._checked(call, lambda: self._verifier.verify(token))
        if self._ends_streams:
            call.recheck = lambda: self._checked(call, lambda: self._verifier.require_valid(caller))
        needed = self._roles.get(service, frozenset())
        if not caller.roles & needed:
            wanted = " or ".join(sorted(needed))
            rule = f"requires the role {wanted}" if wanted else "is not listed and cannot be called"
            text = f"{service} {rule}; {caller.identity} has {sorted(caller.roles)}"
            call.abort(grpc.StatusCode.PERMISSION_DENIED, text)
        call.caller = caller

    @staticmethod
    def _checked(call: CallContext, check: Callable[[], Result]) -> Result:
        try:
            return check()
        except TokenRefused as refused:
            _refuse(call, f"token refused: {refused}; authenticate again")


def _refuse(call: CallContext, text: str) -> NoReturn:
    call.abort(grpc.StatusCode.UNAUTHENTICATED, text)
