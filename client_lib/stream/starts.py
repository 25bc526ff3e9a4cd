"""Where a subscription begins on each channel."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import numpy as np

# "live": with the first packet received; "first": with the first message of the session; "snapshot": with the last
# message of each key, then live; a time (a number is nanoseconds since 1970): with what the source sent since then; by
# topic: with this message_seq, or (session, message_seq), and live on channels that the mapping does not name.
Time: TypeAlias = datetime | np.datetime64 | int
StartMessage: TypeAlias = int | tuple[int, int]
Start: TypeAlias = Literal["live", "first", "snapshot"] | Time | Mapping[str, StartMessage]
FIRST_MESSAGE = 1
NS_MIN = 1_000_000_000_000_000  # twelve days after 1970: smaller numbers are not meant as times
OLDEST_NS = 0


def check_start(start: object) -> None:
    """Refuse what is not a start.

    Raises:
        ValueError.
    """
    if isinstance(start, Mapping):
        for topic, message in start.items():
            numbers = message if isinstance(message, tuple) and len(message) == 2 else (message,)
            if not isinstance(topic, str) or not all(isinstance(each, int) and each >= 1 for each in numbers):
                raise ValueError(
                    f"start has {topic!r}: {message!r}; expected a topic and a message_seq of at least 1, or (session, "
                    "message_seq)"
                )
    elif isinstance(start, int) and not isinstance(start, bool):
        if start < NS_MIN:
            raise ValueError(f"start is {start}; a number is a time in ns since 1970; give message_seqs by topic")
    elif isinstance(start, datetime):
        if start.tzinfo is None:
            raise ValueError(f"start is {start!r} without a time zone; give one, for instance datetime.UTC")
    elif isinstance(start, np.datetime64):
        if np.isnat(start):
            raise ValueError("start is NaT; expected a time")
    elif start not in ("live", "first", "snapshot"):
        raise ValueError(
            f"start is {start!r}; it must be 'live', 'first', 'snapshot', a time, or message_seqs by topic"
        )


def time_of(start: Start) -> int | None:
    """The time since which messages are to be located, in ns since 1970; None: the start names no time."""
    if isinstance(start, np.datetime64):
        return int(start.astype("datetime64[ns]").astype(np.int64))
    if isinstance(start, datetime):
        since = start.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000
    if isinstance(start, int):
        return start
    return OLDEST_NS if start == "snapshot" else None


def session_of(start: Start, topic: str) -> int:
    """The session that a start names for a topic; 0: the present one."""
    found = start.get(topic) if isinstance(start, Mapping) else None
    return found[0] if isinstance(found, tuple) else 0


def utc(at: datetime) -> datetime:
    """A time with its zone; one without is taken as UTC."""
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def first_message_of(start: Any, topic: str) -> int | None:
    """The `message_seq` with which a channel begins; None: live. Args: start: one that names no time."""
    if isinstance(start, Mapping):
        found: StartMessage | None = start.get(topic)
        return found[1] if isinstance(found, tuple) else found
    return FIRST_MESSAGE if start == "first" else None
