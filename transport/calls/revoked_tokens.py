"""Tokens that are refused although they have not expired: all that an identity was issued before some time.

The admin server decides which, and sends them to the adapters of a feed, which have no policy. A server keeps the last
that it received, so a revocation holds while no admin server can be reached.

A revocation is forgotten when all that it covers has expired: by the monotonic clock, because a wall clock that is set
ahead for a while must not make a process forget what still counts when it is set back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

from tandemfeed.v1 import admin_pb2

TOKEN_VALID_NS = 3_600 * 1_000_000_000
CLOCK_DIFFERENCE_NS = 120 * 1_000_000_000  # between the admin servers that issue tokens
KEPT_NS = TOKEN_VALID_NS + 2 * CLOCK_DIFFERENCE_NS  # after the time of a revocation; then what it covers has expired
KEPT_IN_RECORDS_NS = 24 * TOKEN_VALID_NS  # by the wall clock, which is seldom wrong by a day
IDENTITY_COUNT_MAX = 1_000  # each adapter receives all of them at each change of its cluster
EVERYBODY = ""


class RevokedTokens:
    """By identity, the time before which its tokens are refused. Safe to call from any thread.

    Beyond IDENTITY_COUNT_MAX identities, the tokens of all identities are refused, which makes callers log in again.

    Args:
        issued_before_unix_ns: what was recorded before.
        now_unix_ns: the wall clock, by which tokens are issued.
        now_ns: the monotonic clock.
    """

    def __init__(
        self,
        issued_before_unix_ns: Mapping[str, int] | None = None,
        *,
        now_unix_ns: Callable[[], int] = time.time_ns,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._now_unix_ns, self._now_ns = now_unix_ns, now_ns
        self._lock = threading.Lock()
        self._issued_before: dict[str, int] = {}
        self._learned_at_ns: dict[str, int] = {}
        oldest = now_unix_ns() - KEPT_IN_RECORDS_NS
        self._add({who: before for who, before in (issued_before_unix_ns or {}).items() if before > oldest})

    def revoke(self, identities: Iterable[str]) -> None:
        """Refuse what these identities were issued until now. EVERYBODY stands for all of them.

        Another admin server may have issued a token by a clock that is ahead, so the time is set ahead, too. Tokens
        that are issued from now on state that time (`not_before`), or a later one.
        """
        ahead = self._now_unix_ns() + CLOCK_DIFFERENCE_NS
        self._add(dict.fromkeys(identities, ahead))

    def receive(self, revoked: Iterable[admin_pb2.TokensRevoked]) -> None:
        """Add what the admin server has sent. Never forgets what it sent before and no longer knows."""
        self._add({each.identity: each.issued_before_unix_ns for each in revoked})

    def not_before(self, identity: str) -> int:
        """The time from which on a token of this identity must have been issued; 0: any time."""
        present = self._issued_before
        return max(present.get(identity, 0), present.get(EVERYBODY, 0))

    def covers(self, identity: str, issued_unix_ns: int) -> bool:
        """Whether a token is revoked."""
        return issued_unix_ns < self.not_before(identity)

    def as_dict(self) -> dict[str, int]:
        """A copy: identity -> the time before which its tokens are refused."""
        return dict(self._issued_before)

    def messages(self) -> list[admin_pb2.TokensRevoked]:
        """As sent on the wire."""
        return [
            admin_pb2.TokensRevoked(identity=identity, issued_before_unix_ns=issued_before)
            for identity, issued_before in self._issued_before.items()
        ]

    def _add(self, revoked: dict[str, int]) -> None:
        now_ns = self._now_ns()
        with self._lock:
            merged, learned_at_ns = dict(self._issued_before), self._learned_at_ns
            for identity, issued_before in revoked.items():
                if issued_before > merged.get(identity, 0):
                    merged[identity], learned_at_ns[identity] = issued_before, now_ns
            merged = {who: before for who, before in merged.items() if now_ns - learned_at_ns[who] <= KEPT_NS}
            if len(merged) > IDENTITY_COUNT_MAX:
                merged = {EVERYBODY: max(merged.values())}
            self._learned_at_ns = {who: learned_at_ns.get(who, now_ns) for who in merged}
            self._issued_before = merged  # replaced as a whole, because readers do not lock
