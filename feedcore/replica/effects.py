"""The effects that the adapter's core returns for its shell to perform. Their order in a returned list is a contract.

The shell performs them one after another: `perform(engine.on_…(…, now_ns), handler)`. The production loop and the
simulator share `perform`, the only dispatch of effects.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, assert_never

from tandemfeed.feedcore.replica.channel_state import ChannelSnapshot
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.output_packet import OutputPacket
from tandemfeed.feedcore.wire.position import MessageStreamState


@dataclass(slots=True)  # not frozen: every source packet takes one of these, and freezing doubles its cost
class Publish:
    """Append the packets to the output journal, then transmit them, so that the sender can replay every packet that a
    client may have received."""

    packets: Sequence[OutputPacket]


@dataclass(frozen=True, slots=True)
class AppendToJournal:
    """Append the packet to the output journal without transmitting it: a decision that the end of a term overtook, or
    the final heartbeat of a session, which a restarted adapter repeats (`AdapterEngine.resume_final_heartbeats`)."""

    packet: OutputPacket


@dataclass(frozen=True, slots=True)
class SaveState:
    """Append the channel's state to the output journal, after every packet that it includes. A restarted adapter
    continues from there (`AdapterEngine.resume_from`) and requests only what it missed."""

    snapshot: ChannelSnapshot


@dataclass(frozen=True, slots=True)
class Transmit:
    """Seal the packet and multicast it on this adapter's group of the packet's channel, without journaling it: a
    heartbeat, or an announcement."""

    packet: OutputPacket


@dataclass(frozen=True, slots=True)
class RequestSource:
    """Request source messages from the source journal. They arrive as datagrams.

    Attributes:
        ranges: of `source_seq`; their ends are exclusive.
    """

    source_stream_id: int
    ranges: tuple[tuple[int, int], ...]
    session: int = 0


@dataclass(frozen=True, slots=True)
class RequestRuns:
    """Request a session's decisions after `position` from the adapter (`on_answer`, or nothing: the core retries)."""

    channel_id: int
    adapter_id: int
    position: MessageStreamState
    session: int = 0


@dataclass(frozen=True, slots=True)
class RequestSnapshot:
    """Request a snapshot of the channel from the adapter (`on_answer`, or nothing: the core retries)."""

    channel_id: int
    adapter_id: int
    session: int = 0


@dataclass(frozen=True, slots=True)
class RequestBuckets:
    """Request these buckets of conversion state from the adapter (`on_answer`, or nothing: the core retries)."""

    channel_id: int
    adapter_id: int
    buckets: tuple[int, ...]
    session: int = 0


@dataclass(frozen=True, slots=True)
class CommitProvisional:
    """The newest provisional packets in the output journal, `input_seq` first…end - 1 of the channel, are now decisions
    of `epoch`, which begins with the first of them; replay serves them as such. Comes before any packet of it."""

    channel_id: int
    epoch: int
    first_input_seq: int
    end_input_seq: int
    session: int = 0


@dataclass(frozen=True, slots=True)
class ShowEpochProof:
    """Transmit on the channel the admin server's proof that `adapter_id` holds `epoch`, if it is at hand. Comes before
    the heartbeats that need it: receivers believe no epoch without it (protocol 6.11)."""

    channel_id: int
    epoch: int
    adapter_id: int


@dataclass(frozen=True, slots=True)
class AcceptOffer:
    """Accept the lease store's offer of `epoch`: now the store may order the holder to end its own epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class ReleaseLease:
    """Report to the lease store that this adapter has given up `epoch`. Comes after the heartbeats that announce it."""

    epoch: int


@dataclass(frozen=True, slots=True)
class RequestEpoch:
    """Ask the lease store for a new epoch for this adapter, which holds `epoch` (`on_lease_granted`, or nothing)."""

    epoch: int


ANY_HEIR = 0


@dataclass(frozen=True, slots=True)
class RequestHandOver:
    """Ask the lease store to let a backup, the heir, take over from this adapter, which holds `epoch`
    (`on_hand_over`, or nothing). `heir_adapter_id`: ANY_HEIR: the store chooses."""

    epoch: int
    heir_adapter_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class RequestToFail:
    """Ask the admin server to take this adapter out of its group (`on_failed`, or nothing: it may be needed)."""

    reason: str


@dataclass(frozen=True, slots=True)
class RenewLease:
    """Ask the lease store to renew the lease on `epoch` (`on_lease_renewed`, `on_lease_lost`, or nothing)."""

    epoch: int


@dataclass(frozen=True, slots=True)
class StateMoved:
    """A channel's replica changed its state. Log it, count it and report it to the admin server."""

    channel_id: int
    old: ReplicaState
    new: ReplicaState
    reason: str


@dataclass(frozen=True, slots=True)
class SessionBegun:
    """This adapter began the next session. Log it, report it and accept requests of the new session. Comes after every
    packet of the old session that this adapter decided, and before any packet of the new one. `is_complete`: this
    adapter has applied all of the old session."""

    old_session: int
    new_session: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class RunsLost:
    """This adapter declared source messages lost; they are now an explicit gap in the channel. Log it."""

    channel_id: int
    source_stream_id: int
    first_source_seq: int
    last_source_seq: int


ServerRequest: TypeAlias = AcceptOffer | ReleaseLease | RequestEpoch | RequestHandOver | RequestToFail | RenewLease
AdapterEffect: TypeAlias = (
    Publish
    | AppendToJournal
    | SaveState
    | Transmit
    | RequestSource
    | RequestRuns
    | RequestSnapshot
    | RequestBuckets
    | CommitProvisional
    | ShowEpochProof
    | ServerRequest
    | StateMoved
    | SessionBegun
    | RunsLost
)


class EffectHandler(Protocol):
    """A shell: one method per effect, except that `ask_server` takes all requests to the admin server."""

    def publish(self, packets: Sequence[OutputPacket]) -> None: ...
    def append_to_journal(self, packet: OutputPacket) -> None: ...
    def transmit(self, packet: OutputPacket) -> None: ...
    def save_state(self, snapshot: ChannelSnapshot) -> None: ...
    def request_source(self, request: RequestSource) -> None: ...
    def request_runs(self, request: RequestRuns) -> None: ...
    def request_snapshot(self, request: RequestSnapshot) -> None: ...
    def request_buckets(self, request: RequestBuckets) -> None: ...
    def show_epoch_proof(self, shown: ShowEpochProof) -> None: ...
    def commit_provisional(self, committed: CommitProvisional) -> None: ...
    def ask_server(self, request: ServerRequest) -> None: ...
    def on_state_moved(self, moved: StateMoved) -> None: ...
    def on_session_begun(self, begun: SessionBegun) -> None: ...
    def on_runs_lost(self, lost: RunsLost) -> None: ...


def perform(effects: Iterable[AdapterEffect], handler: EffectHandler) -> None:
    """Perform the effects in order."""
    for effect in effects:
        match effect:
            case Publish():
                handler.publish(effect.packets)
            case AppendToJournal():
                handler.append_to_journal(effect.packet)
            case Transmit():
                handler.transmit(effect.packet)
            case SaveState():
                handler.save_state(effect.snapshot)
            case RequestSource():
                handler.request_source(effect)
            case RequestRuns():
                handler.request_runs(effect)
            case RequestSnapshot():
                handler.request_snapshot(effect)
            case RequestBuckets():
                handler.request_buckets(effect)
            case CommitProvisional():
                handler.commit_provisional(effect)
            case ShowEpochProof():
                handler.show_epoch_proof(effect)
            case AcceptOffer() | ReleaseLease() | RequestEpoch() | RequestHandOver() | RequestToFail() | RenewLease():
                handler.ask_server(effect)
            case StateMoved():
                handler.on_state_moved(effect)
            case SessionBegun():
                handler.on_session_begun(effect)
            case RunsLost():
                handler.on_runs_lost(effect)
            case _:
                assert_never(effect)
