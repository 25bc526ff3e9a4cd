"""What the shared sockets of a feed have received for one subscription, until its loop takes it.

The thread that has the sockets puts, and the loop takes; neither waits for the other. A full inbox drops what arrives,
as a receive queue does: the merge finds the gap and requests it.

Invariant: if the loop waits and something was put, its mailbox was woken.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from tandemfeed.client_lib.stream.sockets.transport_choice import UnicastChosen
from tandemfeed.feedcore.wire.refusal import Refusal
from tandemfeed.transport.sealing.epoch_proofs import EpochProof
from tandemfeed.transport.sealing.opening import ReceivedPacket, ReceivedSignature

# What was opened, the multicast group (empty: by unicast), and the sender, except of packets. A plain tuple, for speed.
Arrival: TypeAlias = tuple[ReceivedPacket | ReceivedSignature | EpochProof, str, str]


class Inbox:
    """One subscription's.

    Args:
        count_max: the capacity.
        fd: readable when the subscription is woken.
        wake: wakes it; any thread may call this.

    Attributes:
        is_waiting: the loop waits for `fd`.
        datagram_count: datagrams received for it, including refused and dropped ones.
        dropped_count: datagrams that found it full.
    """

    def __init__(self, count_max: int, fd: int, wake: Callable[[], None]) -> None:
        self.fd, self.wake = fd, wake
        self.is_waiting = False
        self.datagram_count = self.dropped_count = 0
        self._count_max = count_max
        self._entries: deque[Arrival | UnicastChosen] = deque()
        self._lock = threading.Lock()  # of the refusals
        self._refused: dict[Refusal, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    # ---- for the thread that has the sockets ----

    def put(self, arrival: Arrival) -> None:
        """Put what a datagram contained. `notify` must follow, after one or several."""
        self.datagram_count += 1
        if len(self._entries) < self._count_max:
            self._entries.append(arrival)
        else:
            self.dropped_count += 1

    def put_event(self, event: UnicastChosen) -> None:
        """Put an event, even into a full inbox: there are as many as adapters."""
        self._entries.append(event)

    def refuse(self, reason: Refusal) -> None:
        """Count a datagram that could not be opened."""
        self.datagram_count += 1
        with self._lock:
            self._refused[reason] = self._refused.get(reason, 0) + 1

    def notify(self) -> None:
        """Wake the loop if it waits and there is something for it."""
        if self.is_waiting and self._entries:
            self.is_waiting = False
            self.wake()

    # ---- for the loop ----

    def take(self) -> Arrival | UnicastChosen:
        """The oldest entry; there is one."""
        return self._entries.popleft()

    def take_refused(self) -> dict[Refusal, int]:
        """How many were refused since the last call, by reason."""
        if not self._refused:
            return {}
        with self._lock:
            refused, self._refused = self._refused, {}
        return refused
