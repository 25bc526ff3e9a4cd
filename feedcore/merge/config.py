"""Timers and limits of the client's merge, in one place, with their reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

MS = 1_000_000
HEARTBEAT_NS = 10 * MS  # docs/protocol.md clause 8: every adapter's, however busy the stream is
CompareMode = Literal["full", "sampled", "off"]


@dataclass(frozen=True, slots=True)
class MergerConfig:
    """What a merge may wait for and remember.

    Attributes:
        stale_after_ns: silence (no packet, no heartbeat) after which an adapter's stream is called stale.
        lineage_wait_ns: how long packets wait for a heartbeat that tells where a newer epoch's history comes from.
        held_count_max: packets held early; beyond it the newest are dropped and asked for later.
        request_range_count_max: gaps named in one replay request.
        request_count_max: source messages (or, at the start, messages) asked for in one: a service refuses more than
            1,000,000 in all.
        declared_count_max: declared gaps remembered for a late `Filled`.
        compare: "full" compares every second copy with what was delivered, "sampled" those of every
            `sampled_every`th packet, "off" none.
        compared_count: delivered packets remembered for that; a copy that comes later is counted as not compared.
        session_grace_ns: how long a session whose end no adapter says is waited for once a later one is heard.
        session_look_ns: after that, pause between two looks whether what is missing has come or been declared.
        confirm: how many adapters must have transmitted a message before it is delivered, 1 or 2.
        request_after_ns: how long to wait for another adapter's copy before asking a replay service for a gap.
        reorder_ns: how long once every live stream is past it: the network may have changed packets' order.
        retry_every_ns: pause before the second request; doubled for each further one.
        retry_every_max_ns: cap of that pause.
        declare_after_ns: how long to go on asking before the gap is declared.
    """

    stale_after_ns: int = 200 * MS
    lineage_wait_ns: int = 100 * MS
    held_count_max: int = 65_536
    request_range_count_max: int = 256
    request_count_max: int = 500_000
    declared_count_max: int = 1_024
    compare: CompareMode = "full"
    sampled_every: int = 16
    compared_count: int = 8_192
    session_grace_ns: int = 10_000 * MS
    session_look_ns: int = 10 * MS
    confirm: int = 1
    request_after_ns: int = 4 * MS
    reorder_ns: int = MS // 5
    retry_every_ns: int = 20 * MS
    retry_every_max_ns: int = 250 * MS
    declare_after_ns: int = 5_000 * MS

    def __post_init__(self) -> None:
        if self.confirm not in (1, 2):
            raise ValueError(f"confirm is {self.confirm}: 1 (whichever copy comes first) or 2 (two adapters agree)")
        if self.compare not in get_args(CompareMode):
            raise ValueError(f"compare is {self.compare!r}: one of {', '.join(get_args(CompareMode))}")
        if self.sampled_every < 1:
            raise ValueError(f"sampled_every is {self.sampled_every}: at least 1")
        assert self.lineage_wait_ns > 3 * HEARTBEAT_NS  # survives two lost beats
        assert self.lineage_wait_ns < self.declare_after_ns  # nothing is declared lost meanwhile
        assert self.reorder_ns <= self.request_after_ns
        assert self.request_after_ns <= self.retry_every_ns <= self.retry_every_max_ns < self.declare_after_ns
