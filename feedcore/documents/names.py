"""The names that documents may use. Names appear in variables and comments of generated kernels, and in logs.

`NAME` is for what a document defines: messages, fields, groups, types, values, maps, books. A title names the document
itself and may have hyphens, as file names do. A label names a value of an enumeration or a bit of a set; SBE's own
examples have blanks in them. Titles and labels never reach generated source.
"""

from __future__ import annotations

import re

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TITLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
NAME_SIZE_MAX = 128  # characters: twice what SBE recommends
NAME_RULE = f"A to Z, a to z, 0 to 9 and _ are allowed, no digit first, {NAME_SIZE_MAX} characters at most"
TITLE_RULE = f"A to Z, a to z, 0 to 9, _ and - are allowed, a letter or _ first, {NAME_SIZE_MAX} characters at most"
LABEL_RULE = f"printable characters are allowed, no blank first or last, {NAME_SIZE_MAX} characters at most"


def is_name(text: str) -> bool:
    """True if a document may define something with this name."""
    return len(text) <= NAME_SIZE_MAX and NAME.fullmatch(text) is not None


def is_title(text: str) -> bool:
    """True if a document may have this title."""
    return len(text) <= NAME_SIZE_MAX and TITLE.fullmatch(text) is not None


def is_label(text: str) -> bool:
    """True if a value may have this label."""
    return 0 < len(text) <= NAME_SIZE_MAX and text.isprintable() and text == text.strip()
