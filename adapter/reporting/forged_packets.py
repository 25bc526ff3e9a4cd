"""Senders that impersonate an adapter of the feed: what an operator can learn about a forger.

No adapter made a packet without a valid decision tag. The packet names the adapter start that it impersonates, and the
network gives the sender's address. Neither proves who sent it: any reader of the channel, and any host that has
received such a packet, can make one and send it from any address. The address only shows where to look first.

The memory is bounded: the newest ADDRESSES_MAX senders, and one count per impersonated adapter, which must be an
announced start. Only refused packets come here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandemfeed.v1 import common_pb2

ADDRESSES_MAX = 16  # one screen; a forger that changes its address pushes out older addresses, but not its count


@dataclass(slots=True)
class _Sender:
    """The packets from one address that impersonate one start."""

    count: int
    first_unix_ns: int
    last_unix_ns: int


class ForgedPackets:
    """The forged packets that one adapter refused. Call `note` and `newest` in the loop's thread, `counts` in any."""

    def __init__(self) -> None:
        self._senders: dict[tuple[int, int, str], _Sender] = {}  # in the order of their newest packet
        self._counts: dict[int, int] = {}  # adapter_id

    def note(self, adapter_id: int, incarnation: int, address: str, now_unix_ns: int) -> None:
        """Note a refused packet.

        Args:
            adapter_id, incarnation: the start that it impersonates.
            address: the sender's address.
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
        """The known senders, the latest last."""
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
        """Packets by impersonated adapter_id, from all addresses, forgotten ones included."""
        return dict(self._counts)
