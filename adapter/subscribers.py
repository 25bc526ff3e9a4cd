"""What an adapter does for its feed's subscribers besides multicasting: unicast clients, and channels that may be idle.

The admin server's orders change it, in the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable

from tandemfeed.adapter.idle_channels import IdleChannels
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.transport.unicast.admitted_clients import AdmittedClients
from tandemfeed.transport.unicast.publisher import UnicastPublisher
from tandemfeed.transport.unicast.wire import CurveKeys
from tandemfeed.v1 import admin_pb2


class Subscribers:
    """One start of an adapter has one of these.

    Attributes:
        unicast: sends to unicast clients; None: the cluster file gives this adapter no unicast address.
        idle_channels: None: the cluster file does not let channels be idle.
    """

    def __init__(self) -> None:
        self._keys = CurveKeys.generate()  # for this start only, and never stored
        self._admitted = AdmittedClients()
        self.unicast: UnicastPublisher | None = None
        self.idle_channels: IdleChannels | None = None

    @property
    def server_key(self) -> bytes:
        """The public key by which unicast clients know this start."""
        return self._keys.public

    @property
    def unicast_endpoint(self) -> str:
        """Where unicast clients connect; empty: nowhere (yet)."""
        return "" if self.unicast is None else self.unicast.endpoint

    @property
    def unicast_connection_count(self) -> int:
        """How many connections of unicast clients have subscribed."""
        return 0 if self.unicast is None else self.unicast.connection_count

    def begin(self, registered: admin_pb2.RegisterReply, state_of: Callable[[int], ReplicaState]) -> None:
        """Do what the admin server says at the registration. Args: state_of: returns the state of a channel."""
        channel_ids = [channel.channel_id for channel in registered.feed.channels]
        if registered.unicast_listen:
            self.unicast = UnicastPublisher(registered.unicast_listen, self._keys, channel_ids, self._admitted)
        if registered.protocol.idle_without_subscribers:
            self.idle_channels = IdleChannels(channel_ids, state_of)

    def close(self) -> None:
        """End every unicast connection."""
        if self.unicast is not None:
            self.unicast.close()

    def change(self, changed: admin_pb2.SubscriptionsChanged, now_ns: int) -> None:
        """Apply an order."""
        to_disconnect = self._admitted.change(changed, now_ns)
        if self.unicast is not None:
            self.unicast.disconnect(to_disconnect)
        if self.idle_channels is not None:
            self.idle_channels.on_subscriber_counts(changed.subscriber_counts, now_ns)
