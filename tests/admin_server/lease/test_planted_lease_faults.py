"""Faults planted in the lease core, each a small change of one method. The state machine must detect each of them.

If it misses one, no rule leads to the fault, or no invariant checks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tandemfeed.admin_server.lease.candidates import Candidates
from tandemfeed.admin_server.lease.lease_core import FeedLease
from tandemfeed.admin_server.lease.lease_terms import Terms
from tests.admin_server.lease.lease_by_hand import MS
from tests.admin_server.lease.test_lease_machine import LeaseMachine
from tests.simulation.mutants.mutant import Method, always
from tests.simulation.mutants.store import (
    believes_a_restored_holder,
    has_no_last_backup,
    renews_whatever_it_once_gave,
    takes_the_worst,
)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and the change that makes the correct method faulty."""

    what: str
    owner: type
    method: str
    change: Callable[[Method], Method]


def _announces_longer_terms_than_noted(right: Method) -> Method:
    return lambda self, now_ns: (right(self, now_ns)[0], [])


FAULTS = (
    Fault(
        "the end of an unproven restored holder's stream vacates the lease",
        FeedLease,
        "_end_of_holder",
        believes_a_restored_holder,
    ),
    Fault("the worst candidate is granted", Candidates, "best", takes_the_worst),
    Fault("the last synchronised backup is failed", FeedLease, "refusal_to_fail", has_no_last_backup),
    Fault("every candidate waits five seconds", FeedLease, "_patience_ns", always(5_000 * MS)),
    Fault("a former holder renews", FeedLease, "_may_renew", renews_whatever_it_once_gave),
    Fault("an unrecorded term is announced", Terms, "begin", _announces_longer_terms_than_noted),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_the_state_machine_detects_every_planted_fault(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault.owner, fault.method, fault.change(fault.owner.__dict__[fault.method]))
    hunt = settings(
        max_examples=2_000,
        stateful_step_count=50,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises((AssertionError, ExceptionGroup)):
        run_state_machine_as_test(LeaseMachine, settings=hunt)  # type: ignore[no-untyped-call]
