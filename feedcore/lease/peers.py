"""What this adapter knows about the others: their newest states, and whether they consent to extend a lease
(docs/protocol.md clause 6.7).

A peer's promise to abstain from grants counts from the moment when this adapter sent the report that the promise
answers. So after a pause, a process finds only expired promises in its queues.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandemfeed.feedcore.replica.channel_state import PeerState

REPORTS_REMEMBERED = 512  # several readers request a report at every sync interval; this covers some seconds


@dataclass(frozen=True, slots=True)
class ConsentConfig:
    """Times, all derived from the sync interval.

    Attributes:
        contact_ns: an admin server that is silent for this long is out of contact.
        abstain_ns: an adapter that reports that it abstains accepts no grant for this long.
        fresh_ns: a peer's state older than this is ignored.
        settle_ns: an adapter that is back in contact and hears an active abstains for as long as it was out of contact,
            but at most this long, because the active may take longer to reconnect.
    """

    contact_ns: int
    abstain_ns: int
    fresh_ns: int
    settle_ns: int

    @classmethod
    def of(cls, sync_interval_ns: int) -> ConsentConfig:
        contact_ns = 2 * sync_interval_ns + sync_interval_ns // 2
        return cls(contact_ns, 4 * sync_interval_ns, 3 * sync_interval_ns, 20 * sync_interval_ns)

    def __post_init__(self) -> None:
        assert self.abstain_ns > self.fresh_ns  # a promise outlives the reports that renew it


class Peers:
    """The other adapters of the feed.

    Attributes:
        others: the ids of all of them, including those not heard yet.
        report_id: the id of this adapter's newest report to them.
    """

    def __init__(self, own_id: int, config: ConsentConfig) -> None:
        self.others: frozenset[int] = frozenset()
        self.report_id = 0
        self._own_id, self._config = own_id, config
        self._states: dict[int, PeerState] = {}
        self._heard_at_ns: dict[int, int] = {}
        self._sent_at_ns: dict[int, int] = {}  # by report_id
        self._announced: dict[int, int] = {}  # adapter_id -> the incarnation of its newest start

    def announce(self, incarnations: Mapping[int, int]) -> None:
        """The admin server announces the newest start of each adapter: no state of a later one is genuine, so none may
        outrank what the adapter reports from now on."""
        self._announced = dict(incarnations)
        for adapter_id in [each for each, state in self._states.items() if not self.is_announced(state)]:
            del self._states[adapter_id], self._heard_at_ns[adapter_id]

    def is_announced(self, state: PeerState) -> bool:
        """False if a state names a later start of its adapter than the admin server announced."""
        return state.incarnation <= self._announced.get(state.adapter_id, state.incarnation)

    def note(self, state: PeerState, now_ns: int) -> bool:
        """Take a state. Returns False, and ignores it, unless it is newer than the known state of the same adapter."""
        known = self._states.get(state.adapter_id)
        if known is not None and (state.incarnation, state.report_id) <= (known.incarnation, known.report_id):
            return False
        self._states[state.adapter_id], self._heard_at_ns[state.adapter_id] = state, now_ns
        return True

    def on_report_sent(self, now_ns: int) -> None:
        """Note that this adapter sends its next report."""
        self.report_id += 1
        self._sent_at_ns[self.report_id] = now_ns
        self._sent_at_ns.pop(self.report_id - REPORTS_REMEMBERED, None)

    def heard_report_ids(self) -> dict[int, int]:
        """By adapter_id, the newest report heard."""
        return {adapter_id: state.report_id for adapter_id, state in self._states.items()}

    def fresh(self, now_ns: int) -> list[PeerState]:
        """The states of the peers heard recently."""
        fresh_ns = self._config.fresh_ns
        return [state for each, state in self._states.items() if now_ns - self._heard_at_ns[each] < fresh_ns]

    def consent_until_ns(self, epoch: int) -> int:
        """Until when all others promise to accept no grant; 0 if one has not promised or knows a newer epoch."""
        until_ns = 1 << 62
        for adapter_id in self.others:
            state = self._states.get(adapter_id)
            if state is None or not state.abstains or known_epoch(state) > epoch:
                return 0
            sent_at_ns = self._sent_at_ns.get(state.heard_report_ids.get(self._own_id, 0))
            if sent_at_ns is None:
                return 0
            until_ns = min(until_ns, sent_at_ns + self._config.abstain_ns)
        return until_ns if self.others else 0


def known_epoch(state: PeerState) -> int:
    """The newest epoch that an adapter knows."""
    return max((channel.lineage.epoch for channel in state.channels), default=0)
