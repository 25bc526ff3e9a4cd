"""What a contributor has sent and what it knows of it. Pure.

Messages get consecutive numbers and leave in requests, one at a time. A request that was not answered is in doubt: it
may have been accepted, so it is sent again unchanged, with the same numbers, before any other. So each message is
accepted once, in the order of `add`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

REQUEST_MESSAGES_MAX = 1_000
REQUEST_SIZE_MAX = 192 << 10  # a server accepts 256 KiB, with what else is in a request
MESSAGE_OVERHEAD = 8  # of a request, for each message


class Request(NamedTuple):
    """Messages of consecutive numbers, to send in one call."""

    first_number: int
    messages: tuple[bytes, ...]
    hold_ns: int

    @property
    def end_number(self) -> int:
        """The number after the last."""
        return self.first_number + len(self.messages)


class Outbox:
    """Args: next_number: of the producer's next message, as the gateway says."""

    def __init__(self, next_number: int) -> None:
        self.next_number = next_number  # of the next message to add
        self.is_in_doubt = False  # the request may have been accepted
        self._requests: deque[Request] = deque()

    @property
    def request(self) -> Request | None:
        """The request to send (again); None: everything was accepted."""
        return self._requests[0] if self._requests else None

    def add(self, messages: Sequence[bytes], hold_ns: int = 0) -> range:
        """Queue messages to be sent; returns their numbers."""
        first_number, part, size = self.next_number, list[bytes](), 0
        for message in messages:
            cost = len(message) + MESSAGE_OVERHEAD
            if part and (len(part) == REQUEST_MESSAGES_MAX or size + cost > REQUEST_SIZE_MAX):
                self._cut(part, hold_ns)
                part, size = [], 0
            part.append(message)
            size += cost
        if part:
            self._cut(part, hold_ns)
        return range(first_number, self.next_number)

    def accepted(self) -> None:
        """The request was accepted."""
        self._requests.popleft()
        self.is_in_doubt = False

    def refused(self) -> int:
        """The request was refused, and will be whenever it is sent: forget it and what follows, and use their numbers
        again.

        Returns:
            How many messages were forgotten.
        """
        first_number = self._requests[0].first_number
        count, self.next_number = self.next_number - first_number, first_number
        self._requests.clear()
        self.is_in_doubt = False
        return count

    def _cut(self, part: Sequence[bytes], hold_ns: int) -> None:
        self._requests.append(Request(self.next_number, tuple(part), hold_ns))
        self.next_number += len(part)
