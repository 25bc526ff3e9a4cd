"""Which clients the feed's adapters admit to their unicast sockets, and how many subscriptions each channel has. Pure.

A subscription whose stream broke counts for RETURN_NS more, because its client usually returns: a connection to this
server that breaks for a moment must not interrupt what the client receives from the adapters. A revoked subscription
counts no more. A client that returns may have two streams with one key for a while; its key goes with the last of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from tandemfeed.admin_server.feed.keys.key_times import SECOND
from tandemfeed.v1 import admin_pb2

RETURN_NS = 10 * SECOND
ENDED_COUNT_MAX = 4_096  # subscriptions that may return; beyond that, the oldest does not count any more


@dataclass(frozen=True, slots=True)
class Admission:
    """What one subscription is admitted to. Attributes: client_key: empty if it has none."""

    client_key: bytes
    channel_ids: frozenset[int]


class Admissions:
    """The subscriptions of one feed, each under a name of its own. Not safe for several threads at once."""

    def __init__(self) -> None:
        self._open: dict[Hashable, Admission] = {}
        self._ended: dict[Hashable, tuple[int, Admission]] = {}  # until when it counts; the oldest first
        self._channels: dict[bytes, Counter[int]] = {}  # client_key -> channel_id -> subscriptions
        self._counts: Counter[int] = Counter()

    def begin(self, name: Hashable, admission: Admission) -> admin_pb2.SubscriptionsChanged:
        """A subscription began, or changed its channels."""
        former = self._open.get(name)
        self._open[name] = admission
        self._add(admission)
        if former is not None:
            self._remove(former)
        return self._changed(admission, former)

    def end(self, name: Hashable, now_ns: int, *, is_revoked: bool = False) -> admin_pb2.SubscriptionsChanged | None:
        """A subscription ended; None: no adapter needs to hear of that yet."""
        admission = self._open.pop(name, None)
        if admission is None:
            return None
        if not is_revoked:
            self._ended[name, now_ns] = now_ns + RETURN_NS, admission
            return self.expire(now_ns) if len(self._ended) > ENDED_COUNT_MAX else None
        self._remove(admission)
        return self._changed(admission)

    def expire(self, now_ns: int) -> admin_pb2.SubscriptionsChanged | None:
        """Forget the subscriptions that did not return in time; None if there is none."""
        late = []
        for name, (until_ns, admission) in list(self._ended.items()):
            if until_ns > now_ns and len(self._ended) <= ENDED_COUNT_MAX:
                break
            del self._ended[name]
            self._remove(admission)
            late.append(admission)
        return self._changed(*late) if late else None

    def next_expiry_ns(self) -> int | None:
        """When `expire` will find a subscription."""
        return next((until_ns for until_ns, _ in self._ended.values()), None)

    def whole(self) -> admin_pb2.SubscriptionsChanged:
        """Everything, for an adapter that knows nothing."""
        admitted = [_client(key, channels) for key, channels in self._channels.items()]
        return admin_pb2.SubscriptionsChanged(is_whole=True, admitted=admitted, subscriber_counts=+self._counts)

    # ---- inside ----

    def _add(self, admission: Admission) -> None:
        self._counts.update(admission.channel_ids)
        if admission.client_key:
            self._channels.setdefault(admission.client_key, Counter()).update(admission.channel_ids)

    def _remove(self, admission: Admission) -> None:
        self._counts.subtract(admission.channel_ids)
        if admission.client_key:
            left = self._channels[admission.client_key]
            left.subtract(admission.channel_ids)
            if not +left:
                del self._channels[admission.client_key]

    def _changed(self, *concerned: Admission | None) -> admin_pb2.SubscriptionsChanged:
        """What is true now of the clients of these subscriptions."""
        changed = admin_pb2.SubscriptionsChanged(subscriber_counts=+self._counts)
        for key in {each.client_key for each in concerned if each is not None and each.client_key}:
            if key in self._channels:
                changed.admitted.append(_client(key, self._channels[key]))
            else:
                changed.removed_client_keys.append(key)
        return changed


def _client(client_key: bytes, channels: Counter[int]) -> admin_pb2.AdmittedClient:
    return admin_pb2.AdmittedClient(client_key=client_key, channel_ids=sorted(+channels))
