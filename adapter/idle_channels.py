"""Which packets a backup need not send, because no client has subscribed to their channel (`idle_without_subscribers`).

Only a synchronized backup leaves packets out, and never a heartbeat: the active's packets are the decisions that all
backups follow, and a provisional packet may be the only one. The backup still converts, numbers and journals. So a
client that subscribes gets the active's stream, and can have everything replayed by every adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.output_packet import HEARTBEAT_BIT, OutputPacket
from tandemfeed.transport.unicast.admitted_clients import RETURN_NS


class IdleChannels:
    """For one thread.

    Args:
        state_of: returns the state of a channel's replica.
    """

    def __init__(self, channel_ids: Iterable[int], state_of: Callable[[int], ReplicaState]) -> None:
        self._channel_ids, self._state_of = tuple(channel_ids), state_of
        self._idle_at_ns: dict[int, int] = {}

    def on_subscriber_counts(self, counts: Mapping[int, int], now_ns: int) -> None:
        """The admin server reported the subscriptions of each channel.

        A channel becomes idle only after a while: the subscribers of a restarted server may not have returned to it.
        """
        for channel_id in self._channel_ids:
            if counts.get(channel_id):
                self._idle_at_ns.pop(channel_id, None)
            else:
                self._idle_at_ns.setdefault(channel_id, now_ns + RETURN_NS)

    def may_leave_out(self, packet: OutputPacket, now_ns: int) -> bool:
        """Whether the packet need not be sent."""
        if packet.flags & HEARTBEAT_BIT or now_ns < self._idle_at_ns.get(packet.channel_id, now_ns + 1):
            return False
        return self._state_of(packet.channel_id) is ReplicaState.SYNCHRONIZED
