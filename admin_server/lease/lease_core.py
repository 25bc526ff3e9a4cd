"""Which adapter is active: the lease store's decisions, sans-I/O. Reports and time in, grants and offers out.

Rules (docs/protocol.md clause 6): each feed has one lease; every grant opens a new epoch; epochs only grow. A lease
ends when its holder's stream ends (immediately if the process died), when its term passes without renewal, when its
holder gives it up, or when it is handed over: the next epoch is offered to an heir, which opens it when it hears that
the previous epoch has ended.

Invariant: while a holder may rely on its lease and its stream is open, no other adapter is granted the lease; while an
heir may rely on an offer, only the heir can succeed the holder. No epoch is ever promised to two adapters. After a
restart of the store only an expired term ends the restored lease, until its holder renews it, because the newest
recorded holder may not be the newest actual holder.

A pause of the store is not a silence of adapters: their reports and renewals wait in its queues. So it adds the pause
to every time that it waits for them (`feedcore.hiccup`), before it ends a term or chooses a candidate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandemfeed.admin_server.lease.candidates import CandidateReport, Candidates
from tandemfeed.admin_server.lease.lease_decisions import (
    HOLDER_CONTINUED,
    Granted,
    HandedOver,
    HandOverRefused,
    LeaseDecision,
    Offered,
    OfferWithdrawn,
    OrderedHandOver,
    Renewed,
    Vacated,
)
from tandemfeed.admin_server.lease.lease_terms import LeaseConfig, Terms
from tandemfeed.admin_server.lease.takeovers import Takeover, TakeoverReason, Takeovers
from tandemfeed.feedcore.hiccup import OwnPauses
from tandemfeed.feedcore.replica.roles.states import ReplicaState

__all__ = ["FeedLease", "Granted", "LeaseConfig", "LeaseDecision", "Offer", "Vacated"]

UNKNOWN_HOLDER = -1  # after a restart: an adapter may hold a lease that was not recorded


@dataclass(slots=True)
class Offer:
    """The next epoch, promised to an heir.

    Attributes:
        until_ns: when the heir stops relying on the offer.
        reason: why the lease changes hands.
        is_accepted: the heir has received the offer, and the holder was ordered to end its epoch.
    """

    heir: int
    epoch: int
    until_ns: int
    reason: TakeoverReason
    is_accepted: bool = False


class FeedLease:
    """The lease of one feed.

    Args:
        adapters: the feed's configured adapters; if empty they are unknown, and a better candidate may always appear.

    Attributes:
        epoch: the newest epoch that any adapter held; 0: none.
        holder: the holder's adapter_id; 0: no adapter holds the lease; or `UNKNOWN_HOLDER`.
        next_epoch_number: the next epoch to grant or offer; no lower one is ever promised again.
        terms: the length of lease terms.
        takeovers: the takeovers so far, with their reasons.
        resumed_at_ns: when the store's last pause ended; 0: it was never paused.
    """

    def __init__(self, config: LeaseConfig, adapters: frozenset[int] = frozenset()) -> None:
        self.config = config
        self.candidates = Candidates(adapters, config.fresh_ns)
        self.terms, self.takeovers = Terms(config), Takeovers()
        self.epoch = 0
        self.holder = 0
        self.next_epoch_number = 1
        self.offer: Offer | None = None
        self._until_ns = 0
        self._last_holder = 0  # the holder of `epoch`, while the same process may still continue in it
        self._waiting_since_ns: int | None = None  # a candidate exists, but a better one may appear
        self._due_ns: int | None = None  # when the candidate stops waiting
        self._is_unproven = False  # the lease was restored and has not been renewed since
        self._awaited_holder = 0  # held the restored lease and has not returned, but may still be active
        self._expired_holder = 0  # its term passed: taken for dead, unless the same process reports again
        self._late_until_ns = 0  # until then, twice the term would have been enough for that process
        self._pauses = OwnPauses(config.pause_after_ns)
        self._served_at_ns = self.resumed_at_ns = 0
        self._extended_ns = 0  # by how much pauses of the store have extended the present term

    def restore(
        self,
        epoch: int,
        holder: int,
        now_ns: int,
        next_epoch: int,
        failed: Mapping[int, str] | None = None,
        noted_ttl_ns: int = 0,
        drained: Mapping[int, str] | None = None,
    ) -> None:
        """Restore the lease after a restart of the store: for one term, the last holder may still rely on it.

        Args:
            epoch: the newest epoch known to have been granted; 0: none.
            next_epoch: the next epoch to grant; epochs between the two may have been granted without a record.
            failed, drained: adapter_id -> reason.
            noted_ttl_ns: the longest term that may have been announced; 0: the configured one.
        """
        self.candidates.failed, self.candidates.drained = dict(failed or {}), dict(drained or {})
        self.next_epoch_number = next_epoch
        if epoch:
            self.epoch, self.holder = epoch, holder or UNKNOWN_HOLDER
            self._last_holder = self._awaited_holder = holder
            self._until_ns = self.terms.restore(noted_ttl_ns, now_ns)
            self._is_unproven = True

    def skip_epochs(self, after: int) -> None:
        """Grant and offer only epochs after this one, which an adapter has been in."""
        self.next_epoch_number = max(self.next_epoch_number, after + 1)

    # ---- adapters attend, report, renew, leave ----

    def on_attend(self, adapter_id: int, now_ns: int) -> list[LeaseDecision]:
        """The stream of a new adapter process began; the process holds no lease."""
        self.note_time(now_ns)
        self._forget(adapter_id)
        decisions = self._withdraw_from(adapter_id, "the adapter restarted")
        decisions += self._end_of_holder(adapter_id, TakeoverReason.PROCESS_ENDED, now_ns)
        self.candidates.attend(adapter_id)
        return decisions + self._consider(now_ns)

    def on_resume(self, adapter_id: int) -> None:
        """The same adapter process opened its stream again; it may still hold what it held before."""
        self.candidates.resume(adapter_id)

    def on_gone(self, adapter_id: int, now_ns: int, *, has_ended: bool = False) -> list[LeaseDecision]:
        """An adapter's stream ended. Args: has_ended: its process, and not only the stream, is known to have ended."""
        self.note_time(now_ns)
        self.candidates.leave(adapter_id)
        if self._expired_holder == adapter_id:
            self._expired_holder = 0  # it really was gone, so the takeover was necessary
        decisions = self._withdraw_from(adapter_id, "the adapter's stream ended")
        reason = TakeoverReason.PROCESS_ENDED if has_ended else TakeoverReason.STREAM_ENDED
        decisions += self._end_of_holder(adapter_id, reason, now_ns)
        return decisions + self._consider(now_ns)

    def on_report(
        self,
        adapter_id: int,
        state: ReplicaState,
        next_message_seq: int,
        health: float,
        now_ns: int,
        *,
        history_epoch: int = 0,
        abstains: bool = False,
        session: int = 0,
        unheard: frozenset[int] = frozenset(),
    ) -> list[LeaseDecision]:
        """An adapter reported its state."""
        self.note_time(now_ns)
        report = CandidateReport(state, next_message_seq, health, history_epoch, abstains, session, unheard)
        if not self.candidates.report(adapter_id, report, now_ns):
            return []
        self._note_alive(adapter_id, now_ns)
        if adapter_id == self._awaited_holder and state is not ReplicaState.ACTIVE:
            self._awaited_holder = 0
        return self._consider(now_ns)

    def renew(self, adapter_id: int, epoch: int, now_ns: int) -> list[LeaseDecision]:
        """An adapter asks for renewal. If it holds the lease, the last decision is `Renewed`; if not, there is none."""
        self.note_time(now_ns)
        self._note_alive(adapter_id, now_ns)
        decisions: list[LeaseDecision] = []
        if self._is_offered(adapter_id, epoch, now_ns):
            decisions = self._pass_on(now_ns)
        elif not self._may_renew(adapter_id, epoch, now_ns):
            return []
        assert self.candidates.is_attending(adapter_id), "only an attending adapter renews"
        self.holder = adapter_id
        until_ns, noted = self.terms.begin(now_ns)
        self._until_ns = max(self._until_ns, until_ns)
        self._is_unproven, self._awaited_holder, self._extended_ns = False, 0, 0
        self.takeovers.on_continued()
        return [*decisions, *noted, Renewed(adapter_id, epoch)]

    # ---- time ----

    def note_time(self, now_ns: int) -> None:
        """Take the time of an event, as every event does; if this process was paused before it, wait as much longer."""
        pause_ns = self._pauses.take(now_ns)
        self._served_at_ns = now_ns
        if not pause_ns:
            return
        self.resumed_at_ns = now_ns
        # What waits in the queues is read soon. In all, a term is extended by its own length, as after a restart, so a
        # store that is always late still ends the term of a holder that is gone.
        extension_ns = min(max(pause_ns, self.config.read_ns), self.config.term_ns - self._extended_ns)
        self._extended_ns += extension_ns
        if extension_ns:
            self._until_ns = max(self._until_ns, now_ns + extension_ns)
            if self.offer is not None:
                self.offer.until_ns = max(self.offer.until_ns, now_ns + extension_ns)
        if self._waiting_since_ns is not None:
            self._waiting_since_ns += pause_ns
        self.candidates.on_own_pause(pause_ns)

    def on_timer(self, now_ns: int) -> list[LeaseDecision]:
        """A term, an offer or a grace period may have ended."""
        self.note_time(now_ns)
        decisions: list[LeaseDecision] = []
        if self.holder and now_ns >= self._until_ns:
            self.candidates.invalidate_report(self.holder)  # it dates from before the term ended
            if not self._is_unproven:
                self._expired_holder = self.holder
                self._late_until_ns = now_ns + self.terms.ttl_ns + self.config.allowance_ns
            reason = TakeoverReason.RESTORED if self._is_unproven else TakeoverReason.TERM_PASSED
            decisions = self._vacate(reason, now_ns)
        if self.offer is not None and now_ns >= self.offer.until_ns:
            decisions += self._withdraw(HOLDER_CONTINUED)
        return decisions + self._consider(now_ns)

    def next_deadline_ns(self) -> int | None:
        """When `on_timer` may have something to do. The shell that asks calls it then, so a store that is called much
        later was paused with its process."""
        deadline_ns = self._due_ns
        if self.holder:
            deadline_ns = self._until_ns if self.offer is None else min(self._until_ns, self.offer.until_ns)
        self._pauses.expect(deadline_ns, self._served_at_ns)
        return deadline_ns

    # ---- planned changes ----

    def hand_over(self, to: int | None, now_ns: int, *, is_failing: bool = False) -> list[LeaseDecision]:
        """Offer the next epoch to an heir, or refuse. The holder continues until the heir has received the offer.

        Args:
            to: the heir; None: the best synchronised backup.
            is_failing: the holder will be failed afterwards.
        """
        self.note_time(now_ns)
        refused = self._refusal_to_hand_over(to, now_ns)
        if refused is not None:
            return [refused]
        heir = to or self.candidates.heirs(self.holder, now_ns)[0]
        reason = TakeoverReason.FAILED if is_failing else TakeoverReason.HANDED_OVER
        until_ns, noted = self.terms.begin(now_ns)
        self.offer = Offer(heir, self._new_epoch(), until_ns, reason)
        return [*noted, Offered(heir, self.offer.epoch, self.epoch)]

    def on_offer_accepted(self, adapter_id: int, epoch: int, now_ns: int) -> list[LeaseDecision]:
        """The heir has received the offer, so the holder is ordered to end its epoch without a wait for the heir."""
        self.note_time(now_ns)
        offer = self.offer
        if offer is None or offer.is_accepted or (offer.heir, offer.epoch) != (adapter_id, epoch):
            return []
        if now_ns >= offer.until_ns:
            return []
        offer.is_accepted = True
        return [OrderedHandOver(self.holder, self.epoch, offer.heir)]

    def on_released(self, adapter_id: int, epoch: int, now_ns: int) -> list[LeaseDecision]:
        """The holder has given up its epoch: the lease goes to the heir, or without an heir to the best candidate."""
        self.note_time(now_ns)
        if adapter_id != self.holder or epoch != self.epoch:
            return []
        if self.offer is not None and now_ns < self.offer.until_ns:
            return self._pass_on(now_ns)
        self._last_holder = 0
        return self._end_of_holder(adapter_id, TakeoverReason.GIVEN_UP, now_ns) + self._consider(now_ns)

    def next_epoch(self, adapter_id: int, epoch: int, now_ns: int) -> list[LeaseDecision]:
        """The holder asks for a new epoch for itself. Nothing is granted to other adapters, or during a hand-over."""
        self.note_time(now_ns)
        is_holder = (adapter_id, epoch) == (self.holder, self.epoch) and now_ns < self._until_ns
        if not is_holder or self._is_unproven or self.offer is not None:
            return []
        return self._grant(adapter_id, self._new_epoch(), now_ns)

    def refusal_to_fail(
        self, adapter_id: int, now_ns: int, *, is_own_request: bool, is_forced: bool = False
    ) -> str | None:
        """Why an adapter may not be failed, as a text that follows its name; None if it may.

        Args:
            is_own_request: the adapter itself requests it; then another adapter must be able to continue.
            is_forced: an administrator requests it even if no synchronised backup is left.
        """
        if adapter_id == self.holder:
            return "is active; hand over first"
        if self.offer is not None and self.offer.heir == adapter_id:
            return "is taking over the lease"
        if is_forced:
            return None
        in_sync = self.candidates.backups_in_sync(self.holder, now_ns)
        if in_sync == [adapter_id]:
            return "is the last synchronised backup"
        others = [each for each in in_sync if each != adapter_id]
        if is_own_request and not others and self.holder <= 0:
            return "is needed, because no other adapter is active or synchronised"
        return None

    def fail(self, adapter_id: int, reason: str, now_ns: int) -> list[LeaseDecision]:
        """Take an adapter out until it is readmitted. The caller has checked `refusal_to_fail`."""
        assert adapter_id != self.holder, "the active hands over before it is failed"
        self.candidates.failed[adapter_id] = reason
        self._forget(adapter_id)
        return self._consider(now_ns)

    def drain(self, adapter_id: int, reason: str, now_ns: int) -> list[LeaseDecision]:
        """Keep a backup out of leases until it is undrained. The caller has checked `refusal_to_fail`."""
        assert adapter_id != self.holder, "the active hands over before it is drained"
        self.candidates.drained[adapter_id] = reason
        self._forget(adapter_id)
        return self._consider(now_ns)

    def undrain(self, adapter_id: int, now_ns: int) -> list[LeaseDecision]:
        """Let a drained adapter become active again."""
        self.candidates.drained.pop(adapter_id, None)
        return self._consider(now_ns)

    def readmit(self, adapter_id: int) -> None:
        """Return a failed adapter to the feed; reports that it made while it was failed do not count."""
        self.candidates.failed.pop(adapter_id, None)
        self.candidates.invalidate_report(adapter_id)

    # ---- inside ----

    def _note_alive(self, adapter_id: int, now_ns: int) -> None:
        """The process is alive: if its term has just expired, it was late, neither dead nor cut off.

        If takeovers are frequent, a longer term is better even if adapters are silent for long, time and again.
        """
        if adapter_id == self._expired_holder:
            self._expired_holder = 0
            if now_ns < self._late_until_ns or self.takeovers.are_frequent(now_ns, self.config.quiet_ns):
                self.terms.on_needless_takeover(now_ns)

    def _new_epoch(self) -> int:
        epoch = max(self.epoch + 1, self.next_epoch_number)
        self.next_epoch_number = epoch + 1
        return epoch

    def _may_renew(self, adapter_id: int, epoch: int, now_ns: int) -> bool:
        if epoch != self.epoch:
            return False
        if adapter_id == self.holder:
            return now_ns < self._until_ns
        # No other adapter was granted the lease since, and this one never stopped: its peers consented to that, or its
        # connection broke only briefly.
        return self.holder <= 0 and adapter_id == self._last_holder and self.candidates.may_be_active(adapter_id)

    def _is_offered(self, adapter_id: int, epoch: int, now_ns: int) -> bool:
        offer = self.offer
        return offer is not None and (adapter_id, epoch) == (offer.heir, offer.epoch) and now_ns < offer.until_ns

    def _refusal_to_hand_over(self, to: int | None, now_ns: int) -> HandOverRefused | None:
        if self.holder <= 0 or now_ns >= self._until_ns:
            return HandOverRefused("no adapter is active")
        if self._is_unproven:
            return HandOverRefused("is active, but has not renewed its lease since this server started", self.holder)
        if self.offer is not None:
            return HandOverRefused("is already taking over the lease", self.offer.heir)
        heirs = self.candidates.heirs(self.holder, now_ns)
        if to is None:
            return None if heirs else HandOverRefused("there is no synchronised backup")
        return None if to in heirs else HandOverRefused(self.candidates.why_not_heir(to, self.holder, now_ns), to)

    def _forget(self, adapter_id: int) -> None:
        """The adapter will not return to any lease that it held."""
        if self._expired_holder == adapter_id:
            self._expired_holder = 0
        if self._last_holder == adapter_id:
            self._last_holder = 0
        if self._awaited_holder == adapter_id:
            self._awaited_holder = 0

    def _end_of_holder(self, adapter_id: int, reason: TakeoverReason, now_ns: int) -> list[LeaseDecision]:
        if self.holder != adapter_id:
            return []
        if self._is_unproven:
            self.holder = UNKNOWN_HOLDER  # an unrecorded later grant is possible, so only the term ends the lease
            return []
        return self._vacate(reason, now_ns)

    def _vacate(self, reason: TakeoverReason, now_ns: int) -> list[LeaseDecision]:
        self.takeovers.on_vacated(reason, max(self.holder, 0))
        self.holder, self._is_unproven = 0, False
        self._waiting_since_ns = self._due_ns = None
        vacated = Vacated(self.epoch, reason)
        if self.offer is None:
            return [vacated]
        # The heir may already have opened its epoch, so the lease goes to the heir in any case.
        has_lapsed = now_ns >= self.offer.until_ns
        return [vacated, *self._grant(self.offer.heir, self._new_epoch() if has_lapsed else self.offer.epoch, now_ns)]

    def _withdraw_from(self, adapter_id: int, reason: str) -> list[LeaseDecision]:
        return self._withdraw(reason) if self.offer is not None and self.offer.heir == adapter_id else []

    def _withdraw(self, reason: str) -> list[LeaseDecision]:
        assert self.offer is not None
        withdrawn = OfferWithdrawn(self.offer.heir, self.offer.epoch, reason)
        self.offer = None
        return [withdrawn]

    def _pass_on(self, now_ns: int) -> list[LeaseDecision]:
        """Make the heir the holder, for the longer of the two terms, because either adapter may rely on its own."""
        assert self.offer is not None
        former, self.holder, self.epoch = self.holder, self.offer.heir, self.offer.epoch
        self._last_holder = self.holder
        self._until_ns = max(self._until_ns, self.offer.until_ns)
        self.takeovers.on_handed_over(Takeover(now_ns, self.offer.reason, self.epoch, former, self.holder))
        self.offer = None
        return [HandedOver(self.holder, self.epoch, former)]

    def _grant(self, adapter_id: int, epoch: int, now_ns: int) -> list[LeaseDecision]:
        self.holder = self._last_holder = adapter_id
        self.epoch, self.offer = epoch, None
        self._until_ns, noted = self.terms.begin(now_ns)
        self._awaited_holder = self._extended_ns = 0
        self.takeovers.on_granted(adapter_id, epoch, now_ns)
        return [*noted, Granted(adapter_id, epoch)]

    def _patience_ns(self, adapter_id: int, now_ns: int) -> int:
        """How long this candidate must wait for a better one."""
        report = self.candidates.newest_report(adapter_id, now_ns)
        assert report is not None
        if report.is_up_to_date:
            # It is synchronised, so it still hears the active, which will reconnect and renew.
            is_active_heard = self._awaited_holder and report.state is ReplicaState.SYNCHRONIZED
            return self.config.grace_ns if is_active_heard else 0
        if not self.candidates.is_adapter_missing(now_ns):
            return 0
        return self.config.grace_ns if self.epoch else self.config.first_grace_ns

    def _consider(self, now_ns: int) -> list[LeaseDecision]:
        best = None if self.holder else self.candidates.best(now_ns)
        if best is None:
            self._waiting_since_ns = self._due_ns = None
            return []
        if self._waiting_since_ns is None:
            self._waiting_since_ns = now_ns
        self._due_ns = self._waiting_since_ns + self._patience_ns(best, now_ns)
        return self._grant(best, self._new_epoch(), now_ns) if now_ns >= self._due_ns else []
