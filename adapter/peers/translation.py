"""Translates between the cores' types and the protobuf types: one function per type and direction.

The functions that read check a peer's input and raise ValueError if it is impossible.
"""

from __future__ import annotations

from collections.abc import Iterable

from tandemfeed.adapter.reporting.health import Health
from tandemfeed.feedcore.replica.channel_state import (
    Buckets,
    ChannelSnapshot,
    ChannelStatus,
    DigestPoint,
    PeerState,
    RunsReply,
)
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tandemfeed.feedcore.wire.lineage import Lineage, checked_lineage
from tandemfeed.feedcore.wire.position import FIRST_SEQ, SEQ_MAX, MessageStreamState, Run
from tandemfeed.feedcore.wire.refusal import PacketRefused
from tandemfeed.v1 import common_pb2, sync_pb2

SNAPSHOT_CHUNK_SIZE = 1 << 20


def position_to_proto(position: MessageStreamState) -> common_pb2.MessageStreamState:
    """Message stream state."""
    return common_pb2.MessageStreamState(
        epoch=position.epoch,
        next_input_seq=position.next_input_seq,
        next_message_seq=position.next_message_seq,
        next_source_seqs=position.next_source_seqs,
    )


def position_from_proto(position: common_pb2.MessageStreamState) -> MessageStreamState:
    """Message stream state; ValueError if a number is out of range."""
    for seq in (position.next_input_seq, position.next_message_seq, *position.next_source_seqs.values()):
        _check_seq(seq)
    return MessageStreamState(
        position.epoch, position.next_input_seq, position.next_message_seq, dict(position.next_source_seqs)
    )


def _check_seq(seq: int) -> None:
    if not FIRST_SEQ <= seq < SEQ_MAX:
        raise ValueError(f"a sequence number is {seq}; it must be from {FIRST_SEQ} to {SEQ_MAX - 1}")


def lineage_to_proto(lineage: Lineage) -> list[common_pb2.LineageEntry]:
    """A lineage."""
    return [common_pb2.LineageEntry(**entry._asdict()) for entry in lineage.entries]


def lineage_from_proto(entries: Iterable[common_pb2.LineageEntry]) -> Lineage:
    """A lineage; ValueError if it is impossible."""
    try:
        return checked_lineage((entry.epoch, entry.first_input_seq, entry.first_message_seq) for entry in entries)
    except PacketRefused as refused:
        raise ValueError(str(refused)) from refused


def status_to_proto(status: ChannelStatus) -> common_pb2.ChannelState:
    """A channel's state."""
    return common_pb2.ChannelState(
        channel_id=status.channel_id,
        replica_state=status.state.value,
        position=position_to_proto(status.position),
        digest_epoch=status.digest.epoch,
        digest_input_seq=status.digest.input_seq,
        digests=status.digest.digests,
        lineage=lineage_to_proto(status.lineage),
        available_source_seqs=status.available_source_seqs,
    )


def status_from_proto(state: common_pb2.ChannelState) -> ChannelStatus:
    """A channel's state; ValueError if its name is unknown, or its position or lineage is impossible."""
    position, lineage = position_from_proto(state.position), lineage_from_proto(state.lineage)
    if position.epoch != lineage.epoch:
        raise ValueError(f"the position is of epoch {position.epoch}, but the lineage is {lineage.entries}")
    return ChannelStatus(
        state.channel_id,
        ReplicaState(state.replica_state),
        position,
        lineage,
        DigestPoint(state.digest_epoch, state.digest_input_seq, tuple(state.digests)),
        dict(state.available_source_seqs),
    )


def peer_state_to_proto(state: PeerState, health: Health) -> common_pb2.FeedAdapterState:
    """Feed adapter state = message stream states + conversion state (by digest) + health state."""
    return common_pb2.FeedAdapterState(
        adapter_id=state.adapter_id,
        incarnation=state.incarnation,
        channels=[status_to_proto(status) for status in state.channels],
        health=common_pb2.HealthState(
            score=state.health,
            memory_available_ratio=health.memory_available_ratio,
            cpu_ratio=health.cpu_ratio,
            error_count=health.error_count,
            messages_per_second=health.messages_per_second,
            source_lag_messages=health.source_lag_messages,
            unfit_reason=health.unfit_reason,
        ),
        report_id=state.report_id,
        heard_report_ids=state.heard_report_ids,
        abstains=state.abstains,
        out_of_sync=state.out_of_sync,
        session=state.session,
        adapter_silence_ns=state.silences_ns,
    )


def peer_state_from_proto(state: common_pb2.FeedAdapterState) -> PeerState:
    """Feed adapter state; ValueError if a part of it is impossible."""
    if not 0 <= state.health.score <= 1:  # refuses NaN too
        raise ValueError(f"the health score is {state.health.score}; it must be from 0 to 1")
    return PeerState(
        state.adapter_id,
        state.incarnation,
        state.report_id,
        tuple(status_from_proto(channel) for channel in state.channels),
        dict(state.heard_report_ids),
        state.abstains,
        state.out_of_sync,
        state.health.score,
        state.session,
        dict(state.adapter_silence_ns),
    )


def runs_to_proto(reply: RunsReply) -> sync_pb2.GetRunsReply:
    """Decisions."""
    return sync_pb2.GetRunsReply(
        runs=[common_pb2.Run(**run._asdict()) for run in reply.runs],
        lineage=lineage_to_proto(reply.lineage),
        session=reply.session,
    )


def runs_from_proto(reply: sync_pb2.GetRunsReply) -> RunsReply:
    """Decisions; ValueError if one of them, or their lineage, is impossible."""
    runs = tuple(
        Run(
            run.epoch,
            run.first_input_seq,
            run.first_message_seq,
            run.source_stream_id,
            run.first_source_seq,
            run.source_count,
            run.message_count,
            run.is_source_gap,
        )
        for run in reply.runs
    )
    for run in runs:
        _check_run(run)
    return RunsReply(lineage_from_proto(reply.lineage), runs, reply.session)


def _check_run(run: Run) -> None:
    for seq in (run.first_input_seq, run.first_message_seq, run.first_source_seq):
        _check_seq(seq)
    for seq in (run.end_input_seq, run.end_message_seq, run.end_source_seq):
        _check_seq(seq)
    if not run.epoch or not run.source_count or (run.is_source_gap and run.message_count != 1):
        raise ValueError(f"not a decision: {run}")


def state_chunks(
    position: MessageStreamState, lineage: Lineage, digests: Iterable[int], data: bytes, session: int
) -> Iterable[sync_pb2.SnapshotChunk]:
    """A snapshot, or some of its buckets, in chunks that fit a gRPC message."""
    for offset in range(0, max(len(data), 1), SNAPSHOT_CHUNK_SIZE):
        chunk = sync_pb2.SnapshotChunk(data=data[offset : offset + SNAPSHOT_CHUNK_SIZE])
        if offset == 0:
            chunk.position.CopyFrom(position_to_proto(position))
            chunk.total_size = len(data)
            chunk.digests.extend(digests)
            chunk.session = session
            chunk.lineage.extend(lineage_to_proto(lineage))
        yield chunk


def _joined(chunks: list[sync_pb2.SnapshotChunk]) -> bytes:
    data = b"".join(chunk.data for chunk in chunks)
    if not chunks or len(data) != chunks[0].total_size:
        expected = chunks[0].total_size if chunks else "some"
        raise ValueError(f"the answer was cut short: {len(data)} bytes, expected {expected}")
    return data


def snapshot_from_chunks(channel_id: int, chunks: list[sync_pb2.SnapshotChunk]) -> ChannelSnapshot:
    """A snapshot; ValueError if it is incomplete."""
    data, first = _joined(chunks), chunks[0]
    return ChannelSnapshot(
        channel_id,
        position_from_proto(first.position),
        lineage_from_proto(first.lineage),
        data,
        tuple(first.digests),
        first.session,
    )


def buckets_from_chunks(chunks: list[sync_pb2.SnapshotChunk]) -> Buckets:
    """Some buckets; ValueError if they are incomplete."""
    data, first = _joined(chunks), chunks[0]
    return Buckets(position_from_proto(first.position), data, tuple(first.digests), first.session)
