"""What an adapter with valid keys says falsely: in packets, in the states that it sends to others, and in its reports.

Its engine is right, and so are the packets that it makes. Beside them it sends false ones, with genuine seals, tags and
signatures. A lie never concerns what a message says, which only a comparison with other copies shows
(`FaultKind.GARBLE`), nor a decision within the limits by which a copy may precede its original (docs/blast-radius.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random

from tandemfeed.feedcore.replica.channel_state import ChannelStatus, DigestPoint, PeerState
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.output_packet import HEARTBEAT_BIT, OutputFlag, OutputPacket
from tandemfeed.feedcore.wire.position import SEQ_MAX, MessageStreamState
from tests.simulation.proofs import EpochProof

HUGE = 2**32 - 1
FAR = 1 << 60
FROM_ACTIVE = OutputFlag.HEARTBEAT | OutputFlag.FROM_ACTIVE
LINEAGE_SIZE_MAX = 1_000
PacketLie = Callable[[OutputPacket], OutputPacket]
StatusLie = Callable[[ChannelStatus], ChannelStatus]
StateLie = Callable[[PeerState], PeerState]


def beat(packet: OutputPacket, flags: int, epoch: int, ahead: int = 0) -> OutputPacket:
    """A heartbeat with a lineage to match."""
    input_seq, message_seq = packet.first_input_seq + ahead, packet.first_message_seq + ahead
    return packet._replace(
        flags=int(flags),
        epoch=epoch,
        first_input_seq=input_seq,
        first_message_seq=message_seq,
        message_count=0,
        runs=(),
        payload=Lineage().opened(epoch, input_seq, message_seq).encode(LINEAGE_SIZE_MAX),
    )


def _moved(packet: OutputPacket, by: int) -> OutputPacket:
    """The packet elsewhere, with the history that it has."""
    runs = tuple(run._replace(first_input_seq=run.first_input_seq + by) for run in packet.runs)
    return packet._replace(first_input_seq=packet.first_input_seq + by, runs=runs)


# About what the admin server grants, or the source decides. Not even an active can make others believe it.
GRANT_LIES: tuple[PacketLie, ...] = (
    lambda packet: beat(packet, FROM_ACTIVE, HUGE),
    lambda packet: beat(packet, FROM_ACTIVE, packet.epoch + 1_000),
    lambda packet: beat(packet, FROM_ACTIVE, packet.epoch + 200, ahead=5),
    lambda packet: beat(packet, OutputFlag.HEARTBEAT, packet.epoch + 200),
    lambda packet: packet._replace(epoch=HUGE, flags=packet.flags | OutputFlag.PROVISIONAL),
    lambda packet: packet._replace(epoch=packet.epoch + 200),
    lambda packet: beat(packet, FROM_ACTIVE, packet.epoch)._replace(session=packet.session + 70),
    lambda packet: beat(packet, OutputFlag.HEARTBEAT, packet.epoch)._replace(session=20991231),
)
# About what the owner of the packet's epoch decided. The owner's word counts, even for a while after its term.
PLACE_LIES: tuple[PacketLie, ...] = (
    lambda packet: beat(packet, FROM_ACTIVE, packet.epoch),
    lambda packet: beat(packet, FROM_ACTIVE | OutputFlag.EPOCH_ENDED, packet.epoch),
    lambda packet: beat(packet, OutputFlag.HEARTBEAT | OutputFlag.EPOCH_ENDED, packet.epoch),
    lambda packet: beat(packet, OutputFlag.HEARTBEAT | OutputFlag.END_OF_STREAM, packet.epoch),
    lambda packet: beat(packet, OutputFlag.HEARTBEAT, packet.epoch, ahead=3),
    lambda packet: beat(packet, OutputFlag.HEARTBEAT, packet.epoch, ahead=FAR),
    lambda packet: beat(packet, OutputFlag.HEARTBEAT, packet.epoch)._replace(
        payload=Lineage().opened(HUGE, 1, 1).encode(LINEAGE_SIZE_MAX)
    ),
    lambda packet: _moved(packet, 3) if packet.flags & HEARTBEAT_BIT else _moved(packet, FAR),
    lambda packet: (
        packet._replace(flags=packet.flags | OutputFlag.END_OF_STREAM) if packet.flags & HEARTBEAT_BIT else packet
    ),
)


def _at(status: ChannelStatus, state: ReplicaState, epoch: int, ahead: int) -> ChannelStatus:
    """A status at another place, with a lineage to match."""
    old = status.position
    seqs = {stream: seq + ahead for stream, seq in old.next_source_seqs.items()}
    position = MessageStreamState(epoch, old.next_message_seq + ahead, old.next_input_seq + ahead, seqs)
    lineage = Lineage().opened(epoch, position.next_input_seq, position.next_message_seq)
    return replace(status, state=state, position=position, lineage=lineage)


def _with(lie: StatusLie) -> StateLie:
    return lambda state: replace(state, channels=tuple(map(lie, state.channels)))


def _wrong_digest(status: ChannelStatus) -> ChannelStatus:
    digests = tuple(each ^ 0x5555 for each in status.digest.digests)
    return replace(status, digest=DigestPoint(status.digest.epoch, status.digest.input_seq, digests))


PEER_LIES: tuple[StateLie, ...] = (
    _with(lambda status: _at(status, ReplicaState.ACTIVE, HUGE, 0)),
    _with(lambda status: _at(status, ReplicaState.ACTIVE, status.position.epoch + 200, 3)),
    _with(lambda status: _at(status, ReplicaState.ACTIVE, status.position.epoch or 1, FAR)),
    _with(lambda status: _at(status, ReplicaState.SYNCHRONIZED, status.position.epoch or 1, FAR)),
    _with(lambda status: replace(status, available_source_seqs=dict.fromkeys(status.available_source_seqs, FAR))),
    _with(_wrong_digest),
    lambda state: replace(state, session=state.session + 70),
    lambda state: replace(state, incarnation=HUGE, report_id=1 << 63),
    lambda state: replace(state, health=0.0, out_of_sync=True),
    lambda state: replace(state, silences_ns=dict.fromkeys(state.silences_ns, FAR)),
)
# What the server finds false in itself, or has no ground to believe.
REFUSED_LIES: tuple[StateLie, ...] = (
    _with(lambda status: _at(status, ReplicaState.ACTIVE, HUGE, 0)),
    _with(lambda status: _at(status, ReplicaState.SYNCHRONIZED, status.position.epoch + 1_000, 0)),
    _with(lambda status: _at(status, ReplicaState.SYNCHRONIZED, status.position.epoch or 1, SEQ_MAX)),
    lambda state: replace(state, health=math.nan),
    lambda state: replace(state, health=2.0),
    lambda state: replace(state, channels=state.channels * 2),
)
# What may be true: with these, it gets the lease that is free.
PLAUSIBLE_LIES: tuple[StateLie, ...] = (
    _with(lambda status: _at(status, ReplicaState.SYNCHRONIZED, status.position.epoch or 1, 1_000)),
    _with(_wrong_digest),
    lambda state: replace(state, session=state.session + 70),
    lambda state: replace(state, health=1.0, out_of_sync=False),
    lambda state: replace(state, silences_ns=dict.fromkeys(state.silences_ns, FAR)),
)


class Liar:
    """The lies of one adapter, by random numbers of its own.

    Args:
        share: of its packets, states and reports, the part that is accompanied, or replaced, by a lie.

    Attributes:
        refusable: the ids of reports that the admin server must refuse.
    """

    def __init__(self, seed: int, adapter_id: int, share: float) -> None:
        self._chance = Random((seed << 8) ^ adapter_id ^ 0x11E5)
        self._adapter_id, self._share = adapter_id, share
        self._is_plausible = self._chance.random() < 0.3
        self.refusable: set[int] = set()

    def packets(self, packet: OutputPacket, owner: int) -> list[OutputPacket]:
        """False packets to send beside a true one. Args: owner: the adapter that its epoch was granted to."""
        if not packet.epoch or self._chance.random() >= self._share:
            return []
        lies = GRANT_LIES if owner == self._adapter_id else (*GRANT_LIES, *PLACE_LIES)
        return [lie(packet) for lie in self._chance.sample(lies, 2)]

    def to_peer(self, state: PeerState, *, is_active: bool) -> PeerState:
        """What it sends to another adapter instead of its state. What an active says of its own decisions counts."""
        if is_active or self._chance.random() >= self._share:
            return state
        return self._chance.choice(PEER_LIES)(state)

    def to_server(self, state: PeerState) -> PeerState:
        """What it reports to the admin server instead of its state."""
        if self._chance.random() >= self._share:
            return state
        if self._is_plausible:
            return self._chance.choice(PLAUSIBLE_LIES)(state)
        self.refusable.add(state.report_id)
        return self._chance.choice(REFUSED_LIES)(state)

    def proof(self, known: EpochProof | None) -> EpochProof | None:
        """The proof of an epoch that it shows, which may be invented."""
        if self._chance.random() >= self._share:
            return known
        return EpochProof(self._chance.choice((HUGE, 300)), self._adapter_id)
