"""Which other adapters' multicast this adapter hears, which distinguishes a broken link from a dead process. Pure.

An adapter whose packets reach no other adapter looks healthy by its calls, which go another way. A silence counts only
while the other adapter says that it transmits, and only while this adapter attends to its own sockets: a pause of this
process is not a silence of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tandemfeed.feedcore.replica.channel_state import ChannelStatus
from tandemfeed.feedcore.replica.roles.states import ReplicaState

MS = 1_000_000
ATTENTION_NS = 250 * MS  # states are reported every 100 ms; this covers one that is late and one that is lost
UNHEARD_NS = 1_000 * MS  # without a packet, heartbeats included: forty were lost
UNPLACED = (ReplicaState.JOINING, ReplicaState.FAILED)  # such a replica transmits nothing


class HeardAdapters:
    """When each channel of each other adapter was last heard."""

    def __init__(self, channel_ids: Iterable[int], now_ns: int) -> None:
        self._channel_ids = tuple(channel_ids)
        self._heard_at_ns: dict[tuple[int, int], int] = {}  # (adapter_id, channel_id)
        self._asked_at_ns = now_ns

    def on_packet(self, adapter_id: int, channel_id: int, now_ns: int) -> None:
        """An authentic packet of the adapter arrived by multicast."""
        self._heard_at_ns[adapter_id, channel_id] = now_ns

    def on_status(self, adapter_id: int, status: ChannelStatus, now_ns: int) -> None:
        """The adapter reported a channel, by a call. While it transmits nothing there, it cannot be heard."""
        link = adapter_id, status.channel_id
        if status.state in UNPLACED or not status.position.epoch:
            self._heard_at_ns[link] = now_ns
        else:
            self._heard_at_ns.setdefault(link, now_ns)

    def silences_ns(self, others: Iterable[int], now_ns: int) -> dict[int, int]:
        """For how long each other adapter was not heard, on the channel where that is longest.

        Call it at every report: a late call shows that this process was paused, and the pause does not count.

        Args:
            others: the adapters to list; those that never reported a state are left out.
        """
        pause_ns = now_ns - self._asked_at_ns
        self._asked_at_ns = now_ns
        if pause_ns > ATTENTION_NS:
            for link, heard_at_ns in self._heard_at_ns.items():
                self._heard_at_ns[link] = min(heard_at_ns + pause_ns, now_ns)
        silences = {}
        for adapter_id in others:
            known = [self._heard_at_ns.get((adapter_id, channel_id)) for channel_id in self._channel_ids]
            heard = [each for each in known if each is not None]
            if heard:
                silences[adapter_id] = now_ns - min(heard)
        return silences


def unheard(silences_ns: Mapping[int, int]) -> frozenset[int]:
    """The adapters that are not heard, by the silences that an adapter reported (protocol clause 6.4)."""
    return frozenset(adapter_id for adapter_id, silence_ns in silences_ns.items() if silence_ns > UNHEARD_NS)
