"""The role of a replica that has left the group: it transmits nothing and waits to be readmitted (protocol 6.9)."""

from __future__ import annotations

from feedcore.replica.role import Next, Role, ToJoining


class Failed(Role):
    """Owns nothing."""

    def begin(self, now_ns: int) -> Next:
        self.channel.unanchor()
        return None

    def promote(self, epoch: int, now_ns: int) -> Next:
        return None

    def fail(self, reason: str) -> Next:
        return None

    def readmit(self) -> Next:
        self.channel.out_of_sync_at_ns.clear()
        return ToJoining("readmitted")
