"""Which tests answer for which module: run in this order until the first failure, so the quickest come first."""

from __future__ import annotations

_LEASE = (
    "tests/admin_server/test_lease_core.py",
    "tests/admin_server/test_lease_edges.py",
    "tests/admin_server/test_lease_terms.py",
    "tests/admin_server/test_hand_over.py",
    "tests/admin_server/test_lease_machine.py",
)
_MERGE = (
    "tests/feedcore/test_merge_gaps.py",
    "tests/feedcore/test_merge_late_copies.py",
    "tests/feedcore/test_merge_start.py",
    "tests/feedcore/test_merge_provisional.py",
    "tests/feedcore/test_merge_confirm.py",
    "tests/feedcore/test_merge_comparison.py",
    "tests/feedcore/test_merge_sessions.py",
)
_HISTORIES = "tests/feedcore/test_merge_histories.py"
_MERGE_IN_FULL = (
    *_MERGE,
    "tests/feedcore/test_merge_lines.py",
    "tests/feedcore/test_merge_input_order.py",
    _HISTORIES,
)
TESTS_OF: dict[str, tuple[str, ...]] = {
    "feedcore/hold_queue.py": ("tests/feedcore/test_hold_queue.py", *_MERGE),
    "admin_server/lease_core.py": _LEASE,
    "admin_server/candidates.py": ("tests/admin_server/test_candidates.py", *_LEASE),
    "admin_server/lease_decisions.py": _LEASE,
    "admin_server/lease_terms.py": _LEASE,
    "admin_server/takeovers.py": _LEASE,
    "admin_server/start_book.py": ("tests/admin_server/test_start_book.py",),
    "admin_server/registrations.py": ("tests/admin_server/test_registrations.py",),
    "feedcore/lease/admin_contact.py": ("tests/feedcore/test_peers.py", "tests/feedcore/test_consent.py"),
    "feedcore/lease/failing.py": ("tests/feedcore/test_leaving_the_group.py",),
    "feedcore/lease/lease_view.py": ("tests/feedcore/test_lease_view.py",),
    "feedcore/lease/peers.py": ("tests/feedcore/test_peers.py", "tests/feedcore/test_consent.py"),
    "feedcore/merge/comparison.py": ("tests/feedcore/test_comparison.py", *_MERGE, _HISTORIES),
    "feedcore/merge/confirmation.py": (
        "tests/feedcore/test_confirmation.py",
        "tests/feedcore/test_merge_confirm.py",
        "tests/feedcore/test_merge_late_copies.py",
    ),
    "feedcore/merge/declared_gaps.py": _MERGE_IN_FULL,
    "feedcore/merge/forwarders.py": ("tests/feedcore/test_forwarders.py", "tests/feedcore/test_merge_provisional.py"),
    "feedcore/merge/gap_repair.py": ("tests/feedcore/test_gap_repair.py", *_MERGE),
    "feedcore/merge/heard_streams.py": ("tests/feedcore/test_heard_streams.py", *_MERGE),
    "feedcore/merge/history_gate.py": ("tests/feedcore/test_history_gate.py", *_MERGE),
    "feedcore/merge/merger.py": _MERGE_IN_FULL,
    "feedcore/merge/place.py": ("tests/feedcore/test_merge_start.py", *_MERGE),
    "feedcore/merge/provisional_merge.py": ("tests/feedcore/test_merge_provisional.py", *_MERGE),
    "feedcore/merge/sessions.py": ("tests/feedcore/test_merge_sessions.py",),
    "feedcore/merge/source_order.py": ("tests/feedcore/test_source_order.py", *_MERGE),
}
