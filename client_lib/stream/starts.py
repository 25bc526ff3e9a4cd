"""Where a subscription begins on each channel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

# "live": with the first packet received; "first": with the first message of the session; by topic: with this
# message_seq, and live on channels that the mapping does not name.
Start: TypeAlias = Literal["live", "first"] | Mapping[str, int]
FIRST_MESSAGE = 1


def check_start(start: object) -> None:
    """Refuse what is not a start.

    Raises:
        ValueError.
    """
    if isinstance(start, Mapping):
        for topic, message_seq in start.items():
            if not isinstance(topic, str) or not isinstance(message_seq, int) or message_seq < FIRST_MESSAGE:
                raise ValueError(
                    f"start has {topic!r}: {message_seq!r}; expected a topic and a message_seq of at least 1"
                )
    elif start not in ("live", "first"):
        raise ValueError(f"start is {start!r}; it must be 'live', 'first', or message_seqs by topic")


def first_message_of(start: Start, topic: str) -> int | None:
    """The `message_seq` with which a channel begins; None: live."""
    if isinstance(start, Mapping):
        return start.get(topic)
    return FIRST_MESSAGE if start == "first" else None
