"""Deadlines of parts become the deadline of the whole: a core has one (`next_deadline_ns`), and its shell one timer."""

from __future__ import annotations


def earliest(*deadlines_ns: int | None) -> int | None:
    """The first of several moments; None where there is none, as for a part that waits for nothing."""
    return min((at_ns for at_ns in deadlines_ns if at_ns is not None), default=None)
