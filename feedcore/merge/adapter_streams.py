"""Which adapters' streams are live, and how far each has come; detects silence."""

from __future__ import annotations

from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import ConfirmationPaused, ConfirmationResumed, Live, MergeEffect, Stale
from tandemfeed.feedcore.wire.output_packet import ANNOUNCEMENT_BIT, PROVISIONAL_BIT

UNNUMBERED_BITS = PROVISIONAL_BIT | ANNOUNCEMENT_BIT


class AdapterStreams:
    """The adapters' streams of one channel, as they arrive.

    Args:
        config: how long a silence makes a stream stale, and how many live streams delivery needs.

    Attributes:
        next_deadline_ns: when to check for silence next. Packets do not move it, so a loop can read it in every turn at
            no cost.
    """

    def __init__(self, channel_id: int, config: MergerConfig) -> None:
        self._channel_id = channel_id
        self._stale_after_ns = config.stale_after_ns
        self._confirm = config.confirm
        self._heard_at_ns: dict[int, int] = {}  # by adapter_id, of live streams
        self._ends: dict[int, int] = {}  # by adapter_id, one past the newest input_seq heard from it
        self._silent: set[int] = set()
        self._moved_on: set[int] = set()
        self._is_paused = False
        self.next_deadline_ns: int | None = None

    @property
    def live(self) -> tuple[int, ...]:
        """The adapters whose streams are live."""
        return tuple(sorted(self._heard_at_ns))

    @property
    def silent(self) -> tuple[int, ...]:
        """The adapters that have fallen silent: not those that have only left this session."""
        return tuple(sorted(self._silent - self._moved_on))

    def on_packet(
        self, adapter_id: int, flags: int, end_input_seq: int, now_ns: int, effects: list[MergeEffect]
    ) -> None:
        """Take a packet that arrived by multicast; `end_input_seq` is the packet's, or the next one of a heartbeat."""
        if adapter_id not in self._heard_at_ns:
            self._come_alive(adapter_id, now_ns, effects)
        self._heard_at_ns[adapter_id] = now_ns
        if end_input_seq > self._ends.get(adapter_id, 0) and not flags & UNNUMBERED_BITS:
            self._ends[adapter_id] = end_input_seq

    def note_moved_on(self, adapter_id: int) -> None:
        """Note that the adapter sends a later session, so it still answers if its stream of this one falls silent."""
        self._moved_on.add(adapter_id)

    def on_timer(self, now_ns: int, effects: list[MergeEffect]) -> None:
        """Report which streams have fallen silent, and whether too few remain."""
        if self.next_deadline_ns is None or now_ns < self.next_deadline_ns:
            return
        for adapter_id, heard_at_ns in list(self._heard_at_ns.items()):
            if now_ns - heard_at_ns >= self._stale_after_ns:
                del self._heard_at_ns[adapter_id]
                self._silent.add(adapter_id)
                effects.append(Stale(self._channel_id, adapter_id))
        if self._confirm > 1 and len(self._heard_at_ns) < self._confirm and not self._is_paused:
            self._is_paused = True
            effects.append(ConfirmationPaused(self._channel_id, self.live))
        oldest_ns = min(self._heard_at_ns.values(), default=None)
        self.next_deadline_ns = None if oldest_ns is None else oldest_ns + self._stale_after_ns

    def are_all_past(self, input_seq: int) -> bool:
        """True if every live stream is past it, so no copy will arrive by itself."""
        live = [end for adapter, end in self._ends.items() if adapter in self._heard_at_ns]
        return bool(live) and min(live) > input_seq

    def renumbered_from(self, input_seq: int) -> None:
        """Forget how far streams had come beyond this number, because it no longer counts."""
        self._ends = {adapter: min(end, input_seq) for adapter, end in self._ends.items()}

    def _come_alive(self, adapter_id: int, now_ns: int, effects: list[MergeEffect]) -> None:
        self._silent.discard(adapter_id)
        self._heard_at_ns[adapter_id] = now_ns
        if self.next_deadline_ns is None:
            self.next_deadline_ns = now_ns + self._stale_after_ns
        effects.append(Live(self._channel_id, adapter_id))
        if self._is_paused and len(self._heard_at_ns) >= self._confirm:
            self._is_paused = False
            effects.append(ConfirmationResumed(self._channel_id, self.live))
