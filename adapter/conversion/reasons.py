"""Why a source message was not converted, and what else a kernel counts; declared once, with a sentence each.

The values are places in the arena, and the names those in the generated source.
"""

from __future__ import annotations

from enum import IntEnum


class Reason(IntEnum):
    """Place of the count; `text` says what it means."""

    text: str

    def __new__(cls, place: int, text: str) -> Reason:
        """With its sentence."""
        member = int.__new__(cls, place)
        member._value_ = place
        member.text = text
        return member

    UNKNOWN_TYPE = 1, "The source format has no message of this type."
    WRONG_LENGTH = 2, "Longer or shorter than a message of this type, or its groups or texts end beyond it."
    OUT_OF_RANGE = 3, "A value does not fit where the table casts, scales or shortens it."
    NOT_A_NUMBER = 4, "A text that should say a number does not."
    UNMAPPED = 5, "A value that a map without default has no entry for."
    TOO_LARGE = 6, "All its output messages together do not fit in a datagram."
    TOO_MANY_KEYS = 7, "State for a new key, and there are as many keys as the table allows."
    TRUNCATED = 8, "Its frame ends beyond its packet, or is shorter than a frame can be."
    NOT_CONVERTED = 9, "The source format knows it, the table does not name it: passed over."
    FUNCTION_FAILED = 11, "A user's function raised, or gave something else than an integer."
    UNKNOWN_ORDER = 10, "An order was changed that the book does not know: book and state go on without it."


REASONS = {int(reason): reason for reason in Reason}
# Messages refused: counted, sampled to the dead-letter journal. The others are only counted.
REFUSALS = tuple(reason for reason in Reason if reason not in (Reason.NOT_CONVERTED, Reason.UNKNOWN_ORDER))
