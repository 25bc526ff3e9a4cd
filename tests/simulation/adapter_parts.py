"""The configuration of an adapter of a run, and its packets in words."""

from __future__ import annotations

from tandemfeed.feedcore.lease.failing import FailConfig
from tandemfeed.feedcore.lease.peers import ConsentConfig
from tandemfeed.feedcore.replica.config import ChannelConfig, EngineConfig, ReplicaConfig
from tandemfeed.feedcore.replica.input.decision_intake import IntakeConfig
from tandemfeed.feedcore.replica.input.source_tracker import TrackerConfig
from tandemfeed.feedcore.wire.output_packet import OutputFlag, OutputPacket
from tests.simulation.plan import MS, Plan
from tests.simulation.toy_feed import FEED_ID


def engine_config(plan: Plan, adapter_id: int, session: int, previous_process_ended_ns: int | None) -> EngineConfig:
    """The configuration of one adapter."""
    timing = plan.timing
    return EngineConfig(
        FEED_ID,
        adapter_id,
        session,
        tuple(ChannelConfig(number, streams) for number, streams in enumerate(plan.channels, 1)),
        datagram_size_max=plan.datagram_size_max,
        lease_ttl_ns=timing.lease_ttl_ns,
        replica=ReplicaConfig(
            heartbeat_interval_ns=timing.heartbeat_interval_ns,
            idle_heartbeat_interval_ns=timing.heartbeat_interval_ns * 3 // 2,
            pause_after_ns=timing.heartbeat_interval_ns,
            detach_after_ns=5 * timing.heartbeat_interval_ns,
            proceed_after_ns=10 * timing.heartbeat_interval_ns,
            promotion_patience_ns=5 * timing.heartbeat_interval_ns,
            state_interval_ns=timing.state_interval_ns,
            snapshot_retry_ns=100 * MS,
            tracker=TrackerConfig(declare_after_ns=timing.source_declare_after_ns),
            digest_interval_messages=timing.digest_interval_messages,
            publish=plan.publish,
            on_silence=plan.on_silence,
            intake=IntakeConfig(),
        ),
        consent=ConsentConfig.of(timing.sync_interval_ns),
        failing=FailConfig(plan.fail_policy, times=plan.fail_times, ask_every_ns=100 * MS),
        previous_process_ended_ns=previous_process_ended_ns,
        session_state=plan.session_state,
        session_grace_ns=timing.session_grace_ns,
    )


def brief(packet: OutputPacket) -> str:
    """Describes a packet in one line."""
    flags = "+".join(flag.name.lower() for flag in OutputFlag if packet.flags & flag) or "copy"
    runs = ", ".join(
        f"source {run.source_stream_id} {run.first_source_seq}..{run.end_source_seq - 1}"
        f"{' LOST' if run.is_source_gap else ''} -> {run.message_count}"
        for run in packet.runs
    )
    seqs = f"input_seq {packet.first_input_seq} message_seq {packet.first_message_seq}"
    place = f"session {packet.session} epoch {packet.epoch} {seqs}"
    return f"channel {packet.channel_id} {flags}: {place} + {packet.message_count} [{runs}]"
