"""The reasons why a source message was not converted, and a kernel's other counts. Each is declared once, with a text.

The values are indexes in the arena; the names also appear in the generated source.
"""

from __future__ import annotations

from enum import IntEnum


class Reason(IntEnum):
    """Index of the count in the arena; `text` explains it."""

    text: str

    def __new__(cls, place: int, text: str) -> Reason:
        """Make a member with its index and text."""
        member = int.__new__(cls, place)
        member._value_ = place
        member.text = text
        return member

    UNKNOWN_TYPE = 1, "The source format has no message of this type."
    WRONG_LENGTH = 2, "The message is longer or shorter than its type allows, or its groups or texts end beyond it."
    OUT_OF_RANGE = 3, "A value does not fit the table's cast, scale or shortening."
    NOT_A_NUMBER = 4, "A text that should contain a number does not."
    UNMAPPED = 5, "A map without a default has no entry for a value."
    TOO_LARGE = 6, "The message's outputs together do not fit in a datagram."
    TOO_MANY_KEYS = 7, "A new key needs state, but the table's maximum number of keys is reached."
    TRUNCATED = 8, "The frame ends beyond the packet, or is shorter than a frame can be."
    NOT_CONVERTED = 9, "The source format has the message, but the table does not convert it; skipped."
    FUNCTION_FAILED = 11, "A user function raised an exception, or returned a value that is not an integer."
    UNKNOWN_ORDER = 10, "A message changed an order that the book does not know; the change was ignored."


REASONS = {int(reason): reason for reason in Reason}
# Refused messages are counted and sampled to the dead-letter journal. The other reasons are only counted.
REFUSALS = tuple(reason for reason in Reason if reason not in (Reason.NOT_CONVERTED, Reason.UNKNOWN_ORDER))
