"""Failed logins are slowed down, for each identity at each address, and for each address. Pure.

A limit must never let one party lock another out: what fails at one address counts for that address only, so a correct
login from elsewhere is never delayed. Existing and unknown identities count alike, so that a delay tells nothing.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from urllib.parse import unquote

SECOND_NS = 1_000_000_000
ENTRY_COUNT_MAX = 65_536  # of each table; an address alone can fill no table, because its own failures are limited
IDENTITY_LENGTH_MAX = 64  # of what a caller claims to be; names of identities are not longer


@dataclass(frozen=True, slots=True)
class Allowance:
    """How many failures may follow each other immediately, and after how long one of them is forgiven."""

    failure_count_max: int
    forgiven_after_ns: int


PAIR_ALLOWANCE = Allowance(5, 10 * SECOND_NS)
ADDRESS_ALLOWANCE = Allowance(100, 1 * SECOND_NS)  # generous, because many identities may share an address


class _Failures:
    """The failures of many keys. For each, the time at which all of its failures are forgiven."""

    def __init__(self, allowance: Allowance, entry_count_max: int) -> None:
        self._allowance, self._entry_count_max = allowance, entry_count_max
        self._forgiven_at_ns: OrderedDict[Hashable, int] = OrderedDict()  # the one noted last is at the end

    def __len__(self) -> int:
        return len(self._forgiven_at_ns)

    def wait_ns(self, key: Hashable, now_ns: int) -> int:
        """How long to wait until one more failure is allowed; 0: it is allowed now."""
        allowance = self._allowance
        spare_ns = (allowance.failure_count_max - 1) * allowance.forgiven_after_ns
        return max(0, self._forgiven_at_ns.get(key, 0) - now_ns - spare_ns)

    def add(self, key: Hashable, now_ns: int) -> None:
        """Note a failure; beyond the limit of entries, the one noted first is forgotten."""
        begins_ns = max(now_ns, self._forgiven_at_ns.get(key, 0))
        self._forgiven_at_ns[key] = begins_ns + self._allowance.forgiven_after_ns
        self._forgiven_at_ns.move_to_end(key)
        if len(self._forgiven_at_ns) > self._entry_count_max:
            self._forgiven_at_ns.popitem(last=False)

    def forgive_one(self, key: Hashable) -> None:
        """Take back the last failure of a key."""
        if key in self._forgiven_at_ns:
            self._forgiven_at_ns[key] -= self._allowance.forgiven_after_ns

    def forgive_all(self, key: Hashable) -> None:
        """Forget the failures of a key."""
        self._forgiven_at_ns.pop(key, None)


class LoginLimits:
    """Which logins may be tried now. Each counts as failed from its beginning until `succeeded`, so that logins at the
    same time cannot exceed the limit."""

    def __init__(
        self,
        pair: Allowance = PAIR_ALLOWANCE,
        address: Allowance = ADDRESS_ALLOWANCE,
        entry_count_max: int = ENTRY_COUNT_MAX,
    ) -> None:
        self._pairs, self._addresses = _Failures(pair, entry_count_max), _Failures(address, entry_count_max)

    def begin(self, identity: str, address: str, now_ns: int) -> int:
        """How long this identity must wait at this address before it tries, in ns; 0: the try is counted."""
        pair = (identity[:IDENTITY_LENGTH_MAX], address)
        wait_ns = max(self._pairs.wait_ns(pair, now_ns), self._addresses.wait_ns(address, now_ns))
        if not wait_ns:
            self._pairs.add(pair, now_ns)
            self._addresses.add(address, now_ns)
        return wait_ns

    def withdraw(self, identity: str, address: str) -> None:
        """The login that this identity began last was neither correct nor wrong."""
        self._pairs.forgive_one((identity[:IDENTITY_LENGTH_MAX], address))
        self._addresses.forgive_one(address)

    def succeeded(self, identity: str, address: str) -> None:
        """The login was correct. Other failures at this address stay, or one identity's logins would hide them."""
        self._pairs.forgive_all((identity[:IDENTITY_LENGTH_MAX], address))
        self._addresses.forgive_one(address)


def address_of(peer: str) -> str:
    """What failures at a gRPC peer count for: its IPv4 address, or the /64 network of its IPv6 address.

    A host that has one IPv6 address usually has its whole /64.
    """
    kind, _, rest = unquote(peer).partition(":")
    host = rest.rpartition(":")[0].strip("[]").partition("%")[0]
    if kind == "ipv6":
        address = ipaddress.IPv6Address(host)
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    return host or rest
