"""Senders that impersonate an adapter of the feed: what an operator learns about a forger.

A packet without a valid decision tag was not made by an adapter. It names the start that it impersonates, and the
network names the address it came from. Neither proves who sent it: a reader of the channel can make such a packet, and
so can any host of the network that has heard one, and both can send from any address. It is where to look first.

Bounded, whatever is heard: ADDRESSES_MAX senders, the newest; and one count for each adapter impersonated, which only
announced starts can be. Only what is refused comes by here, never a packet that is believed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandemfeed.v1 import common_pb2

ADDRESSES_MAX = 16  # a screen of them; a forger that changes its address pushes out older ones, not its count


@dataclass(slots=True)
class _Sender:
    """What came from one address as one start."""

    count: int
    first_unix_ns: int
    last_unix_ns: int


class ForgedPackets:
    """What one adapter has refused. `note` and `newest` in the loop's thread, `counts` from any."""

    def __init__(self) -> None:
        self._senders: dict[tuple[int, int, str], _Sender] = {}  # in the order of their newest packets
        self._counts: dict[int, int] = {}  # adapter_id

    def note(self, adapter_id: int, incarnation: int, address: str, now_unix_ns: int) -> None:
        """A packet was refused.

        Args:
            adapter_id, incarnation: the start that it impersonates.
            address: where it came from.
            now_unix_ns: the wall clock.
        """
        self._counts[adapter_id] = self._counts.get(adapter_id, 0) + 1
        place = adapter_id, incarnation, address
        sender = self._senders.pop(place, None) or _Sender(0, now_unix_ns, now_unix_ns)
        sender.count += 1
        sender.last_unix_ns = now_unix_ns
        self._senders[place] = sender
        if len(self._senders) > ADDRESSES_MAX:
            del self._senders[next(iter(self._senders))]

    def newest(self) -> list[common_pb2.ForgedPackets]:
        """The senders known, the one heard last at the end."""
        return [
            common_pb2.ForgedPackets(
                adapter_id=adapter_id,
                incarnation=incarnation,
                address=address,
                count=sender.count,
                first_unix_ns=sender.first_unix_ns,
                last_unix_ns=sender.last_unix_ns,
            )
            for (adapter_id, incarnation, address), sender in self._senders.items()
        ]

    def counts(self) -> Mapping[int, int]:
        """By adapter_id impersonated, packets from all addresses, also those forgotten."""
        return dict(self._counts)
