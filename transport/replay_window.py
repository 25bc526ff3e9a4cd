"""Which packet counters were seen: a datagram is taken once.

A ring of slots, each with the counter that was seen in it last: any counter costs one look, whatever it is, and nothing
is allocated. The window follows the highest counter it took, so it must be asked about authentic counters only: its
owner verifies that an adapter sent the packet first.
"""

from __future__ import annotations

REPLAY_WINDOW = 4_096  # how far behind the newest a late datagram may be; at 50,000 a second about 80 ms
_MASK = REPLAY_WINDOW - 1
assert REPLAY_WINDOW & _MASK == 0  # a power of two, so that a slot is found by masking


class ReplayWindow:
    """The counters of one start on one channel.

    Args:
        first_counter: nothing below it is taken; at least 1.
    """

    __slots__ = ("_end", "_first", "_slots")

    def __init__(self, first_counter: int = 1) -> None:
        self._first = self._end = max(1, first_counter)  # 0 is what an empty slot holds
        self._slots = [0] * REPLAY_WINDOW

    def take(self, counter: int) -> bool:
        """True if the counter is new, and remembered now; False if it was seen before, or is too old to tell."""
        if counter >= self._end:
            self._end = counter + 1
        elif self._slots[counter & _MASK] == counter or counter < max(self._first, self._end - REPLAY_WINDOW):
            return False
        self._slots[counter & _MASK] = counter
        return True
