"""The one way of a document's text into generated source: as a name that has been checked, here once more.

The loaders let no other names through, so a refusal here is a fault of theirs. Texts that a table compares, writes or
looks up are words in an array, or single bytes; what people wrote besides (descriptions, labels) is not looked at.
"""

from __future__ import annotations

import re

SHOWN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")  # `when.day`: a member of a composite
PART = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]+")


class UncheckedName(ValueError):
    """A name came to the generator of source that no loader should have let through."""


def shown(name: str) -> str:
    """A name as comments and docstrings show it.

    Raises:
        UncheckedName: it is not a name, nor several with dots between them.
    """
    if SHOWN.fullmatch(name) is None:
        raise UncheckedName(f"{name[:80]!r} is not a name: it must not reach generated source")
    return name


def in_variable(name: str) -> str:
    """A name as a part of a variable.

    Raises:
        UncheckedName: it is not a name.
    """
    if PART.fullmatch(name) is None:
        raise UncheckedName(f"{name[:80]!r} is not a name: it must not reach generated source")
    return name


def shown_title(text: str) -> str:
    """What a table or a time zone is called, for a comment; what a name has not becomes an underscore."""
    return NOT_IN_NAMES.sub("_", text)
