"""An adapter that lies with its own valid keys, for drills. Beside the right packets and states it sends false ones.

It is the shipped adapter, with two classes replaced: the engine, whose states go to other adapters and to the admin
server, and the loop, which sends packets. The shipped adapter has no switch for that, so this module runs it in a
process of its own: `python -m tandemfeed.deploy.drills.liar ADAPTER-OPTIONS`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tandemfeed.deploy.command import apply_placement
from tandemfeed.feedcore.replica.channel_state import ChannelStatus, DigestPoint, PeerState
from tandemfeed.feedcore.replica.engine import AdapterEngine
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tandemfeed.feedcore.wire.position import MessageStreamState

HUGE = 2**32 - 2
FAR = 1 << 60
NEAR = 1_000  # epochs beyond those that the server has recorded, as few as a restored backup might lack
LINEAGE_SIZE_MAX = 1_000


def _placed(status: ChannelStatus, state: ReplicaState, epoch: int, ahead: int) -> ChannelStatus:
    old = status.position
    seqs = {stream: seq + ahead for stream, seq in old.next_source_seqs.items()}
    position = MessageStreamState(epoch, old.next_message_seq + ahead, old.next_input_seq + ahead, seqs)
    lineage = Lineage().opened(epoch, position.next_input_seq, position.next_message_seq)
    return replace(status, state=state, position=position, lineage=lineage)


def _wrong_digest(status: ChannelStatus) -> ChannelStatus:
    digest = status.digest
    return replace(
        status, digest=DigestPoint(digest.epoch, digest.input_seq, tuple(each ^ 1 for each in digest.digests))
    )


STATUS_LIES: tuple[Callable[[ChannelStatus], ChannelStatus], ...] = (
    lambda status: _placed(status, ReplicaState.ACTIVE, HUGE, 0),
    lambda status: _placed(status, ReplicaState.SYNCHRONIZED, status.position.epoch + NEAR, 0),
    lambda status: _placed(status, ReplicaState.ACTIVE, status.position.epoch or 1, FAR),
    _wrong_digest,
)
STATE_LIES: tuple[Callable[[PeerState], PeerState], ...] = (
    *((lambda state, lie=lie: replace(state, channels=tuple(map(lie, state.channels)))) for lie in STATUS_LIES),
    lambda state: replace(state, session=state.session + 70),
    lambda state: replace(state, incarnation=state.incarnation + NEAR),
    lambda state: replace(state, health=7.0),
)


def _beat(packet: OutputPacket, flags: int, epoch: int, ahead: int = 0) -> OutputPacket:
    input_seq, message_seq = packet.first_input_seq + ahead, packet.first_message_seq + ahead
    payload = Lineage().opened(epoch, input_seq, message_seq).encode(LINEAGE_SIZE_MAX)
    return packet._replace(
        flags=int(OutputFlag.HEARTBEAT | flags),
        epoch=epoch,
        first_input_seq=input_seq,
        first_message_seq=message_seq,
        message_count=0,
        runs=(),
        payload=payload,
    )


PACKET_LIES: tuple[Callable[[OutputPacket], OutputPacket], ...] = (
    lambda packet: _beat(packet, OutputFlag.FROM_ACTIVE, HUGE),
    lambda packet: _beat(packet, OutputFlag.FROM_ACTIVE, packet.epoch + 1),
    lambda packet: _beat(packet, OutputFlag.FROM_ACTIVE | OutputFlag.EPOCH_ENDED, packet.epoch),
    lambda packet: _beat(packet, OutputFlag.END_OF_STREAM, packet.epoch),
    lambda packet: _beat(packet, 0, packet.epoch, ahead=FAR),
    lambda packet: _beat(packet, OutputFlag.FROM_ACTIVE, packet.epoch)._replace(session=packet.session + 70),
)


class LyingEngine(AdapterEngine):
    """The engine; every second state that it reports is false."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._lies: Iterator[Callable[[PeerState], PeerState]] = itertools.cycle(
            each for lie in STATE_LIES for each in (lie, lambda state: state)
        )

    def report(self, now_ns: int, incarnation: int = 1) -> PeerState:
        """The state, or a false one."""
        return next(self._lies)(super().report(now_ns, incarnation))


def main(argv: Sequence[str] | None = None) -> int:
    """Run an adapter that lies until SIGTERM."""
    from tandemfeed.adapter import cli, process
    from tandemfeed.adapter.loop import AdapterLoop

    lies = itertools.cycle(PACKET_LIES)

    class LyingLoop(AdapterLoop):
        """The loop; beside every packet it sends a false one, which it does not journal."""

        def publish(self, packets: Sequence[OutputPacket]) -> None:
            super().publish(packets)
            for packet in packets:
                super().transmit(next(lies)(packet))

        def transmit(self, packet: OutputPacket) -> None:
            super().transmit(packet)
            if packet.epoch:
                super().transmit(next(lies)(packet))

    process.AdapterEngine = LyingEngine  # type: ignore[attr-defined]
    process.AdapterLoop = LyingLoop  # type: ignore[attr-defined]
    return cli.main(argv)


if __name__ == "__main__":
    apply_placement()
    raise SystemExit(main(sys.argv[1:]))
