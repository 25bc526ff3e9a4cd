"""Errors of a persistent queue, in addition to those of journal/errors.py."""

from __future__ import annotations

from tandemfeed.journal.errors import JournalError


class QueueFull(JournalError):
    """Active items occupy `blocks_max` blocks. Nothing was put; putting succeeds again once items are settled."""


class QueueFailed(JournalError):
    """The disk failed while a group was flushed. Open the queue again to find out which items it contains."""


class PathMissing(JournalError):
    """A folder with blocks of this queue was not given, or its contents are gone (for example, an unmounted disk)."""


class NotInFlight(JournalError):
    """The item is not in flight: this process never got it, or it is already released, delivered or cancelled."""


class TooManyInFlight(JournalError):
    """`in_flight_max` items are in flight: call `done` or `release` for some first."""
