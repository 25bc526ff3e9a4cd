"""The sockets of a client's subscriptions: one set for each feed and transport."""

from __future__ import annotations

import threading

from tandemfeed.client_lib.login.grant import Grant
from tandemfeed.client_lib.stream.sockets.feed_sockets import FeedSockets
from tandemfeed.client_lib.stream.sockets.inbox import Inbox
from tandemfeed.client_lib.stream.sockets.receivers import Receivers
from tandemfeed.client_lib.stream.sockets.transport_choice import Transport
from tandemfeed.runtime.zeromq import Context
from tandemfeed.transport.multicast.sockets import RECEIVE_QUEUE_COUNT_MAX, Multicast
from tandemfeed.transport.unicast.wire import CurveKeys

Key = tuple[str, Transport]  # the feed's name, and what the application asked for


class SharedSockets:
    """One client's. Any thread may call its methods.

    Args:
        multicast: makes the sockets that join groups.
        receive_queue_count_max: datagrams kept by each receiver, and by each subscription.

    Attributes:
        keys: the client's, which the adapters admit.
    """

    def __init__(self, multicast: Multicast, receive_queue_count_max: int = RECEIVE_QUEUE_COUNT_MAX) -> None:
        self.keys = CurveKeys.generate()
        self.receive_queue_count_max = receive_queue_count_max
        self._multicast = multicast
        self._lock = threading.Lock()
        self._feeds: dict[Key, FeedSockets] = {}

    def join(self, inbox: Inbox, grant: Grant, transport: Transport) -> FeedSockets:
        """Receive what a subscription is granted, with the sockets that others of its feed use.

        Raises:
            BadGroup: a group cannot be joined.
        """
        key: Key = grant.feed_name, transport

        def receivers(context: Context) -> Receivers:
            queue_count_max = self.receive_queue_count_max
            return Receivers(context, self._multicast, transport, self.keys, receive_queue_count_max=queue_count_max)

        with self._lock:
            sockets = self._feeds.get(key) or FeedSockets(grant.feed_id, receivers)
            self._feeds[key] = sockets
            try:
                sockets.join(inbox, grant)
            except BaseException:
                self._close_if_empty(sockets)
                raise
            return sockets

    def leave(self, inbox: Inbox, sockets: FeedSockets) -> None:
        """The subscription has ended."""
        with self._lock:
            sockets.leave(inbox)
            self._close_if_empty(sockets)

    def _close_if_empty(self, sockets: FeedSockets) -> None:
        if sockets.is_empty:
            sockets.close()
            self._feeds = {key: each for key, each in self._feeds.items() if each is not sockets}
