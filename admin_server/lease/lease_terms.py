"""The length of lease terms: the configured one, or longer after terms expired whose holders were merely late. Pure.

On an overloaded machine, holders renew late without having died. Each such needless takeover costs more work and makes
the next one more likely. So each one doubles the term, up to a limit, and each quiet period halves it. A takeover was
needless if the holder is heard again within another term: twice the term would have been enough. A holder that is
silent for longer was cut off or stopped, and the takeover served its clients; only if takeovers are frequent does it
count as late all the same. Every grant and renewal carries its term, and the holder stops by its own clock before the
term ends, so a longer term is as safe as the configured one.

Invariant: a term is announced only after it is recorded that terms may be that long; the record is shortened only after
the last longer term has ended. So a restarted store knows how long a holder may rely on its lease.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandemfeed.admin_server.lease.lease_decisions import TermNoted

MS = 1_000_000
SECOND = 1_000 * MS
DOUBLINGS_MAX = 3  # eight times the configured term
# The limit of lengthened terms. A host that vanishes is replaced only after its term. And a note that is lost with the
# store's machine matters only for this long, which is less than the machine takes to restart.
STRETCHED_TTL_NS_MAX = 4 * SECOND


@dataclass(frozen=True, slots=True)
class LeaseConfig:
    """The timing of one feed's lease.

    Attributes:
        fresh_ns: the maximum age of a candidate's report.
        allowance_ns: added to the term at the store, so that the holder has stopped when the store's term ends.
        grace_ns: how long a poor candidate waits for a better one while an adapter of the feed is missing.
        first_grace_ns: the same at a feed's very first start, when no adapter has a journal.
        pause_after_ns: a store that is called this much later than it asked for was itself paused, so it takes no
            adapter for silent because of that time. Scheduling usually takes less, even on a busy machine.
        read_ns: how long a store that was paused waits at least, to read what waits in its queues.
        quiet_ns: after this time without a needless takeover, the term is halved.
    """

    ttl_ns: int = 300 * MS
    allowance_ns: int = 30 * MS
    grace_ns: int = 2_000 * MS
    first_grace_ns: int = 500 * MS
    fresh_ns: int = 400 * MS
    pause_after_ns: int = 10 * MS
    read_ns: int = 25 * MS
    quiet_ns: int = 60 * SECOND

    def __post_init__(self) -> None:
        assert self.pause_after_ns <= self.read_ns < self.term_ns

    @property
    def term_ns(self) -> int:
        """The configured term as counted by the store."""
        return self.ttl_ns + self.allowance_ns

    @property
    def ttl_ns_max(self) -> int:
        """The longest term that is ever announced."""
        return max(self.ttl_ns, min(self.ttl_ns << DOUBLINGS_MAX, STRETCHED_TTL_NS_MAX))


class Terms:
    """The terms of one feed's lease.

    Attributes:
        ttl_ns: the term of the newest grant, renewal or offer.
        noted_ttl_ns: the recorded limit of terms that may be announced.
        needless_count: terms that expired although their holder was merely late.
    """

    def __init__(self, config: LeaseConfig) -> None:
        self.ttl_ns = self.noted_ttl_ns = config.ttl_ns
        self.needless_count = 0
        self._config = config
        self._doublings = 0
        self._doubled_at_ns = 0
        self._longest_until_ns = 0  # when the last term of the noted length ends at the store

    def restore(self, noted_ttl_ns: int, now_ns: int) -> int:
        """After a restart of the store: return the time by which the former holder's term has certainly ended."""
        self.noted_ttl_ns = max(noted_ttl_ns, self._config.ttl_ns)
        self._longest_until_ns = now_ns + self.noted_ttl_ns + self._config.allowance_ns
        return self._longest_until_ns

    def begin(self, now_ns: int) -> tuple[int, list[TermNoted]]:
        """A term begins now; return when it ends at the store, and what must be recorded before it is announced."""
        self.ttl_ns = self.ttl_ns_at(now_ns)
        until_ns = now_ns + self.ttl_ns + self._config.allowance_ns
        if self.ttl_ns < self.noted_ttl_ns and now_ns < self._longest_until_ns:
            return until_ns, []
        is_noted = self.ttl_ns == self.noted_ttl_ns
        self.noted_ttl_ns, self._longest_until_ns = self.ttl_ns, until_ns
        return until_ns, [] if is_noted else [TermNoted(self.ttl_ns)]

    def on_needless_takeover(self, now_ns: int) -> None:
        """A term expired although its holder was merely late."""
        self.needless_count += 1
        self._doublings = min(self._doublings_at(now_ns) + 1, DOUBLINGS_MAX)
        self._doubled_at_ns = now_ns

    def ttl_ns_at(self, now_ns: int) -> int:
        """The length, for its holder, of a term that begins now."""
        return min(self._config.ttl_ns << self._doublings_at(now_ns), self._config.ttl_ns_max)

    def _doublings_at(self, now_ns: int) -> int:
        return max(0, self._doublings - (now_ns - self._doubled_at_ns) // self._config.quiet_ns)
