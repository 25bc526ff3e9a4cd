"""What never changes during a run of an adapter."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from feedcore.lease.failing import FailConfig
from feedcore.lease.peers import ConsentConfig
from feedcore.replica.config import ReplicaConfig
from feedcore.wire.output_packet import DATAGRAM_SIZE_DEFAULT, DATAGRAM_SIZE_MAX

MS = 1_000_000
SESSION_GRACE_NS = 5_000 * MS  # a source that changes its session says the end of the old one within less


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
        session_state: what becomes of the conversion state when the next session begins.
        session_grace_ns: how long a session whose end is not known may go on after a later one was heard of.
        datagram_size_max: bytes of an output datagram, header and seal included.
        lease_ttl_ns: the lease's term as the admin server announced it.
        former_life_ended_ns: not later than this, by the same monotonic clock, the process ended that was this adapter
            before; it may have promised just then to abstain from grants. None: there was none.
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
    former_life_ended_ns: int | None = None
    session_state: SessionState = SessionState.RESET
    session_grace_ns: int = SESSION_GRACE_NS

    def __post_init__(self) -> None:
        if not 256 <= self.datagram_size_max <= DATAGRAM_SIZE_MAX:
            raise ValueError(
                f"datagram_size_max {self.datagram_size_max} is not within 256 and {DATAGRAM_SIZE_MAX} bytes"
            )
        streams = [stream for channel in self.channels for stream in channel.source_stream_ids]
        if len(streams) != len(set(streams)):
            raise ValueError(f"a source stream feeds two channels: {sorted(streams)}")
