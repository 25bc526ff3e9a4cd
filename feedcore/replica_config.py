"""The timers and limits of one replica, and their relations."""

from __future__ import annotations

from dataclasses import dataclass, field

from feedcore.decision_intake import IntakeConfig
from feedcore.source_tracker import TrackerConfig

MS = 1_000_000


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """Timers of one replica.

    Attributes:
        heartbeat_interval_ns: a silent stream says its next `message_seq` this often.
        detach_after_ns: silence of the active after which a backup calls itself detached.
        resynchronizing_after_ns: how long decisions or source messages may be outstanding before the state says so.
        snapshot_retry_ns: pause between requests for a snapshot.
        state_interval_ns: between two savings of the channel's state in the output journal.
        backlog_count_max: source messages waiting for decisions; beyond it a backup joins anew.
    """

    heartbeat_interval_ns: int = 10 * MS
    detach_after_ns: int = 100 * MS
    resynchronizing_after_ns: int = 50 * MS
    snapshot_retry_ns: int = 250 * MS
    state_interval_ns: int = 5_000 * MS
    backlog_count_max: int = 2_000_000
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    intake: IntakeConfig = field(default_factory=IntakeConfig)

    def __post_init__(self) -> None:
        assert self.detach_after_ns > 3 * self.heartbeat_interval_ns  # survives three lost heartbeats
