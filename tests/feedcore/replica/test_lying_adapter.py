"""What an adapter of the feed cannot do to the others by the numbers that it names (docs/protocol.md clause 6.11).

The liar is adapter 3: it has every key of the feed, so what it sends is tagged and its calls are authentic. Only the
admin server did not grant it anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tandemfeed.feedcore.replica.channel_state import ChannelStatus, PeerState, RunsReply
from tandemfeed.feedcore.replica.effects import RequestRuns, RequestSnapshot
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tandemfeed.feedcore.wire.position import MessageStreamState
from tandemfeed.feedcore.wire.refusal import Refusal
from tests.feedcore.replica.engines import CHANNEL, MS, NEWEST_SESSION, SECOND, Adapter, data, hear, of, pair
from tests.simulation.toy_feed import SESSION, encode_source

LIAR = 3
HUGE = 2**32 - 1
FAR = 1 << 60
FROM_ACTIVE = OutputFlag.HEARTBEAT | OutputFlag.FROM_ACTIVE


def beat(of_packet: OutputPacket, flags: int, epoch: int, input_seq: int = 1, message_seq: int = 1) -> OutputPacket:
    """A heartbeat of the liar's, with a lineage to match."""
    lineage = Lineage().opened(epoch, input_seq, message_seq)
    return of_packet._replace(
        adapter_id=LIAR,
        flags=int(flags),
        epoch=epoch,
        first_input_seq=input_seq,
        first_message_seq=message_seq,
        message_count=0,
        runs=(),
        payload=lineage.encode(1_000),
    )


def a_packet(active: Adapter) -> OutputPacket:
    (packet,) = data(active.source(1, 1, [11], 30 * MS))
    return packet


def state_of_liar(**changes: object) -> PeerState:
    position = MessageStreamState(1, 1, 1, {1: 1, 2: 1})
    status = ChannelStatus(CHANNEL, ReplicaState.SYNCHRONIZED, position, Lineage().opened(1, 1, 1))
    return replace(PeerState(LIAR, 1, 1, (status,)), **changes)  # type: ignore[arg-type]


def works(active: Adapter, backup: Adapter, now_ns: int) -> None:
    """The active decides and its backup follows, in epoch 1."""
    first = active.replica.line.next_source_seqs[2]
    backup.source(2, first, [5, 7], now_ns)
    hear(backup, active.source(2, first, [5, 7], now_ns), now_ns)
    assert active.state is ReplicaState.ACTIVE
    assert active.engine.lease.epoch == 1
    assert backup.state is ReplicaState.SYNCHRONIZED
    assert backup.replica.line.position() == active.replica.line.position()


LIES: dict[str, Callable[[OutputPacket], OutputPacket]] = {
    "the greatest epoch": lambda packet: beat(packet, FROM_ACTIVE, HUGE),
    "the next epoch": lambda packet: beat(packet, FROM_ACTIVE, 2),
    "a thousand epochs later": lambda packet: beat(packet, FROM_ACTIVE, 1_001),
    "the next epoch, not as the active": lambda packet: beat(packet, OutputFlag.HEARTBEAT, 2),
    "the active's epoch as its own": lambda packet: beat(packet, FROM_ACTIVE, 1),
    "an end of the active's epoch": lambda packet: beat(packet, FROM_ACTIVE | OutputFlag.EPOCH_ENDED, 1),
    "an end of the active's epoch, as a backup": lambda packet: beat(
        packet, OutputFlag.HEARTBEAT | OutputFlag.EPOCH_ENDED, 1
    ),
    "an end of the stream": lambda packet: beat(packet, OutputFlag.HEARTBEAT | OutputFlag.END_OF_STREAM, 1),
    "a position far ahead": lambda packet: beat(packet, OutputFlag.HEARTBEAT, 1, FAR, FAR),
    "a later epoch in its lineage": lambda packet: beat(packet, OutputFlag.HEARTBEAT, 1)._replace(
        payload=Lineage().opened(HUGE, 1, 1).encode(1_000)
    ),
    "another decision": lambda packet: packet._replace(
        adapter_id=LIAR, runs=(packet.runs[0]._replace(source_stream_id=2),)
    ),
    "a decision far ahead": lambda packet: packet._replace(
        adapter_id=LIAR, first_input_seq=FAR, runs=(packet.runs[0]._replace(first_input_seq=FAR),)
    ),
    "a decision about source messages far ahead": lambda packet: packet._replace(
        adapter_id=LIAR, runs=(packet.runs[0]._replace(first_source_seq=FAR),)
    ),
    "a provisional packet of the greatest epoch": lambda packet: packet._replace(
        adapter_id=LIAR, flags=int(OutputFlag.PROVISIONAL), epoch=HUGE
    ),
    "a later session": lambda packet: beat(packet, FROM_ACTIVE, 1)._replace(session=NEWEST_SESSION + 1),
}


@pytest.mark.parametrize("lie", LIES)
def test_no_packet_of_a_liar_moves_an_active_or_its_backup(lie: str) -> None:
    active, backup = pair()
    packet = a_packet(active)
    backup.source(1, 1, [11], 30 * MS)
    false = LIES[lie](packet)
    for number in range(20):
        for adapter in (active, backup):
            adapter.engine.on_output_packet(false, 31 * MS + number)
    hear(backup, active.engine.on_timer(40 * MS), 40 * MS)
    backup.engine.on_output_packet(packet, 41 * MS)
    works(active, backup, 42 * MS)
    for adapter in (active, backup):
        adapter.engine.on_timer(43 * MS)
        assert adapter.state in (ReplicaState.ACTIVE, ReplicaState.SYNCHRONIZED)
        assert adapter.engine.session == SESSION
    works(active, backup, 60 * MS)


@pytest.mark.parametrize("epoch", [2, 1_001, HUGE])
def test_an_adapter_that_joins_follows_no_epoch_of_a_liar(epoch: int) -> None:
    active, _ = pair()
    joining = Adapter(2)
    false = beat(a_packet(active), FROM_ACTIVE, epoch)
    joining.engine.on_output_packet(false, 40 * MS)
    joining.engine.on_cluster_changed(1, 1, 41 * MS, [1, LIAR])
    joining.engine.on_output_packet(false, 42 * MS)
    (asked,) = of(joining.engine.on_timer(300 * MS), RequestSnapshot)
    assert asked.adapter_id == active.adapter_id
    joining.engine.on_answer(CHANNEL, active.engine.snapshot(CHANNEL), 301 * MS)
    assert joining.replica.intake.epoch == 1
    assert joining.counters.refusals[Refusal.UNVOUCHED] == 2


STATES: dict[str, PeerState] = {
    "the greatest epoch": state_of_liar(
        channels=(
            ChannelStatus(
                CHANNEL,
                ReplicaState.ACTIVE,
                MessageStreamState(HUGE, 1, 1, {1: 1, 2: 1}),
                Lineage().opened(HUGE, 1, 1),
            ),
        )
    ),
    "the active's epoch as its own": state_of_liar(
        channels=(
            ChannelStatus(
                CHANNEL,
                ReplicaState.ACTIVE,
                MessageStreamState(1, FAR, FAR, {1: FAR, 2: FAR}),
                Lineage().opened(1, 1, 1),
            ),
        )
    ),
    "a position far ahead": state_of_liar(
        channels=(
            ChannelStatus(
                CHANNEL,
                ReplicaState.SYNCHRONIZED,
                MessageStreamState(1, FAR, FAR, {1: FAR, 2: FAR}),
                Lineage().opened(1, 1, 1),
                available_source_seqs={1: FAR, 2: FAR},
            ),
        )
    ),
    "a later session": state_of_liar(session=NEWEST_SESSION + 1),
    "a later start": state_of_liar(incarnation=HUGE, report_id=1 << 63),
}


@pytest.mark.parametrize("lie", STATES)
def test_no_state_of_a_liar_moves_an_active_or_its_backup(lie: str) -> None:
    active, backup = pair()
    for adapter in (active, backup):
        adapter.engine.on_starts_announced({1: 1, 2: 1, LIAR: 1})
        for number in range(5):
            adapter.engine.on_peer_state(replace(STATES[lie], report_id=1 + number), 31 * MS)
    works(active, backup, 42 * MS)
    for adapter in (active, backup):
        adapter.engine.on_timer(43 * MS)
    works(active, backup, 50 * MS)
    assert backup.replica.channel.active.adapter_id == active.adapter_id


def test_a_state_of_a_start_that_was_never_announced_does_not_outrank_those_of_the_next_one() -> None:
    active, _ = pair()
    engine = active.engine
    engine.on_peer_state(state_of_liar(incarnation=HUGE, report_id=1 << 63), 30 * MS)
    engine.on_starts_announced({LIAR: 7})
    honest = state_of_liar(incarnation=7, report_id=1)
    engine.on_peer_state(honest, 31 * MS)
    assert engine.peers.fresh(31 * MS) == [honest]
    engine.on_peer_state(state_of_liar(incarnation=8), 32 * MS)
    assert engine.peers.fresh(32 * MS) == [honest]
    assert active.counters.refusals[Refusal.UNANNOUNCED] == 1


def test_a_later_session_of_a_liar_does_not_end_the_present_one() -> None:
    active, backup = pair()
    active.engine.on_lease_renewed(1, 100 * SECOND, 20 * MS)
    false = beat(a_packet(active), FROM_ACTIVE, 1)._replace(session=20991231)
    for adapter in (active, backup):
        adapter.engine.on_output_packet(false, 31 * MS)
        adapter.engine.on_peer_state(state_of_liar(session=20991231), 31 * MS)
    grace_ns = active.engine.config.session_grace_ns
    for now_ns in (40 * MS, grace_ns, 3 * grace_ns):
        active.engine.on_timer(now_ns)
        backup.engine.on_timer(now_ns)
    assert (active.engine.session, backup.engine.session) == (SESSION, SESSION)
    assert active.counters.refusals[Refusal.UNVOUCHED] == 1


def test_a_later_session_counts_once_the_source_or_the_admin_server_names_it() -> None:
    active, backup = pair()
    later = NEWEST_SESSION + 1
    false = beat(a_packet(active), FROM_ACTIVE, 1)._replace(session=later, adapter_id=1)
    backup.engine.on_output_packet(false, 31 * MS)
    assert backup.engine._sessions.coming == {}
    backup.engine.on_source_datagram(encode_source(1, 1, [(1, 11)], 0, 0, session=later), 32 * MS)
    backup.engine.on_output_packet(false, 33 * MS)
    assert backup.engine._sessions.coming[later].adapter_heard_at_ns == 33 * MS
    third = Adapter(2)
    third.follow(active, 34 * MS)
    third.engine.on_cluster_changed(1, 1, 35 * MS, session=later)
    third.engine.on_output_packet(false, 36 * MS)
    assert third.engine._sessions.coming[later].adapter_heard_at_ns == 36 * MS


def test_an_answer_in_an_epoch_that_was_not_granted_is_refused() -> None:
    active, backup = pair()
    huge = RunsReply(Lineage().opened(HUGE, 1, 1), ())
    assert backup.engine.on_answer(CHANNEL, huge, 31 * MS) == []
    assert backup.replica.intake.epoch == 1
    snapshot = replace(active.engine.snapshot(CHANNEL), lineage=huge.lineage)
    assert backup.engine.on_answer(CHANNEL, snapshot, 31 * MS) == []
    buckets = replace(active.engine.buckets(CHANNEL, (0,)), position=MessageStreamState(HUGE, 1, 1, {}))
    assert backup.engine.on_answer(CHANNEL, buckets, 31 * MS) == []
    assert backup.counters.refusals[Refusal.UNVOUCHED] == 3


def test_what_a_liar_claims_to_have_decided_is_requested_from_nobody() -> None:
    active, backup = pair()
    backup.engine.on_output_packet(beat(a_packet(active), OutputFlag.HEARTBEAT, 1, FAR, FAR), 31 * MS)
    assert not backup.replica.intake.has_gap
    assert of(backup.engine.on_timer(100 * MS), RequestRuns) == []


def test_an_heir_waits_for_the_end_of_the_epoch_that_its_active_announces() -> None:
    active, heir = pair()
    packet = a_packet(active)
    heir.engine.on_lease_offered(2, 1, 10 * SECOND, 31 * MS)
    heir.engine.on_output_packet(beat(packet, OutputFlag.HEARTBEAT | OutputFlag.EPOCH_ENDED, 1), 32 * MS)
    assert not heir.engine.lease.is_held
    hear(heir, active.engine.on_hand_over(1, 2, 33 * MS), 33 * MS)
    assert heir.engine.lease.epoch == 2
