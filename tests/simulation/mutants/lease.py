"""Faults in an adapter's view of its lease, in promises and consent, and in leaving the group."""

from __future__ import annotations

from typing import Any

from tandemfeed.admin_server.lease.lease_core import FeedLease
from tandemfeed.feedcore.lease.admin_contact import AdminContact
from tandemfeed.feedcore.lease.holder_clock import MARGIN_PER_TTL, HolderClock
from tandemfeed.feedcore.lease.lease_view import LeaseView
from tandemfeed.feedcore.lease.peers import Peers
from tandemfeed.feedcore.replica.channel import Channel
from tandemfeed.feedcore.replica.engine import AdapterEngine
from tests.simulation.mutants.mutant import Method, Mutant, always
from tests.simulation.scenarios import Scenario

FOREVER_NS = 1 << 62
MS = 1_000_000


def _never_ends(right: Method) -> Method:
    return lambda self, epoch, valid_until_ns, now_ns: right(self, epoch, FOREVER_NS, now_ns)


def _counts_from_now(right: Method) -> Method:
    def on_granted(self: LeaseView, epoch: int, valid_until_ns: int, now_ns: int) -> bool:
        return bool(right(self, epoch, max(valid_until_ns, now_ns + 4 * self._renew_every_ns), now_ns))

    return on_granted


def _records_a_later_time(right: Method) -> Method:
    return lambda self, now_ns: right(self, now_ns + 100 * MS)


def _counts_from_the_newest_report(right: Method) -> Method:
    return lambda self, report_id, ttl_ns: right(self, self._report_id, ttl_ns)


def _counts_the_whole_term(right: Method) -> Method:
    return lambda self, report_id, ttl_ns: right(self, report_id, ttl_ns) + ttl_ns // MARGIN_PER_TTL


def _believes_old_epochs(right: Method) -> Method:
    def on_granted(self: LeaseView, epoch: int, valid_until_ns: int, now_ns: int) -> bool:
        newest, self.last_epoch = self.last_epoch, min(self.last_epoch, epoch - 1)
        is_believed = bool(right(self, epoch, valid_until_ns, now_ns))
        self.last_epoch = max(newest, self.last_epoch)
        return is_believed

    return on_granted


def _keeps_transmitting(right: Method) -> Method:
    def note_epoch(self: AdapterEngine, epoch: int, why: str, now_ns: int) -> list[Any]:
        self.lease.note_epoch(epoch)
        return []

    return note_epoch


def _counts_promises_from_arrival(right: Method) -> Method:
    def consent(self: Peers, epoch: int) -> int:
        if not right(self, epoch):
            return 0
        return min(self._heard_at_ns[each] for each in self.others) + self._config.abstain_ns

    return consent


def _ignores_peers_that_never_reported(right: Method) -> Method:
    def consent(self: Peers, epoch: int) -> int:
        all_others, self.others = self.others, frozenset(self.others & self._states.keys())
        until_ns = int(right(self, epoch))
        self.others = all_others
        return until_ns

    return consent


def _accepts_any_report(right: Method) -> Method:
    def note(self: Peers, state: Any, now_ns: int) -> bool:
        self._states.pop(state.adapter_id, None)
        return bool(right(self, state, now_ns))

    return note


def _settles_forever(right: Method) -> Method:
    return lambda self, epoch, now_ns: self._settles_until_ns > 0


def _forgets_that_it_handed_over(right: Method) -> Method:
    def hand_over(self: AdapterEngine, reason: str, now_ns: int) -> Any:
        self._has_handed_over = False
        return right(self, reason, now_ns)

    return hand_over


LEASE = (
    Mutant("a lease never ends at its holder", LeaseView, "on_granted", _never_ends),
    Mutant(
        "the term of a grant counts from its arrival",
        LeaseView,
        "on_granted",
        _counts_from_now,
        killer="tests.feedcore.lease.test_lease_view:test_a_grant_that_has_expired_on_its_way_is_not_believed",
    ),
    Mutant(
        "a report is recorded as sent later than it was",
        HolderClock,
        "on_report_sent",
        _records_a_later_time,
    ),
    Mutant(
        "a lease counts from the newest report, whichever was answered",
        HolderClock,
        "valid_until_ns",
        _counts_from_the_newest_report,
        killer="tests.feedcore.lease.test_holder_clock:test_a_lease_counts_from_when_its_report_was_sent_less_a_tenth_of_the_term",
    ),
    Mutant(
        "a lease counts without a margin",
        HolderClock,
        "valid_until_ns",
        _counts_the_whole_term,
        killer="tests.feedcore.lease.test_holder_clock:test_a_lease_counts_from_when_its_report_was_sent_less_a_tenth_of_the_term",
    ),
    Mutant(
        "grants of old epochs are believed",
        LeaseView,
        "on_granted",
        _believes_old_epochs,
        killer="tests.feedcore.lease.test_lease_view:test_a_grant_of_an_epoch_that_was_held_before_is_not_believed",
    ),
    Mutant(
        "an active that learns of a newer epoch continues until the end of its term",
        AdapterEngine,
        "_note_epoch",
        _keeps_transmitting,
        scenario=Scenario.OUTAGES,
    ),
    Mutant(
        "a promise counts from its arrival",
        Peers,
        "consent_until_ns",
        _counts_promises_from_arrival,
        killer="tests.feedcore.lease.test_consent:test_a_paused_active_that_resumes_believes_no_old_promise",
    ),
    Mutant(
        "the consent of peers that never reported is not needed",
        Peers,
        "consent_until_ns",
        _ignores_peers_that_never_reported,
        killer="tests.feedcore.lease.test_consent:test_one_silent_adapter_is_enough_to_withhold_consent",
    ),
    Mutant(
        "an older report of a peer replaces a newer one",
        Peers,
        "note",
        _accepts_any_report,
        killer="tests.feedcore.lease.test_consent:test_a_report_that_a_newer_one_overtook_gives_no_consent",
    ),
    Mutant(
        "a backup that is back in contact settles forever",
        AdminContact,
        "is_settling",
        _settles_forever,
        scenario=Scenario.OUTAGES,
    ),
    Mutant(
        "a backup that is back in contact does not settle",
        AdminContact,
        "is_settling",
        always(False),
        killer="tests.feedcore.lease.test_consent:test_back_in_contact_a_backup_abstains_for_as_long_as_it_was_out_of_it",
    ),
    Mutant(
        "a promise to abstain is forgotten immediately",
        AdminContact,
        "abstain",
        always(None),
        killer="tests.feedcore.lease.test_consent:test_an_adapter_that_promised_to_abstain_acts_on_a_grant_only_after_the_promise_has_ended",
    ),
    Mutant(
        "an active that is unfit stays active",
        AdapterEngine,
        "_hand_over_unfit",
        always(None),
        killer="tests.feedcore.lease.test_leaving_the_group:test_an_active_that_is_unfit_hands_over_and_then_requests_to_be_failed",
    ),
    Mutant(
        "two unfit adapters pass the lease to and fro",
        AdapterEngine,
        "_hand_over_unfit",
        _forgets_that_it_handed_over,
        killer="tests.feedcore.lease.test_leaving_the_group:test_an_active_that_is_unfit_and_hears_no_peer_lets_the_admin_server_choose_until_it_has_handed_over",
    ),
    Mutant(
        "no backup ever asks to be failed",
        AdapterEngine,
        "_consider_leaving",
        always([]),
        killer="tests.feedcore.lease.test_leaving_the_group:test_a_backup_requests_to_be_failed_and_follows_the_admin_servers_decision",
    ),
    Mutant(
        "a backup takes its own pause for a silence of the active",
        Channel,
        "on_own_pause",
        always(None),
        scenario=Scenario.PAUSES,
    ),
    Mutant(
        "an adapter takes its own pause for an outage of the server",
        AdminContact,
        "on_own_pause",
        always(None),
        killer="tests.feedcore.replica.test_own_pauses:test_a_backup_that_was_paused_does_not_take_the_active_for_silent",
    ),
    Mutant(
        "the lease store takes its own pause for a silence of the holder",
        FeedLease,
        "note_time",
        always(None),
        scenario=Scenario.PAUSES,
    ),
)
