"""What the adapter's core asks its shell to do. The order of the effects in a returned list is a contract.

The shell performs them one after another: `for effect in engine.on_…(…, now_ns): perform(effect)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from feedcore.output_packet import OutputPacket
from feedcore.position import ChannelSnapshot, MessageStreamState
from feedcore.states import ReplicaState


@dataclass(frozen=True, slots=True)
class AppendToJournal:
    """Append the packet to the output journal. Comes before the `Transmit` of the same packet, so that whatever a
    client may have heard can be replayed by whoever sent it."""

    packet: OutputPacket


@dataclass(frozen=True, slots=True)
class SaveState:
    """Append the channel's state to the output journal, behind every packet that it includes: a restart of this adapter
    goes on from there (`AdapterEngine.resume_from`) and needs only what it missed."""

    snapshot: ChannelSnapshot


@dataclass(frozen=True, slots=True)
class Transmit:
    """Seal the packet and multicast it on this adapter's group of the packet's channel."""

    packet: OutputPacket


@dataclass(frozen=True, slots=True)
class RequestSource:
    """Ask the source journal for source messages first…last of a source stream; what comes is fed in as datagrams."""

    source_stream_id: int
    first_source_seq: int
    last_source_seq: int


@dataclass(frozen=True, slots=True)
class RequestRuns:
    """Ask the adapter (`on_runs`, `on_runs_refused`, or nothing: the core asks again) for the decisions behind
    `position`."""

    channel_id: int
    adapter_id: int
    position: MessageStreamState


@dataclass(frozen=True, slots=True)
class RequestSnapshot:
    """Ask the adapter for a channel snapshot (`on_snapshot`, or nothing: the core asks again)."""

    channel_id: int
    adapter_id: int


@dataclass(frozen=True, slots=True)
class RenewLease:
    """Ask the lease store to renew the lease on `epoch` (`on_lease_renewed`, `on_lease_lost`, or nothing)."""

    epoch: int


@dataclass(frozen=True, slots=True)
class StateMoved:
    """A channel's replica moved; log it, count it, tell the admin server."""

    channel_id: int
    old: ReplicaState
    new: ReplicaState
    reason: str


@dataclass(frozen=True, slots=True)
class RunsLost:
    """The source declared messages lost for good; they are now an explicit gap in the stream. Log it."""

    source_stream_id: int
    first_source_seq: int
    last_source_seq: int


AdapterEffect: TypeAlias = (
    AppendToJournal
    | SaveState
    | Transmit
    | RequestSource
    | RequestRuns
    | RequestSnapshot
    | RenewLease
    | StateMoved
    | RunsLost
)
