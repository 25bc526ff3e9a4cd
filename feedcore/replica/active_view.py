"""The active of one channel's feed, as a backup knows it, and whether it is still heard."""

from __future__ import annotations

FLAP_WITHIN_NS = 10_000_000_000  # silences further apart than this have nothing to do with one another
FLAPS_FREE = 2  # so many silences within that time cost nothing: a takeover, a lost switch port
HOLD_NS_FIRST, HOLD_NS_MAX = 200_000_000, 2_000_000_000


class ActiveView:
    """Who is active, reported by itself, its peers or the admin server.

    Attributes:
        adapter_id: the adapter to ask; 0 as long as none is known.
        heard_at_ns: when it last spoke, by output or sync channel.
    """

    def __init__(self, now_ns: int) -> None:
        self.adapter_id = 0
        self.heard_at_ns = now_ns
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """The epoch that it was last known to be active in."""
        return self._epoch

    def know(self, adapter_id: int, epoch: int) -> bool:
        """Take a report of who is active in an epoch (0: no adapter); older news changes nothing.

        Returns:
            True if it is another adapter than was known.
        """
        if epoch < self._epoch or (adapter_id == 0 and epoch == self._epoch):
            return False
        is_another = adapter_id != self.adapter_id
        self.adapter_id, self._epoch = adapter_id, epoch
        return is_another

    def hear(self, adapter_id: int, epoch: int, now_ns: int) -> bool:
        """The active itself speaks. True if it is another than was known."""
        self.heard_at_ns = now_ns
        is_known = epoch == self._epoch and adapter_id == self.adapter_id
        return not is_known and self.know(adapter_id, epoch)

    def silent_ns(self, now_ns: int) -> int:
        """For how long it has not been heard."""
        return now_ns - self.heard_at_ns


class FlapDamper:
    """How long a detached backup waits before it calls itself synchronized again.

    A cluster loaded above its capacity hears its active in fits and starts. Without a pause its backups would move
    between DETACHED and SYNCHRONIZED many times a second, each move logged and reported. The first silences cost
    nothing; from then on each one within ten seconds of the last doubles the time for which the active must be heard.
    """

    def __init__(self) -> None:
        self._silences = 0
        self._silent_at_ns: int | None = None
        self._heard_since_ns: int | None = None

    def on_silence(self, now_ns: int) -> None:
        """The active has fallen silent; also while the backup is still detached by an earlier silence."""
        if self._silent_at_ns is None or now_ns - self._silent_at_ns > FLAP_WITHIN_NS:
            self._silences = 0
        self._silences += 1
        self._silent_at_ns, self._heard_since_ns = now_ns, None

    def may_return(self, now_ns: int) -> bool:
        """The active is heard: True once it has been for long enough."""
        if self._heard_since_ns is None:
            self._heard_since_ns = now_ns
        return now_ns - self._heard_since_ns >= self._hold_ns()

    def _hold_ns(self) -> int:
        excess = self._silences - FLAPS_FREE
        return 0 if excess <= 0 else min(HOLD_NS_FIRST << min(excess - 1, 8), HOLD_NS_MAX)
