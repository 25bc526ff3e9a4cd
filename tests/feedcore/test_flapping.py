"""A backup that keeps losing its active takes its time to call itself synchronized again (clause 5.9)."""

from __future__ import annotations

from feedcore.replica.active_view import FLAP_WITHIN_NS, FLAPS_FREE, HOLD_NS_FIRST, HOLD_NS_MAX, FlapDamper
from feedcore.replica.effects import StateMoved
from feedcore.replica.states import ReplicaState
from tests.feedcore.engines import MS, SECOND, Adapter, hear, of, pair


def silence(backup: Adapter, until_ns: int) -> None:
    """The admin server is heard, the active is not."""
    backup.engine.on_admin_heard(until_ns)
    backup.engine.on_timer(until_ns)


def test_the_first_silences_cost_nothing() -> None:
    active, backup = pair()
    active.engine.on_lease_renewed(1, 100 * SECOND, 0)
    for number in range(1, FLAPS_FREE + 1):
        silence(backup, number * SECOND)
        assert backup.state is ReplicaState.DETACHED
        hear(backup, active.engine.on_timer(number * SECOND), number * SECOND)
        assert backup.state is ReplicaState.SYNCHRONIZED


def test_a_backup_whose_active_is_heard_in_fits_moves_a_few_times_a_second_at_most() -> None:
    active, backup = pair()
    active.engine.on_lease_renewed(1, 1_000 * SECOND, 0)
    moves = 0
    for step in range(1, 100):  # heard for one heartbeat, then silent for 110 ms: nine times a second
        at_ns = step * 110 * MS
        backup.engine.on_admin_heard(at_ns)
        moves += len(of(backup.engine.on_timer(at_ns), StateMoved))
        moves += len(of(hear(backup, active.engine.on_timer(at_ns), at_ns), StateMoved))
    assert moves <= 2 * FLAPS_FREE + 1
    backup.source(1, 1, [11, 13], 11 * SECOND)
    copies = hear(backup, active.source(1, 1, [11, 13], 11 * SECOND), 11 * SECOND)
    assert backup.next_message_seq == 3  # detached, it applies decisions all the same
    assert copies


def test_the_pause_doubles_up_to_a_bound_and_is_forgotten_after_a_calm() -> None:
    damper, now_ns = FlapDamper(), 0
    pauses = []
    for _ in range(FLAPS_FREE + 6):
        now_ns += SECOND
        damper.on_silence(now_ns)
        heard_at_ns = now_ns
        while not damper.may_return(now_ns):
            now_ns += 10 * MS
        pauses.append(now_ns - heard_at_ns)
    assert pauses[:FLAPS_FREE] == [0] * FLAPS_FREE
    assert pauses[FLAPS_FREE : FLAPS_FREE + 3] == [HOLD_NS_FIRST, 2 * HOLD_NS_FIRST, 4 * HOLD_NS_FIRST]
    assert pauses[-1] == HOLD_NS_MAX
    damper.on_silence(now_ns + FLAP_WITHIN_NS + 1)
    assert damper.may_return(now_ns + FLAP_WITHIN_NS + 2)
