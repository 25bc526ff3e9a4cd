"""`acked`: the active transmits nothing before a backup has it, and nothing waits forever (protocol clause 5.6)."""

from __future__ import annotations

import pytest

from tandemfeed.feedcore.counters import Counter
from tandemfeed.feedcore.replica.config import PublishMode, ReplicaConfig
from tandemfeed.feedcore.replica.effects import AppendToJournal, Publish, SaveState
from tandemfeed.feedcore.replica.sessions import NotActive
from tandemfeed.feedcore.wire.output_packet import OutputFlag
from tests.feedcore.replica.engines import CHANNEL, MS, Adapter, data, hear, of, pair, transmitted

ACKED = ReplicaConfig(publish=PublishMode.ACKED)


def acknowledged_pair() -> tuple[Adapter, Adapter]:
    """A pair whose active waits for the backup's acknowledgements."""
    active, backup = pair(replica=ACKED)
    hear(active, backup.engine.on_timer(30 * MS), 30 * MS)  # its heartbeat gives its position
    return active, backup


def test_a_decision_is_announced_first_and_its_messages_follow_the_acknowledgement() -> None:
    active, backup = acknowledged_pair()
    effects = active.source(1, 1, [11, 13], 31 * MS)
    (announcement,) = data(effects)
    assert announcement.flags == OutputFlag.FROM_ACTIVE | OutputFlag.ANNOUNCEMENT
    assert not of(effects, AppendToJournal)
    backup.source(1, 1, [11, 13], 31 * MS)
    copies = hear(backup, effects, 32 * MS)
    assert [packet.message_count for packet in data(copies)] == [2]
    released = hear(active, copies, 33 * MS)
    assert [type(effect) for effect in released] == [Publish]
    (packet,) = data(released)
    assert (packet.flags, packet.payload) == (OutputFlag.FROM_ACTIVE, data(copies)[0].payload)


def test_heartbeats_give_the_position_of_what_was_transmitted_not_of_what_was_decided() -> None:
    active, _ = acknowledged_pair()
    active.source(1, 1, [11], 31 * MS)
    beats = transmitted(active.engine.on_timer(41 * MS))
    assert [beat.first_message_seq for beat in beats if beat.flags & OutputFlag.HEARTBEAT] == [1]
    assert active.next_message_seq == 2


def test_an_announcement_is_repeated_until_the_active_continues_without_acknowledgement() -> None:
    active, backup = acknowledged_pair()
    active.source(1, 1, [11], 31 * MS)
    (again,) = data(active.engine.on_timer(41 * MS))
    assert again.flags & OutputFlag.ANNOUNCEMENT
    alone = active.engine.on_timer(31 * MS + ACKED.ack_timeout_ns)
    assert [packet.flags for packet in data(alone)] == [OutputFlag.FROM_ACTIVE]
    assert active.counters.counts[Counter.PACKETS_UNACKED] == 1
    assert [packet.flags for packet in data(active.source(1, 2, [13], 90 * MS))] == [OutputFlag.FROM_ACTIVE]
    backup.source(1, 1, [11], 91 * MS)
    hear(active, hear(backup, alone, 91 * MS), 92 * MS)  # it has caught up to where the active stopped waiting
    (announcement,) = data(active.source(1, 3, [17], 93 * MS))
    assert announcement.flags & OutputFlag.ANNOUNCEMENT


def test_when_the_lease_ends_held_packets_are_journaled_and_not_transmitted() -> None:
    active, _ = acknowledged_pair()
    active.source(1, 1, [11], 31 * MS)
    effects = active.engine.on_lease_lost(1, "a test says so", 32 * MS)
    assert [effect.packet.message_count for effect in of(effects, AppendToJournal)] == [1]
    assert not data(effects)


def test_a_hand_over_first_transmits_everything_held() -> None:
    active, _ = acknowledged_pair()
    active.source(1, 1, [11], 31 * MS)
    effects = active.engine.on_hand_over(1, 2, 32 * MS)
    sent = transmitted(effects)
    assert [packet.flags for packet in sent] == [OutputFlag.FROM_ACTIVE, OutputFlag.HEARTBEAT | OutputFlag.EPOCH_ENDED]
    assert sent[-1].first_message_seq == active.next_message_seq


def test_a_new_active_waits_only_for_a_backup_that_has_reached_its_epoch() -> None:
    active, heir = acknowledged_pair()
    old = []
    for seq in (1, 2):
        heir.source(1, seq, [11], 31 * MS)
        old.append(hear(active, hear(heir, active.source(1, seq, [11], 31 * MS), 31 * MS), 31 * MS))
    heir.activate(2, 32 * MS)
    hear(heir, old[0], 33 * MS)  # an adapter that lags behind: it has everything before input_seq 2
    assert [packet.flags for packet in data(heir.source(1, 3, [13], 34 * MS))] == [OutputFlag.FROM_ACTIVE]
    hear(heir, old[1], 35 * MS)  # it now has everything before input_seq 3, where the epoch begins
    (announcement,) = data(heir.source(1, 4, [17], 36 * MS))
    assert announcement.flags & OutputFlag.ANNOUNCEMENT


def test_a_state_that_includes_held_packets_is_neither_served_nor_saved() -> None:
    active, _ = acknowledged_pair()
    active.source(1, 1, [11], 31 * MS)
    with pytest.raises(NotActive, match="waits for an acknowledgement"):
        active.engine.snapshot(CHANNEL)
    assert not of(active.engine.on_stop(), SaveState)
    active.engine.on_timer(31 * MS + ACKED.ack_timeout_ns)
    assert active.engine.snapshot(CHANNEL).position.next_input_seq == 2
    assert of(active.engine.on_stop(), SaveState)
