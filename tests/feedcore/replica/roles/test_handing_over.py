"""A planned hand-over: the active ends its epoch in the stream; the heir begins exactly there (protocol clause 6.6)."""

from __future__ import annotations

from tandemfeed.feedcore.replica.config import ReplicaConfig
from tandemfeed.feedcore.replica.effects import AcceptOffer, ReleaseLease, RenewLease, StateMoved, Transmit
from tandemfeed.feedcore.replica.hand_over import HandOver
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.output_packet import OutputFlag
from tandemfeed.feedcore.wire.position import MessageStreamState
from tests.feedcore.replica.engines import LEASE_NS, MS, data, hear, of, pair

ENDED = OutputFlag.HEARTBEAT | OutputFlag.EPOCH_ENDED


def test_the_heir_opens_its_epoch_where_the_old_one_ended_and_the_old_active_follows_without_rejoining() -> None:
    active, heir = pair()
    sent = active.source(1, 1, [11, 13], 30 * MS)
    heir.source(1, 1, [11, 13], 30 * MS)
    hear(heir, sent, 31 * MS)
    assert heir.engine.on_lease_offered(2, 1, 32 * MS + LEASE_NS, 32 * MS) == [AcceptOffer(2)]
    assert heir.engine.on_lease_offered(1, 0, 32 * MS + LEASE_NS, 32 * MS) == [], "it knows that this epoch has begun"
    last = active.engine.on_hand_over(1, 2, 33 * MS)
    assert [type(effect) for effect in last] == [StateMoved, Transmit, ReleaseLease]
    assert active.state is ReplicaState.SYNCHRONIZED
    first = hear(heir, last, 34 * MS)
    assert heir.state is ReplicaState.ACTIVE
    assert heir.replica.line.lineage.entries == ((1, 1, 1), (2, 3, 3))
    assert of(heir.engine.on_timer(34 * MS), RenewLease) == [RenewLease(2)]
    hear(active, first, 35 * MS)
    active.source(2, 1, [17], 36 * MS)
    copies = hear(active, heir.source(2, 1, [17], 36 * MS), 37 * MS)
    assert [(packet.epoch, packet.first_message_seq) for packet in data(copies)] == [(2, 3)]
    assert active.converter.snapshot() == heir.converter.snapshot()


def test_the_heir_applies_missed_decisions_before_it_begins() -> None:
    active, heir = pair()
    lost = active.source(1, 1, [11, 13], 30 * MS)
    heir.engine.on_lease_offered(2, 1, 32 * MS + LEASE_NS, 32 * MS)
    hear(heir, active.engine.on_hand_over(1, 2, 33 * MS), 34 * MS)
    assert heir.state is ReplicaState.SYNCHRONIZED
    hear(heir, lost, 35 * MS)
    assert heir.state is ReplicaState.SYNCHRONIZED  # the source messages have not arrived
    effects = heir.source(1, 1, [11, 13], 36 * MS)
    assert heir.state is ReplicaState.ACTIVE
    assert [(packet.epoch, packet.first_message_seq) for packet in data(effects)] == [(1, 1)]
    assert heir.replica.line.lineage.entries[-1] == (2, 3, 3)


def test_the_heir_begins_without_missing_decisions_if_they_do_not_arrive() -> None:
    active, heir = pair()
    active.source(1, 1, [11, 13], 30 * MS)
    heir.engine.on_lease_offered(2, 1, 32 * MS + LEASE_NS, 32 * MS)
    hear(heir, active.engine.on_hand_over(1, 2, 33 * MS), 34 * MS)
    heir.engine.on_timer(34 * MS + heir.engine.config.replica.promotion_patience_ns)
    assert heir.state is ReplicaState.ACTIVE


def test_an_offer_alone_does_not_make_an_adapter_active_and_it_expires() -> None:
    active, heir = pair()
    heir.engine.on_lease_offered(2, 1, 32 * MS + LEASE_NS, 32 * MS)
    heir.engine.on_timer(100 * MS)
    assert heir.state is not ReplicaState.ACTIVE
    too_late = 32 * MS + LEASE_NS
    active.engine.on_lease_renewed(1, too_late + LEASE_NS, 40 * MS)
    hear(heir, active.engine.on_hand_over(1, 2, too_late), too_late)
    assert heir.state is not ReplicaState.ACTIVE


def test_the_end_of_the_epoch_is_repeated_until_the_new_one_is_followed() -> None:
    active, _ = pair()
    active.engine.on_hand_over(1, 2, 33 * MS)
    (beat,) = of(active.engine.on_timer(60 * MS), Transmit)
    assert beat.packet.flags == ENDED


def test_the_heir_of_an_epoch_unknown_to_a_channel_waits_for_its_end() -> None:
    hand_over = HandOver(patience_ns=50 * MS)
    hand_over.on_ended(1, 5)  # this adapter ended epoch 1 itself; the channel has not heard of epoch 2
    hand_over.await_end(3, 2, 0)
    assert hand_over.due_epoch(1, 5, MS, is_blocked=False) is None
    hand_over.on_ended(2, 9)
    assert hand_over.due_epoch(2, 8, 2 * MS, is_blocked=False) is None
    assert hand_over.due_epoch(2, 9, 2 * MS, is_blocked=False) == 3


def test_an_order_of_another_epoch_changes_nothing() -> None:
    active, _ = pair()
    assert active.engine.on_hand_over(7, 2, 33 * MS) == []
    assert active.state is ReplicaState.ACTIVE


def test_an_heir_that_has_not_begun_refuses_to_hand_over() -> None:
    active, heir = pair()
    active.source(1, 1, [11, 13], 30 * MS)  # unheard, so the heir lacks it
    heir.engine.on_lease_offered(2, 1, 32 * MS + LEASE_NS, 32 * MS)
    hear(heir, active.engine.on_hand_over(1, 2, 33 * MS), 34 * MS)
    assert heir.engine.on_hand_over(2, 1, 35 * MS) == []
    heir.engine.on_timer(34 * MS + heir.engine.config.replica.promotion_patience_ns)
    assert heir.state is ReplicaState.ACTIVE
    assert heir.engine.lease.epoch == 2


def test_an_heir_that_lost_its_place_begins_at_its_last_position() -> None:
    active, heir = pair()
    active.source(1, 1, [11, 13], 30 * MS)  # unheard
    heir.lose_place(30 * MS)
    heir.engine.on_lease_offered(2, 1, 32 * MS + LEASE_NS, 32 * MS)
    hear(heir, active.engine.on_hand_over(1, 2, 33 * MS), 34 * MS)
    assert heir.state is ReplicaState.JOINING
    assert not heir.engine.is_catching_up, "it holds the lease"
    begins_ns = 34 * MS + heir.engine.config.replica.promotion_patience_ns
    while (due_ns := heir.engine.next_deadline_ns() or 0) < begins_ns:
        heir.engine.on_timer(due_ns)
    heir.engine.on_timer(begins_ns)
    assert heir.state is ReplicaState.ACTIVE


def ended_at_nine() -> HandOver:
    """Epoch 2 ended at input_seq 9; this adapter has held the next epoch, 3, since 0."""
    hand_over = HandOver(patience_ns=50 * MS)
    hand_over.on_ended(2, 9)
    hand_over.await_end(3, 2, 0)
    return hand_over


def test_an_heir_begins_when_it_has_applied_everything_before_the_end_and_nothing_is_outstanding() -> None:
    hand_over = ended_at_nine()
    assert hand_over.is_awaited
    assert hand_over.due_epoch(2, 8, MS, is_blocked=False) is None
    assert hand_over.due_epoch(2, 9, MS, is_blocked=True) is None
    assert hand_over.due_epoch(1, 9, MS, is_blocked=False) is None, "the ended epoch is newer than any that it knows"
    assert hand_over.due_epoch(2, 9, MS, is_blocked=False) == 3


def test_an_heir_begins_after_its_patience_whatever_it_lacks() -> None:
    hand_over = ended_at_nine()
    assert hand_over.next_deadline_ns() == 50 * MS
    assert hand_over.due_epoch(2, 8, 50 * MS - 1, is_blocked=True) is None
    assert hand_over.due_epoch(2, 8, 50 * MS, is_blocked=True) == 3


def test_an_heir_waits_until_it_hears_the_end() -> None:
    hand_over = HandOver(patience_ns=50 * MS)
    assert (hand_over.is_awaited, hand_over.next_deadline_ns()) == (False, None)
    hand_over.await_end(3, 2, 0)
    assert hand_over.due_epoch(2, 9, MS, is_blocked=False) is None


def test_after_the_loss_of_the_lease_nothing_begins_but_the_end_is_still_known() -> None:
    hand_over = ended_at_nine()
    hand_over.cancel()
    assert (hand_over.is_awaited, hand_over.next_deadline_ns()) == (False, None)
    assert hand_over.due_epoch(2, 9, MS, is_blocked=False) is None
    assert hand_over.is_at_end(MessageStreamState(2, 9, 9, {}))


def test_the_end_is_repeated_exactly_at_its_position_until_an_epoch_begins() -> None:
    hand_over = ended_at_nine()
    assert hand_over.is_at_end(MessageStreamState(2, 9, 7, {}))
    assert not hand_over.is_at_end(MessageStreamState(2, 8, 7, {}))
    assert not hand_over.is_at_end(MessageStreamState(1, 9, 7, {}))
    hand_over.begin()
    assert not hand_over.is_at_end(MessageStreamState(2, 9, 7, {}))
    assert not hand_over.is_awaited


def test_an_heir_begins_its_epoch_even_if_more_source_messages_wait_than_a_backup_may_hold() -> None:
    active, heir = pair(replica=ReplicaConfig(backlog_count_max=2))
    lost = active.source(1, 1, [11], 30 * MS)
    heir.engine.on_lease_offered(2, 1, 32 * MS + LEASE_NS, 32 * MS)
    hear(heir, active.engine.on_hand_over(1, 2, 33 * MS), 34 * MS)
    hear(heir, lost, 35 * MS)
    decided = data(heir.source(1, 1, [11, 13, 17, 19], 36 * MS))
    assert heir.state is ReplicaState.ACTIVE
    assert [(packet.epoch, packet.first_input_seq, packet.message_count) for packet in decided] == [
        (1, 1, 1),
        (2, 2, 3),
    ]
