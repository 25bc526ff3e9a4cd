"""When a process logs in again: at half its token's life, and after a refusal or a failed login. Pure.

Time is that of the monotonic clock, and a token's life is a duration, so a step of the wall clock neither shortens nor
extends a pause. Owner: one thread at a time, `TokenSource` has the lock.
"""

from __future__ import annotations

TRY_AGAIN_NS = 10_000_000_000
REFUSED_PAUSE_MIN_NS = 100_000_000
SERVED_NS = 2_000_000_000  # a token that was not refused for so long had been accepted


class LoginSchedule:
    """The times of the present token, if there is one, and of the next login."""

    def __init__(self) -> None:
        self._valid_until_ns: int | None = None  # of the present token
        self._due_at_ns = 0
        self._is_refused = False  # the admin server does not accept the present token
        self._refused_at_ns: int | None = None
        self._refused_pause_ns = self._failed_pause_ns = REFUSED_PAUSE_MIN_NS

    def has_token(self, now_ns: int) -> bool:
        """Whether there is a token whose life is not over. It may have been refused."""
        return self._valid_until_ns is not None and now_ns < self._valid_until_ns

    def is_due(self, now_ns: int) -> bool:
        """Whether to log in again now."""
        return now_ns >= self._due_at_ns

    @property
    def is_refused(self) -> bool:
        """Whether the present token is of no use."""
        return self._is_refused

    def on_login(self, now_ns: int, life_ns: int) -> None:
        """A login has given a token.

        Args:
            now_ns: when the login began.
            life_ns: of the token.
        """
        self._valid_until_ns = now_ns + life_ns
        self._due_at_ns = now_ns + max(0, life_ns) // 2
        self._is_refused = False
        self._failed_pause_ns = REFUSED_PAUSE_MIN_NS

    def on_unreachable(self, now_ns: int) -> None:
        """A login has found no server, or no credential. With a token that serves, the next one has time."""
        if self.has_token(now_ns) and not self._is_refused:
            assert self._valid_until_ns is not None
            self._due_at_ns = min(now_ns + TRY_AGAIN_NS, self._valid_until_ns)

    def on_login_refused(self, now_ns: int) -> None:
        """The server does not accept the credential: later logins are ever rarer."""
        self._due_at_ns = now_ns + self._failed_pause_ns
        self._failed_pause_ns = min(2 * self._failed_pause_ns, TRY_AGAIN_NS)

    def on_token_refused(self, now_ns: int) -> bool:
        """A server does not accept the present token.

        Returns:
            True if a login is due now; False if the last one that was due for this reason is too recent.
        """
        if self._refused_at_ns is not None:
            allowed_at_ns = self._refused_at_ns + self._refused_pause_ns
            if now_ns < allowed_at_ns:
                return False
            has_served = now_ns >= allowed_at_ns + SERVED_NS
            doubled_ns = min(2 * self._refused_pause_ns, TRY_AGAIN_NS)
            self._refused_pause_ns = REFUSED_PAUSE_MIN_NS if has_served else doubled_ns
        self._refused_at_ns = now_ns
        self._is_refused, self._due_at_ns = True, now_ns
        return True
