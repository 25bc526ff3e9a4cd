"""A backup that keeps losing its active waits before it becomes synchronized again (clause 5.9)."""

from __future__ import annotations

from tandemfeed.feedcore.replica.active_view import (
    FLAP_WITHIN_NS,
    FLAPS_FREE,
    HOLD_NS_FIRST,
    HOLD_NS_MAX,
    ActiveView,
    FlapDamper,
)
from tandemfeed.feedcore.replica.effects import StateMoved
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tests.feedcore.replica.engines import MS, SECOND, Adapter, hear, of, pair


def silence(backup: Adapter, until_ns: int) -> None:
    """Let the backup hear the admin server, but not the active."""
    backup.engine.on_admin_message(until_ns)
    backup.engine.on_timer(until_ns)


def test_after_the_first_silences_a_backup_returns_without_a_delay() -> None:
    active, backup = pair()
    active.engine.on_lease_renewed(1, 100 * SECOND, 0)
    for number in range(1, FLAPS_FREE + 1):
        silence(backup, number * SECOND)
        assert backup.state is ReplicaState.DETACHED
        hear(backup, active.engine.on_timer(number * SECOND), number * SECOND)
        assert backup.state is ReplicaState.SYNCHRONIZED


def test_a_backup_that_hears_its_active_intermittently_changes_state_only_a_few_times() -> None:
    active, backup = pair()
    active.engine.on_lease_renewed(1, 1_000 * SECOND, 0)
    moves = 0
    for step in range(1, 100):  # heard for one heartbeat, then silent for 110 ms: nine times a second
        at_ns = step * 110 * MS
        backup.engine.on_admin_message(at_ns)
        moves += len(of(backup.engine.on_timer(at_ns), StateMoved))
        moves += len(of(hear(backup, active.engine.on_timer(at_ns), at_ns), StateMoved))
    assert moves <= 2 * FLAPS_FREE + 1
    backup.source(1, 1, [11, 13], 11 * SECOND)
    copies = hear(backup, active.source(1, 1, [11, 13], 11 * SECOND), 11 * SECOND)
    assert backup.next_message_seq == 3  # although detached, it applies decisions
    assert copies


def test_the_pause_doubles_up_to_a_maximum_and_is_forgotten_after_a_calm_period() -> None:
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


# ---- who is active ----


def test_news_of_the_active_counts_unless_a_newer_epoch_is_known() -> None:
    view = ActiveView(0)
    assert (view.adapter_id, view.epoch) == (0, 0)
    assert view.note_active(1, 3)
    assert not view.note_active(2, 2), "an older epoch"
    assert not view.note_active(0, 3), "that no adapter holds the epoch now does not change which one held it"
    assert (view.adapter_id, view.epoch) == (1, 3)
    assert not view.note_active(1, 4), "the same adapter in a newer epoch is not a change"
    assert view.epoch == 4
    assert view.note_active(2, 4)
    assert view.note_active(0, 5)
    assert (view.adapter_id, view.epoch) == (0, 5)


def test_a_transmitting_active_is_heard_whether_or_not_it_is_known() -> None:
    view = ActiveView(0)
    assert view.on_message(1, 3, 10 * MS)
    assert not view.on_message(1, 3, 20 * MS)
    assert view.silent_ns(25 * MS) == 5 * MS
    assert not view.on_message(2, 2, 30 * MS)
    assert (view.adapter_id, view.epoch, view.silent_ns(30 * MS)) == (1, 3, 0)
    assert view.on_message(2, 3, 40 * MS)
    assert not view.on_message(2, 4, 50 * MS)
    assert (view.adapter_id, view.epoch) == (2, 4)


def test_silences_exactly_ten_seconds_apart_add_up() -> None:
    damper = FlapDamper()
    for number in range(FLAPS_FREE + 1):
        damper.on_silence(number * FLAP_WITHIN_NS)
    heard_at_ns = (FLAPS_FREE + 1) * FLAP_WITHIN_NS
    assert not damper.may_return(heard_at_ns)
    assert not damper.may_return(heard_at_ns + HOLD_NS_FIRST - 1)
    assert damper.may_return(heard_at_ns + HOLD_NS_FIRST)


def test_a_silence_restarts_the_pause() -> None:
    damper = FlapDamper()
    for number in range(FLAPS_FREE + 1):
        damper.on_silence(number)
    assert not damper.may_return(SECOND)
    damper.on_silence(SECOND + MS)
    assert not damper.may_return(SECOND + 2 * HOLD_NS_FIRST)
    assert damper.may_return(SECOND + 4 * HOLD_NS_FIRST)
