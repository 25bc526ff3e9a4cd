"""The gate that authenticates callers: which roles may call which services.

Every call carries a bearer (`transport.calls.tokens`), except calls to public services. Every process checks bearers
with only the admin server's public key. This module must never allow a call to a service that is not listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import grpc

from tandemfeed.transport.calls.serving.call_context import CallContext
from tandemfeed.transport.calls.tokens import TokenRefused, TokenVerifier

PUBLIC_SERVICES = frozenset(
    {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection"}
)


class Authorization:
    """Lets a call through if its token has one of the service's roles.

    Args:
        verifier: checks tokens.
        roles_by_service: full service name -> roles that may call it. Calls to a service that is neither here nor
            public are refused.
        public_services: need no token.
    """

    def __init__(
        self,
        verifier: TokenVerifier,
        roles_by_service: Mapping[str, frozenset[str]],
        public_services: frozenset[str] = frozenset(),
    ) -> None:
        self._verifier = verifier
        self._roles = roles_by_service
        self._public = PUBLIC_SERVICES | public_services

    def __call__(self, call: CallContext) -> None:
        """Note the call's caller, or refuse the call."""
        service = call.service
        if service in self._public:
            return
        scheme, _, token = str(dict(call.invocation_metadata()).get("authorization", "")).partition(" ")
        if scheme != "Bearer" or not token:
            _refuse(call, f"{service} needs a token; authenticate first")
        try:
            caller = self._verifier.verify(token)
        except TokenRefused as refused:
            _refuse(call, f"token refused: {refused}; authenticate again")
        needed = self._roles.get(service, frozenset())
        if not caller.roles & needed:
            wanted = " or ".join(sorted(needed))
            rule = f"requires the role {wanted}" if wanted else "is not listed and cannot be called"
            text = f"{service} {rule}; {caller.identity} has {sorted(caller.roles)}"
            call.abort(grpc.StatusCode.PERMISSION_DENIED, text)
        call.caller = caller


def _refuse(call: CallContext, text: str) -> NoReturn:
    call.abort(grpc.StatusCode.UNAUTHENTICATED, text)
