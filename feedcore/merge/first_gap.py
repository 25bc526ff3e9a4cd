"""How far a channel is known to go, and the patience with the first gap before that: what follows it must wait."""

from __future__ import annotations

from feedcore.merge.gap_repair import GapRepair, RepairConfig
from feedcore.merge.place import BEGINNING, Place

LOOKING_FOR_START = 0  # no input_seq: the subscription's first message is looked for


class FirstGap:
    """What is missing next.

    Args:
        config: timers.

    Attributes:
        repair: when to ask and when to give up.
        known_end_input_seq, known_end_message_seq: the furthest place any packet or heartbeat showed. Plain
            numbers, because every packet looks at them.
        patience_end: how much of it was known when patience with this gap began: only that has been waited for.
    """

    def __init__(self, config: RepairConfig) -> None:
        self.repair = GapRepair(config)
        self.known_end_input_seq, self.known_end_message_seq = BEGINNING
        self.patience_end = BEGINNING
        self._first_input_seq = LOOKING_FOR_START

    @property
    def known_end(self) -> Place:
        """The furthest place any packet or heartbeat showed."""
        return Place(self.known_end_input_seq, self.known_end_message_seq)

    def hear_of(self, place: Place) -> None:
        """The channel goes at least to here."""
        if place.input_seq > self.known_end_input_seq:
            self.known_end_input_seq, self.known_end_message_seq = place

    def forget_from(self, place: Place) -> None:
        """Nothing that was heard beyond here counts."""
        if self.known_end_input_seq > place.input_seq:
            self.known_end_input_seq, self.known_end_message_seq = place
        self.patience_end = min(self.patience_end, place)

    def is_open_at(self, first_input_seq: int, now_ns: int) -> None:
        """Something is missing from here on (or `LOOKING_FOR_START`)."""
        if self.repair.opened(now_ns):
            self.patience_end = self.known_end
        elif first_input_seq != self._first_input_seq:
            self.patience_end = self.known_end
            self.repair.progressed(now_ns)
        self._first_input_seq = first_input_seq

    def is_after(self, next_input_seq: int | None, next_message_seq: int | None) -> bool:
        """True if more is known to exist than what comes before these; without an `input_seq`, by messages alone."""
        if next_input_seq is None:
            return 0 < (next_message_seq or 0) < self.known_end_message_seq
        return next_input_seq < self.known_end_input_seq
