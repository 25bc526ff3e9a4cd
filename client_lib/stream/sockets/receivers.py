"""The receivers of one feed: the multicast groups that were joined, and the unicast connections to adapters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import zmq

from tandemfeed.client_lib.login.grant import Grant, GrantedAdapter, UnicastPlace
from tandemfeed.client_lib.stream.sockets.transport_choice import Transport, TransportChoice, UnicastChosen
from tandemfeed.transport.multicast.groups import BadGroup
from tandemfeed.transport.multicast.sockets import Multicast, MulticastReceiver
from tandemfeed.transport.unicast.receiver import UnicastReceiver
from tandemfeed.transport.unicast.wire import CurveKeys

log = logging.getLogger(__name__)
Receiver: TypeAlias = MulticastReceiver | UnicastReceiver


class Receivers:
    """For one thread at a time; the properties are for any.

    Args:
        multicast: makes the sockets that join groups.
        keys: the client's, which the adapters admit.
        receive_queue_count_max: datagrams kept by each receiver.

    Attributes:
        polled: the sockets, as `zmq.zmq_poll` takes them.
        chosen: the adapters that are received by unicast because multicast does not carry them here.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        multicast: Multicast,
        transport: Transport,
        keys: CurveKeys,
        *,
        receive_queue_count_max: int,
    ) -> None:
        self._context, self._multicast, self._keys = context, multicast, keys
        self.polled: list[tuple[Any, int]] = []
        self.chosen: list[UnicastChosen] = []
        self._choice, self._is_unicast = TransportChoice(transport), transport == "unicast"
        self._queue_count_max = receive_queue_count_max
        self._by_socket: dict[Any, Receiver] = {}
        self._groups: dict[str, MulticastReceiver] = {}
        self._adapters_by_group: dict[str, int] = {}
        self._connections: dict[int, tuple[UnicastPlace, UnicastReceiver]] = {}
        self._grant: Grant | None = None
        self._unreachable: set[int] = set()  # adapters without a unicast address, which were logged

    @property
    def groups(self) -> tuple[str, ...]:
        """The joined multicast groups."""
        return tuple(self._groups)

    @property
    def unicast_endpoints(self) -> dict[int, str]:
        """adapter_id -> the address of the unicast connection to it."""
        return {adapter_id: place.endpoint for adapter_id, (place, _) in list(self._connections.items())}

    def of_socket(self, socket: Any) -> Receiver | None:
        """The receiver with this socket."""
        return self._by_socket.get(socket)

    def on_heard(self, group: str, now_ns: int) -> None:
        """A genuine packet arrived on a group."""
        adapter_id = self._adapters_by_group.get(group)
        if adapter_id is not None:  # else the group was left meanwhile
            self._choice.on_heard(adapter_id, now_ns)

    def apply(self, grant: Grant, now_ns: int, drain: Callable[[Receiver], None]) -> list[UnicastChosen]:
        """Join, leave, connect and disconnect, to match a grant. Return what was chosen.

        Args:
            drain: takes everything that a receiver still has, before it is closed.
        """
        self._grant = grant
        self._adapters_by_group = {
            group: adapter.adapter_id for adapter in grant.adapters.values() for group in adapter.groups.values()
        }
        self._join(grant)
        chosen = self._choice.on_adapters(grant.adapters.values(), now_ns)
        self._connect(grant, drain)
        self._note(grant, chosen)
        return chosen

    def next_deadline_ns(self) -> int | None:
        """When `on_timer` is due."""
        return self._choice.next_deadline_ns()

    def on_timer(self, now_ns: int, drain: Callable[[Receiver], None]) -> list[UnicastChosen]:
        """Connect to the adapters that multicast does not carry here. Return what was chosen."""
        chosen = self._choice.on_timer(now_ns)
        if chosen:
            assert self._grant is not None
            self._connect(self._grant, drain)
            self._note(self._grant, chosen)
        return chosen

    def close(self) -> None:
        """Leave every group and end every connection."""
        for receiver in list(self._by_socket.values()):
            self._remove(receiver)

    # ---- inside ----

    def _join(self, grant: Grant) -> None:
        wanted = grant.groups if self._choice.joins_groups else frozenset()
        for group in self._groups.keys() - wanted:
            self._remove(self._groups.pop(group))
        for group in sorted(wanted - self._groups.keys()):
            try:
                joined = self._multicast.receiver(self._context, group, receive_queue_count_max=self._queue_count_max)
            except BadGroup as failed:
                if not self._choice.may_fall_back or not any(each.unicast for each in grant.adapters.values()):
                    raise
                self._choice.on_join_failed(str(failed))
                return
            self._add(joined)  # first: an interrupt may come between the two
            self._groups[group] = joined

    def _connect(self, grant: Grant, drain: Callable[[Receiver], None]) -> None:
        """Connect to the newest start of each adapter that is received by unicast."""
        wanted = {
            adapter_id: adapter.unicast
            for adapter_id, adapter in grant.adapters.items()
            if self._choice.is_by_unicast(adapter_id) and adapter.unicast is not None
        }
        for adapter_id, (place, receiver) in list(self._connections.items()):
            if wanted.get(adapter_id) != place:
                drain(receiver)  # the last packets of a start that has ended
                self._remove(receiver)
                del self._connections[adapter_id]
        for _, receiver in self._connections.values():
            receiver.set_channels(grant.topics_by_channel)
        for adapter_id in sorted(wanted.keys() - self._connections.keys()):
            place = wanted[adapter_id]
            receiver = UnicastReceiver(
                self._context,
                place.endpoint,
                place.server_key,
                self._keys,
                sorted(grant.topics_by_channel),
                receive_queue_count_max=self._queue_count_max,
            )
            self._add(receiver)
            self._connections[adapter_id] = place, receiver
        if self._is_unicast:
            self._warn_of_unreachable(grant.adapters.values())

    def _warn_of_unreachable(self, adapters: Iterable[GrantedAdapter]) -> None:
        for adapter in adapters:
            if adapter.is_attended and adapter.unicast is None and adapter.adapter_id not in self._unreachable:
                self._unreachable.add(adapter.adapter_id)
                log.warning("an adapter has no unicast address; it is not received", extra={"adapter": adapter.name})

    def _add(self, receiver: Receiver) -> None:
        self._by_socket[receiver.socket] = receiver
        self.polled.append((receiver.socket, zmq.POLLIN))

    def _remove(self, receiver: Receiver) -> None:
        del self._by_socket[receiver.socket]
        self.polled.remove((receiver.socket, zmq.POLLIN))
        receiver.close()

    def _note(self, grant: Grant, chosen: list[UnicastChosen]) -> None:
        self.chosen += chosen
        for each in chosen:
            adapter = grant.adapters[each.adapter_id]
            assert adapter.unicast is not None
            place = {"adapter": adapter.name, "endpoint": adapter.unicast.endpoint}
            log.warning("receiving an adapter by unicast", extra={**place, "why": each.reason})
