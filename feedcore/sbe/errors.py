"""What can be wrong with a message, as opposed to a schema (`feedcore.documents.xml_document.DocumentError`)."""

from __future__ import annotations


class SbeError(ValueError):
    """A message cannot be read or written; the text names the message and the path to the field."""


class SbeReadError(SbeError):
    """The sender's fault: truncated, of an unknown template, or with lengths that do not add up."""


class SbeWriteError(SbeError):
    """The caller's fault: a value that is missing, of the wrong type or out of range."""
