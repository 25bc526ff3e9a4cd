"""Which modules are mutated, and which tests must detect their mutants.

The tests of a group run once for all of its modules, to record which test executes which line. None of them starts a
server: a fork of a process that has used gRPC blocks at its next call.
"""

from __future__ import annotations

from dataclasses import dataclass

SIMULATOR = "tests/simulation/test_simulation.py::test_a_plan_that_once_failed_passes"


@dataclass(frozen=True, slots=True)
class Group:
    """Modules with the same tests.

    Attributes:
        modules: relative to the project's folder.
        tests: files, folders or node ids.
        is_simulated: the simulator runs these modules, so the plans that once failed are among their tests.
    """

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    is_simulated: bool = True


_LEASE = Group(
    (
        "admin_server/lease/lease_core.py",
        "admin_server/lease/candidates.py",
        "admin_server/lease/lease_decisions.py",
        "admin_server/lease/lease_terms.py",
        "admin_server/lease/takeovers.py",
        "admin_server/feed/members/adapter_starts.py",
        "admin_server/feed/members/claims.py",
        "admin_server/feed/members/registrations.py",
    ),
    (
        "tests/admin_server/lease/test_candidates.py",
        "tests/admin_server/lease/test_hand_over.py",
        "tests/admin_server/lease/test_lease_core.py",
        "tests/admin_server/lease/test_lease_edges.py",
        "tests/admin_server/lease/test_lease_machine.py",
        "tests/admin_server/lease/test_lease_terms.py",
        "tests/admin_server/feed/members/test_adapter_starts.py",
        "tests/admin_server/feed/members/test_claims.py",
        "tests/admin_server/feed/members/test_registrations.py",
    ),
)
_ADAPTERS_LEASE = Group(
    (
        "feedcore/hiccup.py",
        "feedcore/lease/admin_contact.py",
        "feedcore/lease/failing.py",
        "feedcore/lease/holder_clock.py",
        "feedcore/lease/lease_view.py",
        "feedcore/lease/peers.py",
        "feedcore/vouched_epochs.py",
    ),
    (
        "tests/feedcore/lease",
        "tests/feedcore/test_hiccup.py",
        "tests/feedcore/test_vouched_epochs.py",
        "tests/feedcore/replica/test_lying_adapter.py",
        "tests/feedcore/replica/test_own_pauses.py",
        "tests/feedcore/replica/test_engine.py",
        "tests/feedcore/replica/roles/test_handing_over.py",
    ),
)
_MERGE = Group(
    (
        "feedcore/hold_queue.py",
        *(
            f"feedcore/merge/{name}.py"
            for name in (
                "adapter_streams",
                "belief",
                "copies/comparison",
                "copies/confirmation",
                "gaps/declared_gaps",
                "history/former_places",
                "provisional/forwarders",
                "gaps/gap_repair",
                "history/history_gate",
                "merger",
                "history/place",
                "provisional/provisional_merge",
                "sessions",
                "source_order",
            )
        ),
    ),
    ("tests/feedcore/merge", "tests/feedcore/test_hold_queue.py"),
)
_REPLICA = Group(
    tuple(
        f"feedcore/replica/{name}.py"
        for name in (
            "active_view",
            "channel",
            "channel_state",
            "engine",
            "hand_over",
            "replica",
            "sessions",
            "input/applying",
            "input/backlog",
            "input/decision_intake",
            "input/decision_log",
            "input/source_tracker",
            "output/bucket_repair",
            "output/production",
            "output/provisional",
            "output/publish_gate",
            "output/save_schedule",
            "roles/ahead",
            "roles/deciding",
            "roles/following",
            "roles/joining",
            "roles/role",
            "roles/states",
        )
    ),
    ("tests/feedcore/replica", "tests/feedcore/lease", "tests/feedcore/test_nothing_piles_up.py"),
)
_WIRE = Group(
    (
        "feedcore/deadlines.py",
        "feedcore/range_set.py",
        "feedcore/token_bucket.py",
        *(
            f"feedcore/wire/{name}.py"
            for name in (
                "control_messages",
                "lineage",
                "output_packet",
                "packet_parts",
                "packet_series",
                "position",
                "provisional_commit",
                "refusal",
                "source_packet",
            )
        ),
    ),
    (
        "tests/adapter/records/test_provisional_packets_in_the_journal.py",
        "tests/feedcore/wire",
        "tests/feedcore/test_deadlines.py",
        "tests/feedcore/test_range_set.py",
        "tests/feedcore/test_token_bucket.py",
    ),
    is_simulated=False,
)

_CONTRIBUTIONS = Group(
    ("admin_server/feed/contributions/contribution_terms.py", "spark_feed/contributions/pair/membership.py"),
    (
        "tests/admin_server/feed/contributions/test_contribution_terms.py",
        "tests/spark_feed/contributions/test_gateway_pair.py",
        "tests/spark_feed/contributions/test_membership.py",
    ),
    is_simulated=False,
)

_SENDING = Group(
    ("spark_feed/sending/sessions/order.py",),
    ("tests/spark_feed/sending/test_session_order.py",),
    is_simulated=False,
)

GROUPS = (_LEASE, _ADAPTERS_LEASE, _MERGE, _REPLICA, _WIRE, _CONTRIBUTIONS, _SENDING)
