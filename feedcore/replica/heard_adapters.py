"""Which other adapters' multicast this adapter hears, which distinguishes a broken link from a dead process. Pure.

An adapter whose packets reach no other adapter looks healthy by its calls, which go another way. A silence counts only
while the other adapter says that it transmits, and only while this adapter attends to its own sockets: a pause of this
process is not a silence of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tandemfeed.feedcore.pause_free_clock import PauseFreeClock
from tandemfeed.feedcore.replica.channel_state import ChannelStatus
from tandemfeed.feedcore.replica.roles.states import ReplicaState

MS = 1_000_000
ATTENTION_NS = 250 * MS  # states are reported every 100 ms; this covers one that is late and one that is lost
UNHEARD_NS = 1_000 * MS  # without a packet, heartbeats included: forty were lost
UNPLACED = (ReplicaState.JOINING, ReplicaState.FAILED)  # such a replica transmits nothing


class HeardAdapters:
    """When each channel of each other adapter was last heard, by a time that stands still during a pause."""

    def __init__(self, channel_ids: Iterable[int], now_ns: int) -> None:
        self._channel_ids = tuple(channel_ids)
        self._heard_at_ns: dict[tuple[int, int], int] = {}  # (adapter_id, channel_id)
        self._clock = PauseFreeClock(now_ns, pause_ns=ATTENTION_NS, moment_ns=0, counted_ns=0)

    def on_packet(self, adapter_id: int, channel_id: int, now_ns: int) -> None:
        """An authentic packet of the adapter arrived by multicast."""
        self._heard_at_ns[adapter_id, channel_id] = self._clock.between(now_ns)

    def on_status(self, adapter_id: int, status: ChannelStatus, now_ns: int) -> None:
        """The adapter reported a channel, by a call. While it transmits nothing there, it cannot be heard."""
        link, at_ns = (adapter_id, status.channel_id), self._clock.between(now_ns)
        if status.state in UNPLACED or not status.position.epoch:
            self._heard_at_ns[link] = at_ns
        else:
            self._heard_at_ns.setdefault(link, at_ns)

    def silences_ns(self, others: Iterable[int], now_ns: int) -> dict[int, int]:
        """For how long each other adapter was not heard, on the channel where that is longest.

        Call it at every report: a late call shows that this process was paused, and the pause does not count.

        Args:
            others: the adapters to list; those that never reported a state are left out.
        """
        judged_at_ns, silences = self._clock.look(now_ns), {}
        for adapter_id in others:
            known = [self._heard_at_ns.get((adapter_id, channel_id)) for channel_id in self._channel_ids]
            heard = [each for each in known if each is not None]
            if heard:
                silences[adapter_id] = max(
                    0, judged_at_ns - min(heard)
                )  # the oldest may be after a pause, unjudged yet
        return silences


def unheard(silences_ns: Mapping[int, int]) -> frozenset[int]:
    """The adapters that are not heard, by the silences that an adapter reported (protocol clause 6.4)."""
    return frozenset(adapter_id for adapter_id, silence_ns in silences_ns.items() if silence_ns > UNHEARD_NS)
