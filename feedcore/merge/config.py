"""Timers and limits of the client's merge, in one place, with their reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

MS = 1_000_000
HEARTBEAT_NS = 10 * MS  # docs/protocol.md clause 8: every adapter sends one, however busy its stream is
IDLE_HEARTBEAT_NS = 25 * MS  # the same, once twenty in a row have said the same
CompareMode = Literal["full", "sampled", "off"]


@dataclass(frozen=True, slots=True)
class MergerConfig:
    """What a merge may wait for and remember.

    Attributes:
        stale_after_ns: silence (no packet, no heartbeat) after which an adapter's stream is stale.
        lineage_wait_ns: how long packets of older epochs wait for a heartbeat with a newer epoch's lineage.
        held_count_max: early packets to hold; beyond it the newest are dropped and requested later.
        request_range_count_max: gaps named in one replay request.
        request_count_max: source messages (or, at the start, messages) named in one replay request; a service refuses
            more than 1,000,000 in all.
        catching_up_count: source messages missing, from which on each request yields `CatchingUp`.
        declared_count_max: declared gaps remembered for a late `Filled`.
        compare: "full" compares every second copy with what was delivered, "sampled" only those of every
            `sampled_every`th packet, "off" none.
        compared_count: delivered packets remembered for comparison; a later copy is counted as not compared.
        session_grace_ns: after a later session is heard, how long to wait until an adapter reports the end of this one.
        session_look_ns: after that, the interval of checking whether missing messages have arrived or been declared.
        confirm: how many adapters must have transmitted a message before it is delivered, 1 or 2.
        request_after_ns: how long to wait for another adapter's copy before requesting a gap from a replay service.
        reorder_ns: how long to wait once every live stream is past the gap; the network may have reordered packets.
        retry_every_ns: pause before the second request, doubled for each further one.
        retry_every_max_ns: the maximum of that pause.
        declare_after_ns: how long to request a gap before it is declared.
    """

    stale_after_ns: int = 200 * MS
    lineage_wait_ns: int = 100 * MS
    held_count_max: int = 65_536
    request_range_count_max: int = 256
    request_count_max: int = 500_000
    catching_up_count: int = 100_000
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
            raise ValueError(
                f"confirm is {self.confirm}; it must be 1 (deliver the first copy) or 2 (deliver once two copies agree)"
            )
        if self.compare not in get_args(CompareMode):
            raise ValueError(f"compare is {self.compare!r}; it must be one of {', '.join(get_args(CompareMode))}")
        if self.sampled_every < 1:
            raise ValueError(f"sampled_every is {self.sampled_every}; it must be at least 1")
        assert self.lineage_wait_ns > 3 * HEARTBEAT_NS  # survives two lost heartbeats
        assert self.lineage_wait_ns < self.declare_after_ns  # nothing is declared lost meanwhile
        assert self.reorder_ns <= self.request_after_ns
        assert self.request_after_ns <= self.retry_every_ns <= self.retry_every_max_ns < self.declare_after_ns
