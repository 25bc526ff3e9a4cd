"""Which tests must detect the mutants of which module; they run in this order, fastest first, until one fails."""

from __future__ import annotations

_LEASE = (
    "tests/admin_server/lease/test_lease_core.py",
    "tests/admin_server/lease/test_lease_edges.py",
    "tests/admin_server/lease/test_lease_terms.py",
    "tests/admin_server/lease/test_hand_over.py",
    "tests/admin_server/lease/test_lease_machine.py",
)
_MERGE = (
    "tests/feedcore/merge/test_merge_gaps.py",
    "tests/feedcore/merge/test_merge_late_copies.py",
    "tests/feedcore/merge/test_merge_start.py",
    "tests/feedcore/merge/test_merge_provisional.py",
    "tests/feedcore/merge/test_merge_confirm.py",
    "tests/feedcore/merge/test_merge_comparison.py",
    "tests/feedcore/merge/test_merge_sessions.py",
)
_HISTORIES = "tests/feedcore/merge/test_merge_histories.py"
_MERGE_IN_FULL = (
    *_MERGE,
    "tests/feedcore/merge/test_merge_lines.py",
    "tests/feedcore/merge/test_merge_input_order.py",
    "tests/feedcore/merge/test_merge_progress.py",
    _HISTORIES,
)
_SIMULATOR = (
    "tests/simulation/test_simulation.py::test_what_was_found_once_stays_mended",
    "tests/simulation/test_simulation.py::test_no_seed_violates_an_invariant[0]",
)
_REPLICA = (
    "tests/feedcore/replica/roles/test_states.py",
    "tests/feedcore/replica/input/test_decision_intake.py",
    "tests/feedcore/replica/output/test_acked_publishing.py",
    "tests/feedcore/replica/output/test_publish_gate.py",
    "tests/feedcore/replica/input/test_source_tracker.py",
    "tests/feedcore/replica/input/test_backlog.py",
    "tests/feedcore/replica/input/test_applying.py",
    "tests/feedcore/replica/roles/test_following.py",
    "tests/feedcore/replica/test_engine.py",
    "tests/feedcore/replica/output/test_production.py",
    "tests/feedcore/replica/test_replica.py",
    "tests/feedcore/replica/roles/test_source_losses.py",
    "tests/feedcore/replica/roles/test_joining_anew.py",
    "tests/feedcore/replica/roles/test_channels_of_one_source.py",
    "tests/feedcore/replica/roles/test_resuming_from_the_journal.py",
    "tests/feedcore/replica/test_changing_the_session.py",
    "tests/feedcore/replica/roles/test_handing_over.py",
    "tests/feedcore/replica/roles/test_flapping.py",
    "tests/feedcore/replica/roles/test_provisional_forwarding.py",
    "tests/feedcore/replica/output/test_conversion_state_repair.py",
    "tests/feedcore/lease/test_consent.py",
    "tests/feedcore/lease/test_leaving_the_group.py",
    "tests/feedcore/wire/test_lineage.py",
    "tests/feedcore/replica/input/test_decision_log.py",
    "tests/feedcore/test_nothing_piles_up.py",
    *_SIMULATOR,
)


def _replica(*first: str) -> tuple[str, ...]:
    """The tests of the replica and the simulator, beginning with the tests closest to the module."""
    nearest = tuple(test for name in first for test in _REPLICA if test.endswith(f"/test_{name}.py"))
    return (*nearest, *(test for test in _REPLICA if test not in nearest))


TESTS_OF: dict[str, tuple[str, ...]] = {
    "feedcore/hold_queue.py": ("tests/feedcore/test_hold_queue.py", *_MERGE),
    "admin_server/lease/lease_core.py": _LEASE,
    "admin_server/lease/candidates.py": ("tests/admin_server/lease/test_candidates.py", *_LEASE),
    "admin_server/lease/lease_decisions.py": _LEASE,
    "admin_server/lease/lease_terms.py": _LEASE,
    "admin_server/lease/takeovers.py": _LEASE,
    "admin_server/feed/adapter_starts.py": ("tests/admin_server/feed/test_adapter_starts.py",),
    "admin_server/feed/registrations.py": ("tests/admin_server/feed/test_registrations.py",),
    "feedcore/lease/admin_contact.py": ("tests/feedcore/lease/test_peers.py", "tests/feedcore/lease/test_consent.py"),
    "feedcore/lease/failing.py": ("tests/feedcore/lease/test_leaving_the_group.py",),
    "feedcore/lease/lease_view.py": ("tests/feedcore/lease/test_lease_view.py",),
    "feedcore/lease/peers.py": ("tests/feedcore/lease/test_peers.py", "tests/feedcore/lease/test_consent.py"),
    "feedcore/merge/comparison.py": ("tests/feedcore/merge/test_comparison.py", *_MERGE, _HISTORIES),
    "feedcore/merge/confirmation.py": (
        "tests/feedcore/merge/test_confirmation.py",
        "tests/feedcore/merge/test_merge_confirm.py",
        "tests/feedcore/merge/test_merge_late_copies.py",
    ),
    "feedcore/merge/declared_gaps.py": _MERGE_IN_FULL,
    "feedcore/merge/forwarders.py": (
        "tests/feedcore/merge/test_forwarders.py",
        "tests/feedcore/merge/test_merge_provisional.py",
    ),
    "feedcore/merge/gap_repair.py": ("tests/feedcore/merge/test_gap_repair.py", *_MERGE),
    "feedcore/merge/adapter_streams.py": ("tests/feedcore/merge/test_adapter_streams.py", *_MERGE),
    "feedcore/merge/history_gate.py": ("tests/feedcore/merge/test_history_gate.py", *_MERGE),
    "feedcore/merge/merger.py": _MERGE_IN_FULL,
    "feedcore/merge/place.py": ("tests/feedcore/merge/test_merge_start.py", *_MERGE),
    "feedcore/merge/provisional_merge.py": ("tests/feedcore/merge/test_merge_provisional.py", *_MERGE),
    "feedcore/merge/sessions.py": ("tests/feedcore/merge/test_merge_sessions.py",),
    "feedcore/merge/source_order.py": ("tests/feedcore/merge/test_source_order.py", *_MERGE),
    "feedcore/replica/active_view.py": _replica("flapping"),
    "feedcore/replica/roles/ahead.py": _replica("provisional_forwarding"),
    "feedcore/replica/input/applying.py": _replica("applying", "provisional_forwarding", "channels_of_one_source"),
    "feedcore/replica/input/backlog.py": _replica("backlog", "joining_anew", "provisional_forwarding"),
    "feedcore/replica/output/bucket_repair.py": _replica("conversion_state_repair"),
    "feedcore/replica/channel.py": _replica("replica", "handing_over", "changing_the_session"),
    "feedcore/replica/roles/deciding.py": _replica(
        "source_losses", "publish_gate", "channels_of_one_source", "handing_over"
    ),
    "feedcore/replica/input/decision_intake.py": _replica("decision_intake", "following"),
    "feedcore/replica/input/decision_log.py": _replica("decision_log"),
    "feedcore/replica/engine.py": _replica("engine", "handing_over", "consent", "leaving_the_group"),
    "feedcore/replica/roles/following.py": _replica("following", "conversion_state_repair", "flapping"),
    "feedcore/replica/hand_over.py": _replica("handing_over"),
    "feedcore/replica/roles/joining.py": _replica("joining_anew", "resuming_from_the_journal"),
    "feedcore/replica/output/production.py": _replica("production", "channels_of_one_source", "provisional_forwarding"),
    "feedcore/replica/output/provisional.py": _replica("production", "provisional_forwarding"),
    "feedcore/replica/output/publish_gate.py": _replica("publish_gate", "acked_publishing"),
    "feedcore/replica/replica.py": _replica("replica", "handing_over", "changing_the_session"),
    "feedcore/replica/roles/role.py": _replica("following", "leaving_the_group"),
    "feedcore/replica/output/save_schedule.py": _replica("resuming_from_the_journal"),
    "feedcore/replica/sessions.py": _replica("changing_the_session"),
    "feedcore/replica/input/source_tracker.py": _replica("source_tracker", "joining_anew", "source_losses"),
    "feedcore/replica/roles/states.py": _replica("states"),
}
