"""How long a lease's term is: the configured one, and longer while terms keep passing though their holders live. Pure.

On a machine with too much to do, holders renew late, not because they died. Every takeover that comes of that costs
more work and makes the next one likelier. So each doubles the term, up to a bound, and each quiet while halves it. A
holder is told its term with every grant and renewal and stops by its own clock before it ends, so a longer one is
as safe as the configured one.

Invariant: a term is told only when it is written down that terms may be so long; that is taken back only when the last
of the longer ones has passed. So a restarted store knows for how long a holder may believe.
"""

from __future__ import annotations

from dataclasses import dataclass

from admin_server.lease_decisions import TermNoted

MS = 1_000_000
SECOND = 1_000 * MS
DOUBLINGS_MAX = 3  # eight times the configured term
# Not stretched beyond this: a host that vanishes meanwhile is replaced no sooner. And a note that is lost with the
# machine of the store is needed for this long only, less than the machine takes to start again.
STRETCHED_TTL_NS_MAX = 4 * SECOND


@dataclass(frozen=True, slots=True)
class LeaseConfig:
    """Times of one feed's lease.

    Attributes:
        fresh_ns: how old what a candidate told may be.
        allowance_ns: added to the term at the store, so that the holder has stopped for certain when the store's ends.
        grace_ns: how long a poor candidate waits for a better one while an adapter of the feed is missing.
        first_grace_ns: the same at a feed's first start ever, when nobody has a past.
        quiet_ns: after this long without a needless takeover the term is halved again.
    """

    ttl_ns: int = 300 * MS
    allowance_ns: int = 30 * MS
    grace_ns: int = 2_000 * MS
    first_grace_ns: int = 500 * MS
    fresh_ns: int = 400 * MS
    quiet_ns: int = 60 * SECOND

    @property
    def term_ns(self) -> int:
        """The configured term as the store counts it."""
        return self.ttl_ns + self.allowance_ns

    @property
    def ttl_ns_max(self) -> int:
        """The longest term ever told."""
        return max(self.ttl_ns, min(self.ttl_ns << DOUBLINGS_MAX, STRETCHED_TTL_NS_MAX))


class Terms:
    """The term that one feed's lease is given for.

    Attributes:
        ttl_ns: the term that the newest grant, renewal or offer tells.
        noted_ttl_ns: the longest that may be told, as far as it is written down.
        needless_count: terms that passed though their holder lived.
    """

    def __init__(self, config: LeaseConfig) -> None:
        self.ttl_ns = self.noted_ttl_ns = config.ttl_ns
        self.needless_count = 0
        self._config = config
        self._doublings = 0
        self._doubled_at_ns = 0
        self._longest_until_ns = 0  # the last term of the noted length ends at the store

    def restore(self, noted_ttl_ns: int, now_ns: int) -> int:
        """After a restart of the store: returns when the term of whoever held the lease has passed for certain."""
        self.noted_ttl_ns = max(noted_ttl_ns, self._config.ttl_ns)
        self._longest_until_ns = now_ns + self.noted_ttl_ns + self._config.allowance_ns
        return self._longest_until_ns

    def begin(self, now_ns: int) -> tuple[int, list[TermNoted]]:
        """A term begins now; returns when it ends at the store, and what must be recorded before it is announced."""
        self.ttl_ns = self.ttl_ns_at(now_ns)
        until_ns = now_ns + self.ttl_ns + self._config.allowance_ns
        if self.ttl_ns < self.noted_ttl_ns and now_ns < self._longest_until_ns:
            return until_ns, []
        is_noted = self.ttl_ns == self.noted_ttl_ns
        self.noted_ttl_ns, self._longest_until_ns = self.ttl_ns, until_ns
        return until_ns, [] if is_noted else [TermNoted(self.ttl_ns)]

    def on_needless(self, now_ns: int) -> None:
        """A term passed, and its holder was alive."""
        self.needless_count += 1
        self._doublings = min(self._doublings_at(now_ns) + 1, DOUBLINGS_MAX)
        self._doubled_at_ns = now_ns

    def ttl_ns_at(self, now_ns: int) -> int:
        """How long a term that begins now is for its holder."""
        return min(self._config.ttl_ns << self._doublings_at(now_ns), self._config.ttl_ns_max)

    def _doublings_at(self, now_ns: int) -> int:
        return max(0, self._doublings - (now_ns - self._doubled_at_ns) // self._config.quiet_ns)
