"""Where a merge was when it went back, so that it can continue from there.

A merge goes back when a newer epoch began before what it has delivered. If that epoch's active dies before any adapter
follows it, a later history has again what was delivered. Perhaps no adapter has those messages any more, so the merge
must not depend on receiving them again.
"""

from __future__ import annotations

from collections import deque

from tandemfeed.feedcore.merge.history.place import BEGINNING, Place, first_place
from tandemfeed.feedcore.wire.lineage import Lineage

FORMER_COUNT_MAX = 4  # actives that died, one after another, before any adapter followed their epochs


class FormerPlaces:
    """The last places from which one channel's merge went back, each with the history that it followed then."""

    def __init__(self) -> None:
        self._places: deque[tuple[Lineage, Place]] = deque(maxlen=FORMER_COUNT_MAX)

    def note(self, lineage: Lineage, place: Place) -> None:
        """Note that everything before this place was delivered, and that the merge goes back from there."""
        self._places.append((lineage, place))

    def furthest_in(self, lineage: Lineage) -> Place:
        """The furthest place before which everything that is part of this history was delivered."""
        furthest = BEGINNING
        for former, place in self._places:
            if not set(former.entries).isdisjoint(lineage.entries):  # else nothing shows what they have in common
                fork = former.fork_from(lineage)
                assert fork is not None, "a history that is followed later has a newer epoch"
                furthest = max(furthest, min(place, first_place(fork)))
        return furthest
