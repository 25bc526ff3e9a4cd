"""Combines the deadlines of parts: a core has one deadline (`next_deadline_ns`), and its shell has one timer."""

from __future__ import annotations


def earliest(*deadlines_ns: int | None) -> int | None:
    """The earliest of several deadlines; None stands for no deadline. The result is None if all are None."""
    first_ns: int | None = None
    for at_ns in deadlines_ns:  # called on every turn of a loop; a generator inside `min` takes three times as long
        if at_ns is not None and (first_ns is None or at_ns < first_ns):
            first_ns = at_ns
    return first_ns
