"""Limits how many bad signatures a reader verifies. Pure.

A process with the channel's key can send signature datagrams that only verification shows to be bad, and one
verification costs as much as opening twenty packets. Successful verifications need no limit: each advances the reader,
which then refuses older signatures without verifying them. So only failures are counted, for each start and channel, in
three lanes. A signature uses the first lane that is open to it, so that a flood fills lanes that genuine signatures do
not need:

- from the sender (address and port) of the start's last good signature: not open to a flood from another sender;
- lists an arrived packet that is not signed yet: not open to a flood of random lists, even with a forged address;
- any other signature: needed by a reader that has just begun, or has lost every packet.

A flood can fill all three only with a forged address and knowledge of the stream. Then signatures of that start are
verified only a few times a second, and the other adapters are not affected.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

SECOND = 1_000_000_000
FAILED_PER_SECOND = 20  # in each lane; 60 in all three, at 160 µs, cost 1 % of a processor per start and channel
FAILED_AT_ONCE = 20  # allowed in a burst, so that a few bad signatures delay nothing
_FAILURE_NS = SECOND // FAILED_PER_SECOND


class Lane(IntEnum):
    """A group of verifications that share a limit."""

    KNOWN_SENDER = 0
    LISTS_KNOWN_PACKET = 1
    ANY = 2


class VerificationBudget:
    """The verification limit for one start on one channel."""

    __slots__ = ("_known_sender", "_paid_until_ns")

    def __init__(self) -> None:
        self._known_sender = ""
        self._paid_until_ns = [0] * len(Lane)  # each failure adds _FAILURE_NS

    def lane_for(self, sender: str, lists_known_packet: Callable[[], bool], now_ns: int) -> Lane | None:
        """The lane in which a signature may be verified now; None if all are closed to it.

        Args:
            sender: the source address of the datagram; "" if unknown.
            lists_known_packet: whether the signature lists an arrived packet that is not signed yet; called only if
                needed.
        """
        if sender and sender == self._known_sender and self._is_open(Lane.KNOWN_SENDER, now_ns):
            return Lane.KNOWN_SENDER
        if self._is_open(Lane.LISTS_KNOWN_PACKET, now_ns) and lists_known_packet():
            return Lane.LISTS_KNOWN_PACKET
        return Lane.ANY if self._is_open(Lane.ANY, now_ns) else None

    def on_verified(self, sender: str) -> None:
        """A signature from this sender was good."""
        self._known_sender = sender

    def on_failed(self, lane: Lane, now_ns: int) -> None:
        """A signature that was verified in this lane was bad."""
        self._paid_until_ns[lane] = max(self._paid_until_ns[lane], now_ns) + _FAILURE_NS

    def _is_open(self, lane: Lane, now_ns: int) -> bool:
        return self._paid_until_ns[lane] - now_ns <= (FAILED_AT_ONCE - 1) * _FAILURE_NS
