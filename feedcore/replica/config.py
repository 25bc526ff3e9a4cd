"""Settings that do not change while an adapter runs: identity, timers, limits and policies, and how they relate."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tandemfeed.feedcore.lease.failing import FailConfig
from tandemfeed.feedcore.lease.peers import ConsentConfig
from tandemfeed.feedcore.replica.input.decision_intake import IntakeConfig
from tandemfeed.feedcore.replica.input.source_tracker import TrackerConfig
from tandemfeed.feedcore.wire.output_packet import DATAGRAM_SIZE_DEFAULT, DATAGRAM_SIZE_MAX

MS = 1_000_000
SESSION_GRACE_NS = 5_000 * MS  # a source that changes its session announces the end of the old one sooner


class PublishMode(Enum):
    """When the active transmits a decision."""

    ASYNC = "async"  # immediately
    ACKED = "acked"  # when a backup has acknowledged it


class OnSilence(Enum):
    """What a backup does when it hears neither the active nor an admin server."""

    PROCEED = "proceed"  # sends provisionally; the order per source stream is kept
    HOLD = "hold"  # waits; the total order is kept


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """Timers of one replica.

    Attributes:
        heartbeat_interval_ns: how often every stream announces its next `message_seq` and its history.
        pause_after_ns: an adapter that is called this much later than it asked for was itself paused, so it judges no
            other by the silence meanwhile.
        idle_heartbeat_interval_ns: the same, once `idle_after_count` heartbeats in a row have said the same. Every
            reader of the channel is woken by each heartbeat.
        detach_after_ns: a backup becomes DETACHED when the active has been silent for this long.
        proceed_after_ns: a backup without an admin server sends provisionally when the active has been silent for this
            long.
        throttle_message_count, throttle_pause_ns: a backup that is ahead pauses for this time after this many messages,
            so that the active gets past it.
        resynchronizing_after_ns: a backup becomes RESYNCHRONIZING when decisions or source messages have been
            outstanding for this long.
        snapshot_retry_ns: pause between requests for a snapshot.
        stuck_after_ns: if the source messages of a decision do not arrive within this time, the backup requests a
            snapshot instead.
        promotion_patience_ns: how long an heir waits for the end of the epoch that was handed over.
        ask_lease_store_every_ns: pause between requests for a new epoch or a hand-over.
        state_interval_ns: how often the channel's state is saved in the output journal.
        backlog_count_max: when more source messages than this wait for decisions, a backup rejoins.
        digest_interval_messages: a digest of the conversion state is taken after each decision that reaches or passes a
            multiple of this `input_seq`. It takes about 0.1 ms: at 100,000 messages a second, about 1 % of the time.
        ack_timeout_ns, announce_every_ns, acked_held_count_max: limits of the `acked` publish mode.
    """

    publish: PublishMode = PublishMode.ASYNC
    on_silence: OnSilence = OnSilence.PROCEED
    heartbeat_interval_ns: int = 10 * MS
    idle_heartbeat_interval_ns: int = 25 * MS
    idle_after_count: int = 20
    pause_after_ns: int = 20 * MS
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
        assert self.idle_heartbeat_interval_ns >= self.heartbeat_interval_ns
        assert self.detach_after_ns > 3 * self.idle_heartbeat_interval_ns  # survives three lost heartbeats
        # A pause of this process that is not noticed, and a heartbeat of the active's that is not read yet after it.
        assert self.detach_after_ns > self.pause_after_ns + 2 * self.idle_heartbeat_interval_ns
        assert self.proceed_after_ns >= self.detach_after_ns  # only a detached backup may proceed
        assert self.announce_every_ns < self.ack_timeout_ns  # survives a lost announcement
        assert self.promotion_patience_ns > self.heartbeat_interval_ns  # survives a lost EPOCH_ENDED


@dataclass(frozen=True, slots=True)
class ChannelConfig:
    """One ordered output stream and the source streams that it reads; several channels may read the same stream."""

    channel_id: int
    source_stream_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(set(self.source_stream_ids)) != len(self.source_stream_ids):
            found = list(self.source_stream_ids)
            raise ValueError(f"channel {self.channel_id} must read each source stream once; it reads {found}")


class SessionState(Enum):
    """The conversion state with which a session begins."""

    RESET = "reset"  # empty, as when the feed first started
    CARRY = "carry"  # as it was at the end of the previous session


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One adapter of one feed.

    Attributes:
        session: the session to begin in. Sessions are increasing numbers, usually the trading day as YYYYMMDD.
        session_grace_ns: how long a session whose end is unknown may continue after a later session was seen.
        datagram_size_max: bytes of an output datagram, including header and seal.
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
            raise ValueError(f"datagram_size_max is {self.datagram_size_max}; it must be 256 to {DATAGRAM_SIZE_MAX}")
