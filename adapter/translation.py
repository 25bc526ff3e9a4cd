"""Between the cores' words and the contracts': one function a word and direction, nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from adapter.health import Health
from feedcore.engine import ChannelStatus, RunsReply
from feedcore.position import MessageStreamState, Run
from feedcore.states import ReplicaState
from tandemfeed.v1 import common_pb2, sync_pb2


def position_to_proto(position: MessageStreamState) -> common_pb2.MessageStreamState:
    """Message stream state."""
    return common_pb2.MessageStreamState(
        epoch=position.epoch,
        next_message_seq=position.next_message_seq,
        next_source_seqs=position.next_source_seqs,
    )


def position_from_proto(position: common_pb2.MessageStreamState) -> MessageStreamState:
    """Message stream state."""
    return MessageStreamState(position.epoch, position.next_message_seq, dict(position.next_source_seqs))


def status_to_proto(status: ChannelStatus) -> common_pb2.ChannelState:
    """A channel's state."""
    return common_pb2.ChannelState(
        channel_id=status.channel_id,
        replica_state=status.state.value,
        position=position_to_proto(status.position),
        epoch_first_message_seq=status.epoch_first_message_seq,
        digest_message_seq=status.digest_message_seq,
        digests=status.digests,
    )


def status_from_proto(state: common_pb2.ChannelState) -> ChannelStatus:
    """A channel's state; ValueError if the state's name is unknown."""
    return ChannelStatus(
        state.channel_id,
        ReplicaState(state.replica_state),
        position_from_proto(state.position),
        state.epoch_first_message_seq,
        state.digest_message_seq,
        tuple(state.digests),
    )


def adapter_state_to_proto(
    adapter_id: int, incarnation: int, statuses: Iterable[ChannelStatus], health: Health
) -> common_pb2.FeedAdapterState:
    """Feed adapter state = message stream states + conversion state (by digest) + health state."""
    return common_pb2.FeedAdapterState(
        adapter_id=adapter_id,
        incarnation=incarnation,
        channels=[status_to_proto(status) for status in statuses],
        health=common_pb2.HealthState(
            score=health.score,
            memory_available_ratio=health.memory_available_ratio,
            cpu_ratio=health.cpu_ratio,
            error_count=health.error_count,
            messages_per_second=health.messages_per_second,
            source_lag_messages=health.source_lag_messages,
        ),
    )


def runs_to_proto(reply: RunsReply) -> sync_pb2.GetRunsReply:
    """Decisions."""
    return sync_pb2.GetRunsReply(
        epoch=reply.epoch,
        epoch_first_message_seq=reply.epoch_first_message_seq,
        runs=[common_pb2.Run(**run._asdict()) for run in reply.runs],
        epoch_starts=reply.epoch_starts,
    )


def runs_from_proto(reply: sync_pb2.GetRunsReply) -> RunsReply:
    """Decisions."""
    runs = tuple(
        Run(
            run.epoch,
            run.first_message_seq,
            run.source_stream_id,
            run.first_source_seq,
            run.source_count,
            run.message_count,
            run.is_source_gap,
        )
        for run in reply.runs
    )
    starts: Mapping[int, int] = dict(reply.epoch_starts)
    return RunsReply(reply.epoch, reply.epoch_first_message_seq, runs, starts)
