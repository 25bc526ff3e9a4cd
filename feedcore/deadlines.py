"""Deadlines of parts become the deadline of the whole: a core has one (`next_deadline_ns`), and its shell one timer."""

from __future__ import annotations


def earliest(*deadlines_ns: int | None) -> int | None:
    """The first of several moments; None where there is none, as for a part that waits for nothing."""
    first_ns: int | None = None
    for at_ns in deadlines_ns:  # a loop asks at every turn: a generator inside `min` takes three times as long
        if at_ns is not None and (first_ns is None or at_ns < first_ns):
            first_ns = at_ns
    return first_ns
