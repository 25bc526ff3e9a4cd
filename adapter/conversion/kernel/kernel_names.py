"""A document's text reaches generated source only as a name, and every name is checked here again.

The loaders allow no other names, so a refusal here is a fault of the loaders. Texts that a table compares, writes or
looks up become words in an array, or single bytes. Other texts that people wrote (descriptions, labels) are not used.
"""

from __future__ import annotations

import re

SHOWN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")  # `when.day`: a member of a composite
PART = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]+")


class UncheckedName(ValueError):
    """The source generator got a name that no loader should have allowed."""


def shown(name: str) -> str:
    """A name for a comment or docstring.

    Raises:
        UncheckedName: it is neither a name nor several names joined by dots.
    """
    if SHOWN.fullmatch(name) is None:
        raise UncheckedName(f"{name[:80]!r} is not a name: it must not reach generated source")
    return name


def in_variable(name: str) -> str:
    """A name as a part of a variable's name.

    Raises:
        UncheckedName: it is not a name.
    """
    if PART.fullmatch(name) is None:
        raise UncheckedName(f"{name[:80]!r} is not a name: it must not reach generated source")
    return name


def shown_title(text: str) -> str:
    """The name of a table or a time zone, for a comment; other characters become underscores."""
    return NOT_IN_NAMES.sub("_", text)
