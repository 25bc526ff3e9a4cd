"""Faults in the lease core that the simulator can catch; tests/admin_server has more of them."""

from __future__ import annotations

from typing import Any

from tandemfeed.admin_server.candidates import Candidates
from tandemfeed.admin_server.lease_core import FeedLease, Granted
from tests.simulation.mutants.mutant import Method, Mutant, always
from tests.simulation.plan import MS
from tests.simulation.scenarios import Scenario


def _reuses_the_epoch(right: Method) -> Method:
    def consider(self: FeedLease, now_ns: int) -> Any:
        decisions = right(self, now_ns)
        if decisions and self.epoch > 1:
            self.epoch -= 1
            return [Granted(self.holder, self.epoch)]
        return decisions

    return consider


def _forgets_reservations(right: Method) -> Method:
    def restore(self: FeedLease, epoch: int, *arguments: Any, **named: Any) -> None:
        right(self, epoch, *arguments, **{**named, "next_epoch": epoch + 1})

    return restore


def believes_a_restored_holder(right: Method) -> Method:
    def end(self: FeedLease, adapter_id: int, reason: Any, now_ns: int) -> Any:
        self._is_unproven = False
        return right(self, adapter_id, reason, now_ns)

    return end


def takes_the_worst(right: Method) -> Method:
    def best(self: Candidates, now_ns: int) -> int | None:
        return max(((self._rank_key(each), key) for key, each in self.eligible(now_ns).items()), default=(None, None))[
            1
        ]

    return best


def has_no_last_backup(right: Method) -> Method:
    def refusal(self: FeedLease, *arguments: Any, **named: Any) -> str | None:
        text: str | None = right(self, *arguments, **named)
        return None if text == "is the last synchronised backup" else text

    return refusal


def renews_whatever_it_once_gave(right: Method) -> Method:
    return lambda self, adapter_id, epoch, now_ns: self.holder in (0, adapter_id)


STORE = (
    Mutant("the lease store grants an epoch twice", FeedLease, "_consider", _reuses_the_epoch),
    Mutant(
        "a restored store forgets reserved epochs",
        FeedLease,
        "restore",
        _forgets_reservations,
        scenario=Scenario.RESTORED,
    ),
    Mutant(
        "the end of the stream of a restored, unproven holder vacates the lease immediately",
        FeedLease,
        "_end_of_holder",
        believes_a_restored_holder,
        scenario=Scenario.RESTORED,
    ),
    Mutant("the worst candidate is granted", Candidates, "best", takes_the_worst, scenario=Scenario.OUTAGES),
    Mutant(
        "the last synchronised backup is failed",
        FeedLease,
        "refusal_to_fail",
        has_no_last_backup,
        scenario=Scenario.DAMAGE,
    ),
    Mutant(
        "every candidate waits five seconds", FeedLease, "_patience_ns", always(5_000 * MS), scenario=Scenario.OUTAGES
    ),
    Mutant(
        "an earlier holder can renew its lease",
        FeedLease,
        "_may_renew",
        renews_whatever_it_once_gave,
        seed_count_max=600,
        scenario=Scenario.OUTAGES,
        is_long=True,
    ),
)
