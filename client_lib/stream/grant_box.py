"""The newest grant of a subscription, and what was revoked before it, on the way to the loop.

Each grant is whole, so only the newest waits, and putting one never blocks: the thread that reads the grants of all
subscriptions must not wait for an application that does not poll one of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tandemfeed.client_lib.login.grant import Grant, TopicsRevoked


class GrantBox:
    """Args: wake: wakes the loop."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._revoked: TopicsRevoked | None = None
        self._grant: Grant | None = None

    def put(self, letter: Grant | TopicsRevoked) -> None:
        """Put a grant or a revocation. Any thread may call this."""
        with self._lock:
            if isinstance(letter, Grant):
                self._grant = letter
            else:
                former = () if self._revoked is None else self._revoked.topics
                topics = tuple(dict.fromkeys((*former, *letter.topics)))
                self._revoked = TopicsRevoked(topics, letter.reason, letter.is_last)
        self._wake()

    def take(self) -> tuple[TopicsRevoked | None, Grant | None]:
        """What has come: the revocation is the older one."""
        with self._lock:
            taken = self._revoked, self._grant
            self._revoked = self._grant = None
        return taken
