"""The role of a replica that has left the group: it transmits nothing and waits to be readmitted (protocol 6.9)."""

from __future__ import annotations

from feedcore.replica.effects import AdapterEffect
from feedcore.replica.role import Role, Succession, ToJoining


class Failed(Role):
    """Owns nothing."""

    def begin(self, effects: list[AdapterEffect], now_ns: int) -> Succession | None:
        self.channel.unanchor()
        return None

    def promote(self, epoch: int, effects: list[AdapterEffect], now_ns: int) -> Succession | None:
        return None

    def fail(self, reason: str, effects: list[AdapterEffect]) -> Succession | None:
        return None

    def readmit(self) -> Succession | None:
        self.channel.out_of_sync_at_ns.clear()
        return ToJoining("readmitted")
