"""What never changes during a run of an adapter: its place, timers, limits and choices, and their relations."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from feedcore.lease.failing import FailConfig
from feedcore.lease.peers import ConsentConfig
from feedcore.replica.decision_intake import IntakeConfig
from feedcore.replica.source_tracker import TrackerConfig
from feedcore.wire.output_packet import DATAGRAM_SIZE_DEFAULT, DATAGRAM_SIZE_MAX

MS = 1_000_000
SESSION_GRACE_NS = 5_000 * MS  # a source that changes its session says the end of the old one within less


class PublishMode(Enum):
    """When the active transmits what it decided."""

    ASYNC = "async"  # at once
    ACKED = "acked"  # once a backup has acknowledged it


class OnSilence(Enum):
    """What a backup does when neither the active nor an admin server is to be heard."""

    PROCEED = "proceed"  # sends provisionally; per source stream in order
    HOLD = "hold"  # waits; total order is kept


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """Timers of one replica.

    Attributes:
        heartbeat_interval_ns: every stream says its next `message_seq` and its history this often.
        detach_after_ns: silence of the active after which a backup calls itself detached.
        proceed_after_ns: silence of the active, without an admin server, after which a backup sends provisionally.
        throttle_message_count, throttle_pause_ns: how a backup that is ahead lets the active get past it.
        resynchronizing_after_ns: how long decisions or source messages may be outstanding before the state says so.
        snapshot_retry_ns: pause between requests for a snapshot.
        stuck_after_ns: a decision whose source messages do not come for so long is left for a snapshot.
        promotion_patience_ns: how long an heir may lack the end of the epoch that was handed over.
        ask_lease_store_every_ns: pause between requests for a new epoch or a hand-over.
        state_interval_ns: between two savings of the channel's state in the output journal.
        backlog_count_max: source messages waiting for decisions; beyond it a backup joins anew.
        digest_interval_messages: a digest of the conversion state is taken where a decision ends at or after a multiple
            of it, in source messages. One takes about 0.1 ms: at 100,000 messages a second, about 1 % of the time.
        ack_timeout_ns, announce_every_ns, acked_held_count_max: of the `acked` publish mode.
    """

    publish: PublishMode = PublishMode.ASYNC
    on_silence: OnSilence = OnSilence.PROCEED
    heartbeat_interval_ns: int = 10 * MS
    detach_after_ns: int = 100 * MS
    proceed_after_ns: int = 200 * MS
    throttle_message_count: int = 1_000
    throttle_pause_ns: int = 10 * MS
    resynchronizing_after_ns: int = 50 * MS
    snapshot_retry_ns: int = 250 * MS
    stuck_after_ns: int = 2_000 * MS
    promotion_patience_ns: int = 50 * MS
    ask_lease_store_every_ns: int = 1_000 * MS
    state_interval_ns: int = 5_000 * MS
    backlog_count_max: int = 2_000_000
    digest_interval_messages: int = 8_192
    ack_timeout_ns: int = 50 * MS
    announce_every_ns: int = 10 * MS
    acked_held_count_max: int = 16_384
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    intake: IntakeConfig = field(default_factory=IntakeConfig)

    def __post_init__(self) -> None:
        assert self.detach_after_ns > 3 * self.heartbeat_interval_ns  # survives three lost heartbeats
        assert self.proceed_after_ns >= self.detach_after_ns  # only who is detached may proceed
        assert self.announce_every_ns < self.ack_timeout_ns  # survives a lost announcement
        assert self.promotion_patience_ns > self.heartbeat_interval_ns  # survives a lost EPOCH_ENDED


@dataclass(frozen=True, slots=True)
class ChannelConfig:
    """One ordered output stream and the source streams that feed it; a source stream feeds one channel only."""

    channel_id: int
    source_stream_ids: tuple[int, ...]


class SessionState(Enum):
    """What the conversion state is when a session begins."""

    RESET = "reset"  # empty, as at the feed's first start
    CARRY = "carry"  # what it was at the end of the session before


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One adapter of one feed.

    Attributes:
        session: the session to begin in: a growing number, usually the trading day, YYYYMMDD.
        session_grace_ns: how long a session whose end is not known may go on after a later one was heard of.
        datagram_size_max: bytes of an output datagram, header and seal included.
        previous_process_ended_ns: the latest moment, by the same monotonic clock, at which this adapter's previous
            process can have ended. That process may have promised, just before, to abstain from grants. None: this is
            the adapter's first process.
    """

    feed_id: int
    adapter_id: int
    session: int
    channels: tuple[ChannelConfig, ...]
    datagram_size_max: int = DATAGRAM_SIZE_DEFAULT
    lease_ttl_ns: int = 300 * MS
    replica: ReplicaConfig = field(default_factory=ReplicaConfig)
    consent: ConsentConfig = field(default_factory=lambda: ConsentConfig.of(100 * MS))
    failing: FailConfig = field(default_factory=FailConfig)
    previous_process_ended_ns: int | None = None
    session_state: SessionState = SessionState.RESET
    session_grace_ns: int = SESSION_GRACE_NS

    def __post_init__(self) -> None:
        if not 256 <= self.datagram_size_max <= DATAGRAM_SIZE_MAX:
            raise ValueError(f"datagram_size_max is {self.datagram_size_max} bytes, not 256 to {DATAGRAM_SIZE_MAX}")
        streams = [stream for channel in self.channels for stream in channel.source_stream_ids]
        if len(streams) != len(set(streams)):
            raise ValueError(f"a source stream feeds two channels: {sorted(streams)}")
