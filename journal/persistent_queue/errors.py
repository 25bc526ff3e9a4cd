"""What can go wrong with a persistent queue besides what can go wrong with any journal."""

from __future__ import annotations

from journal.errors import JournalError


class QueueFull(JournalError):
    """As many blocks as allowed hold active items: nothing was put; putting resumes when some were delivered."""


class QueueFailed(JournalError):
    """The disk failed while a group was made durable: open the queue again to learn which items are in it."""


class PathMissing(JournalError):
    """A folder that holds blocks of this queue was not given, or is not what it was (a disk that is not mounted)."""


class NotInFlight(JournalError):
    """The item is not in flight: never handed out by this process, or already given back, delivered or cancelled."""


class TooManyInFlight(JournalError):
    """More items are in flight than allowed: say `done` or `release` for some first."""
