"""What an adapter has lost that it needs in order to serve: a thread, or the disk of its output journal.

Such an adapter must not look healthy or stay active: it reports a health of 0 with the reason, and asks to leave its
group (`AdapterEngine.on_unfit`). What is lost does not come back before the process is restarted.
"""

from __future__ import annotations

from tandemfeed.runtime.threads import mark_unhealthy

REASON_LENGTH_MAX = 300  # characters: it is in every report


class Fitness:
    """Only ever added to, so any thread may use it."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    @property
    def reason(self) -> str:
        """Why this adapter is unfit; empty: it is not."""
        return next(iter(self._reasons.values()), "")

    def lose(self, what: str, reason: str) -> None:
        """Something that the adapter needs is lost. Args: what: a repeated loss of the same changes nothing."""
        self._reasons.setdefault(what, reason[:REASON_LENGTH_MAX])

    def on_thread_failed(self, name: str, failure: BaseException) -> None:
        """A thread that the adapter needs ended by an unexpected exception."""
        mark_unhealthy(name, failure)
        self.lose(name, f"its thread {name} failed ({type(failure).__name__}: {failure})")
