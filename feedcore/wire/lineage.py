"""The epochs that make up a channel's present history, and where each begins.

An epoch begins where its active's own history ended. That history may lack an epoch that others saw, because its
active died before any adapter followed it. So only the newest epoch determines which older epochs count, and up to
where: its lineage, like PostgreSQL's timeline history. Every heartbeat carries it (docs/protocol.md clause 4.2).

Invariant: along a lineage, epochs grow, and their first `input_seq` and `message_seq` never decrease. The lineage of an
epoch never changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from tandemfeed.feedcore.wire.layout import Layout
from tandemfeed.feedcore.wire.position import FIRST_SEQ, SEQ_MAX, Run
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal

ENTRY_LAYOUT = Layout(("epoch", "I"), ("first_input_seq", "Q"), ("first_message_seq", "Q"))
ENTRY = ENTRY_LAYOUT.struct
ENTRY_SIZE = ENTRY_LAYOUT.size
ENTRIES_MAX = 12  # packets of older epochs were delivered long ago
UNLIMITED = 1 << 63


class EpochStart(NamedTuple):
    """The position where one epoch of a history begins."""

    epoch: int
    first_input_seq: int
    first_message_seq: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """The newest epochs of one history, ascending.

    Attributes:
        entries: empty before any epoch.
        epoch: the newest epoch; 0 before any. A plain attribute, because every packet reads it.
        first_input_seq: where the newest epoch begins.
        first_message_seq: where the newest epoch begins.
    """

    entries: tuple[EpochStart, ...] = ()
    epoch: int = field(init=False, repr=False, compare=False)
    first_input_seq: int = field(init=False, repr=False, compare=False)
    first_message_seq: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        newest = self.entries[-1] if self.entries else EpochStart(0, FIRST_SEQ, FIRST_SEQ)
        object.__setattr__(self, "epoch", newest.epoch)
        object.__setattr__(self, "first_input_seq", newest.first_input_seq)
        object.__setattr__(self, "first_message_seq", newest.first_message_seq)

    def opened(self, epoch: int, first_input_seq: int, first_message_seq: int) -> Lineage:
        """This history with a new epoch appended."""
        assert epoch > self.epoch, f"epoch {epoch} cannot follow epoch {self.epoch}; epochs only grow"
        assert first_input_seq >= self.first_input_seq
        assert first_message_seq >= self.first_message_seq
        return Lineage((*self.entries, EpochStart(epoch, first_input_seq, first_message_seq))[-ENTRIES_MAX:])

    def end_of(self, epoch: int) -> int:
        """The last `input_seq` that an epoch decided in this history, plus one; 0 if it decided none."""
        for place, start in enumerate(self.entries):
            if start.epoch == epoch:
                return self.entries[place + 1].first_input_seq if place + 1 < len(self.entries) else UNLIMITED
            if start.epoch > epoch:
                return start.first_input_seq if place == 0 else 0  # everything before the oldest entry is settled
        return 0

    def holds(self, epoch: int, next_input_seq: int) -> bool:
        """True if a position in `epoch` is part of this history. Epoch 0 (before any) is part of every history.

        False for an epoch older than the oldest entry, because it cannot be judged. An epoch that decided nothing
        counts too: it may have a conversion state of its own, carried over from another session.
        """
        if not epoch:
            return next_input_seq == FIRST_SEQ
        return any(entry.epoch == epoch for entry in self.entries) and next_input_seq <= self.end_of(epoch)

    def covers(self, run: Run) -> bool:
        """True if a decision is part of this history."""
        return run.end_input_seq <= self.end_of(run.epoch)

    def up_to(self, epoch: int) -> Lineage:
        """This history up to one of its epochs."""
        return Lineage(tuple(entry for entry in self.entries if entry.epoch <= epoch))

    def fork_from(self, other: Lineage) -> EpochStart | None:
        """The first epoch that only one of the two histories has; None if they are the same.

        From its `first_input_seq` on, the two assign decisions to different epochs.
        """
        ours, theirs = {entry.epoch: entry for entry in self.entries}, {entry.epoch: entry for entry in other.entries}
        oldest = max(min(ours, default=0), min(theirs, default=0))
        foreign = [ours.get(epoch) or theirs[epoch] for epoch in ours.keys() ^ theirs.keys() if epoch >= oldest]
        return min(foreign, key=lambda entry: entry.first_input_seq, default=None)

    def encode(self, size_max: int) -> bytes:
        """Encode the newest entries that fit as a heartbeat's payload."""
        entries = self.entries[-(size_max // ENTRY_SIZE) :] if size_max >= ENTRY_SIZE else ()
        return b"".join(ENTRY.pack(*entry) for entry in entries)


def decode_lineage(payload: bytes) -> Lineage:
    """Decode the lineage in a heartbeat's payload.

    Raises:
        PacketRefused: MALFORMED.
    """
    if len(payload) % ENTRY_SIZE or len(payload) > ENTRIES_MAX * ENTRY_SIZE:
        raise PacketRefused(
            Refusal.MALFORMED, f"a lineage has {len(payload)} bytes; its entries have {ENTRY_SIZE} each"
        )
    return checked_lineage(ENTRY.iter_unpack(payload))


def checked_lineage(entries: Iterable[tuple[int, int, int]]) -> Lineage:
    """A lineage as a peer reports it.

    Raises:
        PacketRefused: MALFORMED if epochs do not grow, numbers decrease, or a number exceeds `SEQ_MAX`.
    """
    found = tuple(EpochStart(*map(int, entry)) for entry in entries)
    for older, newer in pairwise((EpochStart(0, FIRST_SEQ, FIRST_SEQ), *found)):
        is_ordered = older.first_input_seq <= newer.first_input_seq <= SEQ_MAX
        is_ordered = is_ordered and older.first_message_seq <= newer.first_message_seq <= SEQ_MAX
        if not (older.epoch < newer.epoch and is_ordered):
            raise PacketRefused(Refusal.MALFORMED, f"an impossible lineage: {found[:ENTRIES_MAX]}")
    return Lineage(found[-ENTRIES_MAX:])
