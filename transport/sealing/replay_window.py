"""The packet counters that were seen, so that each datagram is accepted only once.

A ring of slots, each with the counter last seen in it. Every check reads one slot and allocates nothing. The window
follows the highest counter that it accepted, so the owner must first verify that an adapter sent the packet.
"""

from __future__ import annotations

REPLAY_WINDOW = 4_096  # how far a late datagram may be behind the newest; at 50,000 a second about 80 ms
_MASK = REPLAY_WINDOW - 1
assert REPLAY_WINDOW & _MASK == 0  # a power of two, so that a slot is found by masking


class ReplayWindow:
    """The counters of one start on one channel.

    Args:
        first_counter: the lowest counter accepted; at least 1.
    """

    __slots__ = ("_end", "_first", "_slots")

    def __init__(self, first_counter: int = 1) -> None:
        self._first = self._end = max(1, first_counter)  # 0 marks an empty slot
        self._slots = [0] * REPLAY_WINDOW

    def take(self, counter: int) -> bool:
        """Accept a counter. True if it is new; False if it was seen before, or is too old to check."""
        if counter >= self._end:
            self._end = counter + 1
        elif self._slots[counter & _MASK] == counter or counter < max(self._first, self._end - REPLAY_WINDOW):
            return False
        self._slots[counter & _MASK] = counter
        return True
