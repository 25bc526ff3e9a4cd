"""By which transport a subscription receives each adapter. Pure.

`transport="auto"` begins with multicast. If nothing arrives from an adapter for SILENCE_NS, although it is attended and
sends a heartbeat every 10 ms, the network does not carry its groups to this host: the subscription connects to its
unicast address, and stays connected for as long as it lasts. It remains in the groups, because the merge drops second
copies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tandemfeed.client_lib.login.grant import GrantedAdapter
from tandemfeed.feedcore.merge.config import HEARTBEAT_NS

Transport: TypeAlias = Literal["auto", "multicast", "unicast"]
SILENCE_NS = 1_000_000_000
assert SILENCE_NS >= 50 * HEARTBEAT_NS  # neither loss nor an adapter that pauses for a moment


@dataclass(frozen=True, slots=True)
class UnicastChosen:
    """From now on, an adapter is received by unicast as well. The reason is a sentence."""

    adapter_id: int
    reason: str


class TransportChoice:
    """One subscription's.

    Args:
        transport: what the application asked for.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._by_unicast: set[int] = set()
        self._silent_since_ns: dict[int, int] = {}  # adapters that may turn out to need unicast
        self._join_failure = ""

    @property
    def joins_groups(self) -> bool:
        """Whether to join multicast groups."""
        return self._transport != "unicast" and not self._join_failure

    @property
    def may_fall_back(self) -> bool:
        """Whether unicast may take the place of groups that cannot be joined."""
        return self._transport == "auto"

    def is_by_unicast(self, adapter_id: int) -> bool:
        """Whether to connect to an adapter's unicast address, if it has one."""
        return self._transport == "unicast" or adapter_id in self._by_unicast

    def on_adapters(self, adapters: Iterable[GrantedAdapter], now_ns: int) -> list[UnicastChosen]:
        """The adapters changed. Return what was chosen."""
        if self._transport != "auto":
            return []
        waiting = {
            each.adapter_id
            for each in adapters
            if each.is_attended and each.unicast is not None and each.adapter_id not in self._by_unicast
        }
        self._silent_since_ns = {each: self._silent_since_ns.get(each, now_ns) for each in waiting}
        return self._choose(waiting, self._join_failure) if self._join_failure else []

    def on_join_failed(self, why: str) -> None:
        """This host cannot join a group. `on_adapters` must follow."""
        self._join_failure = f"joining its group failed: {why}"

    def on_heard(self, adapter_id: int, now_ns: int) -> None:
        """A packet of an adapter arrived by multicast."""
        if adapter_id in self._silent_since_ns:
            self._silent_since_ns[adapter_id] = now_ns

    def next_deadline_ns(self) -> int | None:
        """When `on_timer` is due."""
        return min(self._silent_since_ns.values()) + SILENCE_NS if self._silent_since_ns else None

    def on_timer(self, now_ns: int) -> list[UnicastChosen]:
        """Return what is chosen now."""
        silent = [each for each, since_ns in self._silent_since_ns.items() if now_ns - since_ns >= SILENCE_NS]
        return self._choose(silent, f"no packet arrived on its groups for {SILENCE_NS // 1_000_000} ms")

    def _choose(self, adapter_ids: Iterable[int], reason: str) -> list[UnicastChosen]:
        chosen = [UnicastChosen(adapter_id, reason) for adapter_id in sorted(adapter_ids)]
        for each in chosen:
            self._by_unicast.add(each.adapter_id)
            del self._silent_since_ns[each.adapter_id]
        return chosen
