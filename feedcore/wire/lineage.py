"""Which epoch's numbering holds where: the epochs that a channel's present history is built from.

An epoch begins where its active's own history ended, and that history may lack an epoch in between which others heard
of (its active died before anybody followed it). So the newest epoch alone says which older ones count and up to where:
its lineage, as PostgreSQL's timeline histories do it. Every heartbeat carries it (docs/protocol.md clause 4.2).

Invariant: epochs grow and their first `message_seq` never shrink along a lineage; an epoch has one lineage, for ever.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from feedcore.wire.position import FIRST_SEQ, Run
from feedcore.wire.refusal import PacketRefused, Refusal

ENTRY = struct.Struct("<IQ")  # epoch, its first message_seq
ENTRIES_MAX = 12  # packets of older epochs have long been delivered; 144 bytes fit into the smallest datagram
UNLIMITED = 1 << 63


@dataclass(frozen=True, slots=True)
class Lineage:
    """The newest epochs of one history, ascending.

    Attributes:
        entries: (epoch, first `message_seq`) each; empty before any epoch.
        epoch: the newest; 0 before any. Every packet asks for it, so it is no property.
        first_message_seq: where the newest epoch begins.
    """

    entries: tuple[tuple[int, int], ...] = ()
    epoch: int = field(init=False, repr=False, compare=False)
    first_message_seq: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        epoch, first = self.entries[-1] if self.entries else (0, FIRST_SEQ)
        object.__setattr__(self, "epoch", epoch)
        object.__setattr__(self, "first_message_seq", first)

    def opened(self, epoch: int, first_message_seq: int) -> Lineage:
        """This history, continued by a new epoch."""
        assert epoch > self.epoch, f"epoch {epoch} after {self.epoch}: epochs only grow"
        assert first_message_seq >= self.first_message_seq
        return Lineage((*self.entries, (epoch, first_message_seq))[-ENTRIES_MAX:])

    def end_of(self, epoch: int) -> int:
        """One past the last `message_seq` for which an epoch's numbering holds; 0: for none, it is no part of this."""
        for place, (known, first) in enumerate(self.entries):
            if known == epoch:
                return self.entries[place + 1][1] if place + 1 < len(self.entries) else UNLIMITED
            if known > epoch:
                return first if place == 0 else 0  # before the oldest that is remembered everything is settled
        return 0

    def holds(self, epoch: int, next_message_seq: int) -> bool:
        """True if whoever stands at this position, having followed `epoch` last, stands in this history; of epochs
        that are forgotten nobody can say so."""
        if next_message_seq == FIRST_SEQ:
            return True
        return self.start_of(epoch) is not None and next_message_seq <= self.end_of(epoch)

    def covers(self, run: Run) -> bool:
        """True if a decision is part of this history; one that made no message and stands at the very end may be."""
        end = self.end_of(run.epoch)
        if end == FIRST_SEQ and self.start_of(run.epoch) is None:
            return False  # nothing is before the first message: the epoch is not forgotten, it is none of this history
        return run.end_message_seq <= end

    def up_to(self, epoch: int) -> Lineage:
        """This history as it was in one of its epochs."""
        return Lineage(tuple(entry for entry in self.entries if entry[0] <= epoch))

    def start_of(self, epoch: int) -> int | None:
        """Where an epoch of this history begins; None if it is none, or forgotten."""
        return next((first for known, first in self.entries if known == epoch), None)

    def parts_at(self, other: Lineage) -> int:
        """The first `message_seq` that the two histories number in different epochs; UNLIMITED if they are the same."""
        ours, theirs = dict(self.entries), dict(other.entries)
        oldest = max(min(ours, default=0), min(theirs, default=0))
        parting = UNLIMITED
        for mine, foreign in ((ours, theirs), (theirs, ours)):
            for epoch, first in mine.items():
                if epoch >= oldest and epoch not in foreign:
                    parting = min(parting, first)
        return parting

    def encode(self, size_max: int) -> bytes:
        """As a heartbeat's payload, the newest entries that fit."""
        entries = self.entries[-(size_max // ENTRY.size) :] if size_max >= ENTRY.size else ()
        return b"".join(ENTRY.pack(*entry) for entry in entries)


def decode_lineage(payload: bytes) -> Lineage:
    """The lineage in a heartbeat's payload.

    Raises:
        PacketRefused: MALFORMED.
    """
    if len(payload) % ENTRY.size or len(payload) > ENTRIES_MAX * ENTRY.size:
        raise PacketRefused(Refusal.MALFORMED, f"a lineage of {len(payload)} bytes")
    return checked_lineage(ENTRY.iter_unpack(payload))


def checked_lineage(entries: Iterable[tuple[int, int]]) -> Lineage:
    """A lineage as a peer tells it.

    Raises:
        PacketRefused: MALFORMED if it cannot be one.
    """
    found = tuple((int(epoch), int(first)) for epoch, first in entries)
    newest, begin = 0, FIRST_SEQ
    for epoch, first in found:
        if epoch <= newest or first < begin:
            raise PacketRefused(Refusal.MALFORMED, f"a lineage {found[:ENTRIES_MAX]}")
        newest, begin = epoch, first
    return Lineage(found[-ENTRIES_MAX:])
