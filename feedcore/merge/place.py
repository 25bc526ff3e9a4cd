"""A place in a channel, by both of its numbers."""

from __future__ import annotations

from typing import NamedTuple

from feedcore.wire.position import FIRST_SEQ


class Place(NamedTuple):
    """Between two source messages of a channel: what comes next there.

    Attributes:
        input_seq: the next one; it orders places.
        message_seq: the next one; several places share it where source messages made no message.
    """

    input_seq: int
    message_seq: int


BEGINNING = Place(FIRST_SEQ, FIRST_SEQ)
