"""The active of a feed as a backup knows it, and whether it is still heard."""

from __future__ import annotations

FLAP_WITHIN_NS = 10_000_000_000  # silences further apart than this are unrelated
FLAPS_FREE = 2  # this many silences within that time cause no delay, such as a takeover or a lost switch port
HOLD_NS_FIRST, HOLD_NS_MAX = 200_000_000, 2_000_000_000


class ActiveView:
    """The active, as reported by itself, its peers or the admin server.

    Attributes:
        adapter_id: the adapter to send requests to; 0 while none is known.
        epoch: the newest epoch in which it is known to be active.
        heard_at_ns: when it was last heard, by its output or the sync channel.
    """

    def __init__(self, now_ns: int) -> None:
        self.adapter_id = 0
        self.heard_at_ns = now_ns
        self.epoch = 0

    def note_active(self, adapter_id: int, epoch: int) -> bool:
        """Take a report of the active adapter in an epoch (0: none). An older report is ignored.

        Returns:
            True if the known active changed.
        """
        if epoch < self.epoch or (adapter_id == 0 and epoch == self.epoch):
            return False
        is_another = adapter_id != self.adapter_id
        self.adapter_id, self.epoch = adapter_id, epoch
        return is_another

    def on_message(self, adapter_id: int, epoch: int, now_ns: int) -> bool:
        """Note a message of the active itself. Returns True if the known active changed."""
        self.heard_at_ns = now_ns
        return self.note_active(adapter_id, epoch)

    def silent_ns(self, now_ns: int) -> int:
        """How long it has not been heard."""
        return now_ns - self.heard_at_ns


class FlapDamper:
    """How long a detached backup waits before it becomes synchronized again.

    In an overloaded cluster, the active is heard intermittently. Without a delay, its backups would move between
    DETACHED and SYNCHRONIZED many times a second, and each move is logged and reported. The first silences cause no
    delay. After them, each silence within ten seconds of the last doubles the time for which the active must be heard.
    """

    def __init__(self) -> None:
        self._silences = 0
        self._silent_at_ns: int | None = None
        self._heard_since_ns: int | None = None

    def on_silence(self, now_ns: int) -> None:
        """Note that the active was silent, even if the backup is still detached because of an earlier silence."""
        if self._silent_at_ns is None or now_ns - self._silent_at_ns > FLAP_WITHIN_NS:
            self._silences = 0
        self._silences += 1
        self._silent_at_ns, self._heard_since_ns = now_ns, None

    def may_return(self, now_ns: int) -> bool:
        """Note that the active is heard. Returns True once it has been heard for long enough."""
        if self._heard_since_ns is None:
            self._heard_since_ns = now_ns
        return now_ns - self._heard_since_ns >= self._hold_ns()

    def _hold_ns(self) -> int:
        excess = self._silences - FLAPS_FREE
        return 0 if excess <= 0 else min(HOLD_NS_FIRST << min(excess - 1, 8), HOLD_NS_MAX)
