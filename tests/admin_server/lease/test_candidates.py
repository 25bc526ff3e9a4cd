"""The ranking of candidates, in edge cases that the tests of the lease core do not reach."""

from __future__ import annotations

from tandemfeed.admin_server.lease.candidates import CandidateReport, Candidates
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tests.admin_server.lease.lease_by_hand import ACTIVE, DETACHED, JOINING, SYNCHRONIZED

FRESH_NS = 400


def attending(**adapters: CandidateReport) -> Candidates:
    """Adapters a1, a2 … that attend and have reported this at time 0; no others are configured."""
    ids = {name: int(name[1:]) for name in adapters}
    candidates = Candidates(frozenset(ids.values()), FRESH_NS)
    for name, report in adapters.items():
        candidates.attend(ids[name])
        assert candidates.report(ids[name], report, 0) is True
    return candidates


def report(state: ReplicaState = SYNCHRONIZED, seq: int = 5, **rest: float) -> CandidateReport:
    return CandidateReport(state, seq, rest.pop("health", 0.5), **rest)  # type: ignore[arg-type]


def test_reports_of_an_adapter_that_does_not_attend_are_not_kept() -> None:
    candidates = Candidates(frozenset({1}), FRESH_NS)
    assert candidates.report(1, report(), 0) is False
    candidates.resume(1)
    assert candidates.newest_report(1, 0) is None


def test_an_adapter_that_does_not_attend_has_no_standing_and_cannot_be_active() -> None:
    candidates = attending(a1=report())
    assert candidates.newest_report(2, 0) is None
    assert candidates.may_be_active(2) is False
    assert candidates.is_attending(2) is False


def test_a_report_is_valid_while_it_is_fresh_and_not_a_nanosecond_longer() -> None:
    candidates = attending(a1=report())
    assert candidates.newest_report(1, FRESH_NS) is not None
    assert candidates.newest_report(1, FRESH_NS + 1) is None


def test_an_adapter_that_reports_active_or_has_not_reported_may_be_active() -> None:
    candidates = attending(a1=report(ACTIVE), a2=report(SYNCHRONIZED))
    candidates.attend(3)
    assert [candidates.may_be_active(each) for each in (1, 2, 3)] == [True, False, True]


def test_a_process_that_reopens_its_stream_keeps_its_report() -> None:
    candidates = attending(a1=report())
    candidates.resume(1)
    assert candidates.newest_report(1, 0) == report()
    candidates.attend(1)
    assert candidates.newest_report(1, 0) is None
    candidates.leave(1)
    candidates.leave(1)
    candidates.invalidate_report(1)
    assert not candidates.is_attending(1)


def test_candidates_rank_by_state_epoch_position_provisional_sending_health_and_id() -> None:
    order = [
        ("a9", report(SYNCHRONIZED, 5, history_epoch=2)),
        ("a8", report(DETACHED, 9, history_epoch=1)),
        ("a7", report(ReplicaState.AHEAD, 8, health=0.1)),
        ("a6", report(SYNCHRONIZED, 8, health=0.9)),
        ("a4", report(DETACHED, 8)),
        ("a5", report(SYNCHRONIZED, 8)),
        ("a3", report(ReplicaState.RESYNCHRONIZING, 99, history_epoch=9)),
        ("a2", report(JOINING, 999, history_epoch=9)),
    ]
    candidates = attending(**dict(order))
    for name, each in order:
        best = candidates.best(0)
        assert best == int(name[1:]), each
        candidates.leave(best)
    assert candidates.best(0) is None


def test_heirs_are_the_synchronized_backups_the_best_first() -> None:
    candidates = attending(
        a1=report(ACTIVE),
        a2=report(seq=4),
        a3=report(seq=5),
        a4=report(DETACHED),
        a5=report(abstains=True),
    )
    assert candidates.heirs(1, 0) == [3, 2]
    assert candidates.heirs(3, 0) == [2]


def test_backups_in_sync_are_good_fresh_not_failed_and_not_the_holder() -> None:
    candidates = attending(
        a1=report(SYNCHRONIZED),
        a2=report(DETACHED),
        a3=report(JOINING),
        a4=report(),
        a5=report(abstains=True),
    )
    candidates.failed[4] = "by hand"
    assert candidates.backups_in_sync(1, 0) == [2, 5]
    assert candidates.backups_in_sync(1, FRESH_NS + 1) == []


def test_a_backup_that_no_adapter_hears_is_no_heir_and_does_not_count_as_synchronized() -> None:
    candidates = attending(a1=report(ACTIVE, unheard=frozenset({2})), a2=report(seq=9), a3=report(seq=5))
    assert candidates.heirs(1, 0) == [2, 3]  # the third one hears it
    candidates.report(3, report(seq=5, unheard=frozenset({2})), 0)
    assert candidates.heirs(1, 0) == [3]
    assert candidates.synchronized_backups(1, 0) == [3]
    assert candidates.why_not_heir(2, 1, 0) == (
        "transmits, but its multicast reaches no adapter; check its interface, or its group on the network"
    )


def test_of_two_equal_candidates_the_one_that_is_heard_becomes_active() -> None:
    candidates = attending(a2=report(health=0.9), a3=report(unheard=frozenset({2}), health=0.1))
    assert candidates.best(0) == 3


def test_the_only_candidate_becomes_active_whether_it_is_heard_or_not() -> None:
    candidates = attending(a2=report(), a3=report(ReplicaState.FAILED, unheard=frozenset({2})))
    assert candidates.best(0) == 2


def test_a_detached_backup_does_not_count_as_synchronized() -> None:
    candidates = attending(a1=report(ACTIVE), a2=report(DETACHED), a3=report(JOINING))
    assert candidates.synchronized_backups(1, 0) == []


def test_an_adapter_is_missing_unless_every_configured_one_is_a_candidate_or_failed() -> None:
    assert Candidates(frozenset(), FRESH_NS).is_adapter_missing(0)
    candidates = attending(a1=report(), a2=report(ReplicaState.FAILED), a3=report(JOINING))
    assert not candidates.is_adapter_missing(0)
    assert candidates.is_adapter_missing(FRESH_NS + 1)
    candidates.leave(3)
    assert candidates.is_adapter_missing(0)
    candidates.failed[3] = "by hand"
    assert not candidates.is_adapter_missing(0)


def test_only_the_state_failed_counts_as_reporting_a_failure() -> None:
    candidates = attending(a1=report(ReplicaState.FAILED), a2=report())
    candidates.attend(3)
    assert [candidates.reports_failed(each) for each in (1, 2, 3, 4)] == [True, False, False, False]


def test_why_not_heir_gives_a_reason_that_follows_the_name() -> None:
    candidates = attending(a1=report(ACTIVE), a2=report(), a3=report(abstains=True), a4=report(DETACHED))
    candidates.failed[2] = "by hand"
    candidates.attend(5)
    assert [candidates.why_not_heir(each, 1, 0) for each in (1, 2, 3, 4, 5, 6)] == [
        "is already active",
        "is failed: by hand",
        "accepts no grants for the moment, because it recently lost the admin server",
        "is detached, not synchronized",
        "has not reported its state recently",
        "is away",
    ]
    assert candidates.why_not_heir(4, 1, FRESH_NS + 1) == "has not reported its state recently"


def test_a_later_session_outranks_any_epoch_and_position() -> None:
    candidates = attending(a1=report(seq=99, history_epoch=9, session=7), a2=report(seq=1, session=8))
    assert candidates.best(0) == 2


def test_a_drained_adapter_works_on_as_a_backup_that_is_neither_an_heir_nor_missing() -> None:
    candidates = attending(a1=report(ACTIVE), a2=report(), a3=report(DETACHED))
    candidates.drained[2] = "maintenance"
    assert candidates.best(0) == 3
    assert candidates.heirs(1, 0) == []
    assert candidates.why_not_heir(2, 1, 0) == "is drained: maintenance"
    assert candidates.backups_in_sync(1, 0) == [3]
    candidates.leave(1)
    candidates.attend(1)
    candidates.report(1, report(JOINING), 0)
    assert not candidates.is_adapter_missing(0)
