"""Which roles may call which services of the admin server."""

from __future__ import annotations

ROLES_BY_SERVICE = {
    "tandemfeed.v1.StreamAdministration": frozenset({"client", "admin"}),
    "tandemfeed.v1.AdapterRegistry": frozenset({"adapter", "source"}),
    "tandemfeed.v1.Operations": frozenset({"admin"}),
    "tandemfeed.v1.PolicyAdministration": frozenset({"admin"}),
    "tandemfeed.v1.AuditAdministration": frozenset({"admin"}),
    "tandemfeed.v1.IdentityAdministration": frozenset({"admin"}),
}
PUBLIC_SERVICES = frozenset({"tandemfeed.v1.Authentication"})
