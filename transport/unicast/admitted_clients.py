"""Which clients an adapter admits to its unicast socket, as the admin server says. Pure.

While no admin server is up, everyone who was admitted stays. A client that a restarted server does not list may not
have renewed its subscription there yet, and stays for RETURN_NS; a client that a server removes goes at once.

One thread changes the object; others may read.
"""

from __future__ import annotations

from collections.abc import Iterable

from tandemfeed.v1 import admin_pb2

RETURN_NS = 30_000_000_000  # ten times the longest pause between two attempts of a client to reach an admin server


class AdmittedClients:
    """By CURVE public key."""

    def __init__(self) -> None:
        self._channels: dict[bytes, frozenset[int]] = {}
        self._until_ns: dict[bytes, int] = {}  # of clients that the present server has not listed

    def channels_of(self, client_key: bytes) -> frozenset[int] | None:
        """The channels that a client may subscribe to; None: it may not connect."""
        return self._channels.get(client_key)

    def change(self, changed: admin_pb2.SubscriptionsChanged, now_ns: int) -> set[bytes]:
        """Apply a server's order; return the clients to disconnect.

        A client whose channels changed is one of them: it connects again, and its subscriptions are checked anew.
        """
        disconnected = set()
        if changed.is_whole:
            listed = {client.client_key for client in changed.admitted}
            for key in self._channels.keys() - listed:
                self._until_ns.setdefault(key, now_ns + RETURN_NS)
        for client in changed.admitted:
            channels = frozenset(client.channel_ids)
            if self._channels.get(client.client_key, channels) != channels:
                disconnected.add(client.client_key)
            self._channels[client.client_key] = channels
            self._until_ns.pop(client.client_key, None)
        disconnected.update(changed.removed_client_keys)
        self._forget(changed.removed_client_keys)
        return disconnected

    def expire(self, now_ns: int) -> set[bytes]:
        """Forget and return the clients whose subscriptions did not return in time."""
        late = {key for key, until_ns in self._until_ns.items() if until_ns <= now_ns}
        self._forget(late)
        return late

    def _forget(self, client_keys: Iterable[bytes]) -> None:
        for key in client_keys:
            self._channels.pop(key, None)
            self._until_ns.pop(key, None)
