"""What each adapter of a feed reported last, when, and since when it is away: what an operator must see."""

from __future__ import annotations

from tandemfeed.v1 import admin_pb2, common_pb2


class AdapterReports:
    """The newest reports of one feed's adapters. One thread at a time.

    Args:
        began_at_ns: when this server began to listen, by its monotonic clock.
    """

    def __init__(self, began_at_ns: int) -> None:
        self._began_at_ns = began_at_ns
        self._states: dict[int, common_pb2.FeedAdapterState] = {}
        self._heard: dict[int, tuple[int, int]] = {}  # adapter_id -> (monotonic, wall clock)
        self._away_since_unix_ns: dict[int, int] = {}

    def note(self, adapter_id: int, state: common_pb2.FeedAdapterState, now_ns: int, now_unix_ns: int) -> None:
        """An adapter reported its state."""
        self._states[adapter_id], self._heard[adapter_id] = state, (now_ns, now_unix_ns)

    def on_attend(self, adapter_id: int) -> None:
        """Its stream began."""
        self._away_since_unix_ns.pop(adapter_id, None)

    def on_leave(self, adapter_id: int, now_unix_ns: int) -> None:
        """Its stream ended."""
        self._away_since_unix_ns[adapter_id] = now_unix_ns

    def describe(self, status: admin_pb2.AdapterStatus, now_ns: int) -> None:
        """Fill in what the adapter with this description reported, and when."""
        adapter_id = status.adapter.adapter_id
        if adapter_id in self._states:
            status.state.CopyFrom(self._states[adapter_id])
        heard_at_ns, status.heard_unix_ns = self._heard.get(adapter_id, (self._began_at_ns, 0))
        status.silence_ns = now_ns - heard_at_ns
        status.away_since_unix_ns = self._away_since_unix_ns.get(adapter_id, 0)
