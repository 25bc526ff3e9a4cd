"""How many signatures that turn out bad a reader verifies. Pure.

A holder of the channel's key can send signature datagrams that only a verification shows to be bad, and one costs as
much as opening twenty packets. Verifications that succeed need no limit: each moves the reader on, and what is then old
is refused unverified. So only those that fail are counted, per start and channel, in three lanes. A signature takes the
first lane that is open to it, so that a flood fills the lanes that the true signatures need not take:

- from the sender (address and port) of the start's last good signature: a flood from elsewhere does not reach it;
- lists a packet that was heard and is not covered yet: a flood of random lists does not reach it, whatever address it
  forges;
- any other: what a reader needs that has just begun, or lost every packet.

A flood that fills all three forges its sender's address and hears the stream. Then that start is not verified more than
a few times a second, and the other adapters go on.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

SECOND = 1_000_000_000
FAILED_PER_SECOND = 20  # in each lane: in all three 60 of 160 µs are 1 % of a processor for each start and channel
FAILED_AT_ONCE = 20  # a few bad ones are never waited for
_FAILURE_NS = SECOND // FAILED_PER_SECOND


class Lane(IntEnum):
    """Which verifications share a limit."""

    KNOWN_SENDER = 0
    LISTS_HEARD = 1
    ANY = 2


class VerificationBudget:
    """One start's, on one channel."""

    __slots__ = ("_known_sender", "_paid_until_ns")

    def __init__(self) -> None:
        self._known_sender = ""
        self._paid_until_ns = [0] * len(Lane)  # each failure takes its time, one after the other

    def lane_for(self, sender: str, lists_heard: Callable[[], bool], now_ns: int) -> Lane | None:
        """The lane in which a signature may be verified now; None: in none.

        Args:
            sender: where it came from, as the network says; "" if that is not known.
            lists_heard: whether it lists a packet that was heard and not covered; asked only if it matters.
        """
        if sender and sender == self._known_sender and self._is_open(Lane.KNOWN_SENDER, now_ns):
            return Lane.KNOWN_SENDER
        if self._is_open(Lane.LISTS_HEARD, now_ns) and lists_heard():
            return Lane.LISTS_HEARD
        return Lane.ANY if self._is_open(Lane.ANY, now_ns) else None

    def on_verified(self, sender: str) -> None:
        """A signature from there was good."""
        self._known_sender = sender

    def on_failed(self, lane: Lane, now_ns: int) -> None:
        """One that was verified in this lane was bad."""
        self._paid_until_ns[lane] = max(self._paid_until_ns[lane], now_ns) + _FAILURE_NS

    def _is_open(self, lane: Lane, now_ns: int) -> bool:
        return self._paid_until_ns[lane] - now_ns <= (FAILED_AT_ONCE - 1) * _FAILURE_NS
