"""A run as data: topology, timing, weather and faults, wholly drawn before anything happens.

A plan can be printed, written down, replayed byte for byte, and shrunk (`tests.simulation.shrinking`). Times are
nanoseconds of virtual time since the run began.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec

from feedcore.lease.failing import FailPolicy
from feedcore.replica.config import OnSilence, PublishMode, SessionState

US = 1_000
MS = 1_000_000
ACTIVE = "active"  # as the victim of a fault: whoever holds the lease at that moment
EVERYBODY = "*"


class FaultKind(Enum):
    """One sentence each; the value is what a plan shows."""

    CRASH = "crash"  # the process dies, its last `amount` journal entries with it, and starts again after the length
    VANISH = "vanish"  # as CRASH, but its host is gone: no connection ends, silence is all that is heard
    PAUSE = "pause"  # the process stands still and then goes on: a zombie, if it was active
    PAUSE_BEFORE_SENDING = "pause before sending"  # stands still between a decision and the sending of its packets
    SLOW = "slow"  # every event of the process takes `amount` nanoseconds
    MUTE = "mute"  # one-way partition: `other` hears nothing of `whom`
    CUT = "cut"  # `whom` and `other` hear nothing of each other; connections break, with `amount` 1 seen at both ends
    HOLD = "hold"  # as CUT, but connections outlive it: what was said on them arrives late
    ADMIN_CRASH = "admin crash"  # the admin server dies, streams end, it restores itself; `amount` lease notes are lost
    ADMIN_VANISH = "admin vanish"  # as ADMIN_CRASH, but its host is gone: streams do not end, they fall silent
    SOURCE_STOP = "source stop"  # the feed source sends and answers nothing
    SOURCE_RESET = "source reset"  # a session that is long over is played again on the source's groups
    CORRUPT = "corrupt"  # bucket `amount` of a backup's conversion state changes by itself
    HAND_OVER = "hand over"  # an admin orders a planned hand-over to `other`
    GARBLE = "garble"  # a bit of every `amount`-th packet that `whom` sends differs from what it made and journalled
    DAMAGE = "damage"  # snapshots and buckets that `whom` gives to others are damaged


@dataclass(frozen=True, slots=True)
class Fault:
    """Something bad that happens to `whom` at `at_ns` and ends after `length_ns`."""

    kind: FaultKind
    at_ns: int
    length_ns: int = 0
    whom: str = ""
    other: str = ""
    amount: int = 0

    def __str__(self) -> str:
        parts = [f"at {self.at_ns / MS:.1f} ms", self.kind.value]
        parts += [part for part in (self.whom, f"-> {self.other}" if self.other else "") if part]
        if self.length_ns:
            parts.append(f"for {self.length_ns / MS:.1f} ms")
        return " ".join(parts) + (f" (amount {self.amount})" if self.amount else "")


@dataclass(frozen=True, slots=True)
class Weather:
    """What multicast links do to datagrams while the storm lasts: rates within 0 and 1, delays in nanoseconds."""

    loss: float = 0.0
    duplication: float = 0.0
    delay_min_ns: int = 20 * US
    delay_span_ns: int = 180 * US
    replay_loss: float = 0.0  # of the packets in a replay service's answer


CALM = Weather()


@dataclass(frozen=True, slots=True)
class SourceHole:
    """Source messages that the source journal has lost for good; only these adapters ever hear them."""

    source_stream_id: int
    first_source_seq: int
    count: int
    heard_by: tuple[int, ...] = ()

    def __str__(self) -> str:
        last = self.first_source_seq + self.count - 1
        return f"source {self.source_stream_id} lost {self.first_source_seq}..{last}, heard by {self.heard_by}"


@dataclass(frozen=True, slots=True)
class NewSession:
    """The source ends a session and begins the next one, whose numbers begin at 1.

    Attributes:
        begin_ns: since the source began.
        message_count: source messages of each stream.
        is_end_said: the source says END_OF_STREAM of the session before; else only the source journal knows its end.
    """

    begin_ns: int
    message_count: int
    is_end_said: bool = True

    def __str__(self) -> str:
        how = "" if self.is_end_said else ", the end of the one before is not said"
        return f"a session of {self.message_count} messages a stream begins at {self.begin_ns / MS:.1f} ms{how}"


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """One adapter; its monotonic clock has an offset and a drift of its own. `health`: as its shell measures it."""

    adapter_id: int
    start_ns: int = 0
    clock_offset_ns: int = 0
    drift_ppm: int = 0
    health: float = 1.0


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """One client. `is_live`: it begins with the first packet heard, not with message_seq 1. `confirm`: how many
    adapters must have transmitted what it delivers. `declare_after_ns`: its patience with a gap; 0: the usual one."""

    number: int
    start_ns: int = 0
    is_live: bool = False
    confirm: int = 1
    declare_after_ns: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """Terms and intervals of the cluster, all nanoseconds.

    Attributes:
        source_declare_after_ns: how long a source hole stays open before the active may declare it lost.
        session_grace_ns: how long a session whose end is not known may go on after a later one was heard of.
    """

    lease_ttl_ns: int = 300 * MS
    sync_interval_ns: int = 100 * MS
    state_interval_ns: int = 100 * MS
    heartbeat_interval_ns: int = 10 * MS
    grace_ns: int = 400 * MS
    source_declare_after_ns: int = 60_000 * MS
    digest_interval_messages: int = 64
    session_grace_ns: int = 5_000 * MS


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a run is made of.

    Attributes:
        seed: what it was drawn from, and what the messages are made from.
        chance_seed: of the links' chances within the run.
        channels: per channel (numbered from 1) the source streams that feed it.
        message_count: source messages of each stream.
        bursts_ns: around these moments the source sends half of its packets, so that faults find many under way.
        new_sessions: after the first one, in order.
        has_real_codec: packets are encoded and decoded for every receiver, as on the wire.
        fail_policy, fail_times: which backup asks to be failed, once one was out of sync so often.
    """

    seed: int
    chance_seed: int
    adapters: tuple[AdapterPlan, ...]
    clients: tuple[ClientPlan, ...]
    channels: tuple[tuple[int, ...], ...]
    message_count: int
    storm_ns: int
    source_start_ns: int = 0
    bursts_ns: tuple[int, ...] = ()
    datagram_size_max: int = 256
    has_real_codec: bool = False
    timing: Timing = Timing()
    publish: PublishMode = PublishMode.ASYNC
    on_silence: OnSilence = OnSilence.PROCEED
    fail_policy: FailPolicy = FailPolicy.LOWEST
    fail_times: int = 3
    weather: Weather = CALM
    holes: tuple[SourceHole, ...] = ()
    faults: tuple[Fault, ...] = ()
    new_sessions: tuple[NewSession, ...] = ()
    session_state: SessionState = SessionState.RESET

    @property
    def message_counts(self) -> tuple[int, ...]:
        """Source messages of each stream, by session."""
        return (self.message_count, *(each.message_count for each in self.new_sessions))

    @property
    def streams(self) -> tuple[int, ...]:
        """Every source stream."""
        return tuple(stream for streams in self.channels for stream in streams)

    @property
    def may_lose_journals(self) -> bool:
        """True if a fault takes journal entries along, so that a client may be told of a gap."""
        return any(fault.kind in (FaultKind.CRASH, FaultKind.VANISH) and fault.amount for fault in self.faults)

    @property
    def has_total_order(self) -> bool:
        """True if all clients must deliver in one order: publishing is acknowledged, and at most one adapter fails."""
        failing = (FaultKind.CRASH, FaultKind.VANISH, FaultKind.PAUSE, FaultKind.PAUSE_BEFORE_SENDING)
        count = sum(fault.kind in failing for fault in self.faults)
        return self.publish is PublishMode.ACKED and self.on_silence is OnSilence.HOLD and count <= 1

    def has(self, kind: FaultKind) -> bool:
        """True if a fault of this kind is planned."""
        return any(fault.kind is kind for fault in self.faults)

    def describe(self) -> list[str]:
        """For people, a line each."""
        timing, weather = self.timing, self.weather
        lines = [
            f"seed {self.seed}, chances {self.chance_seed}",
            f"{len(self.adapters)} adapters, {len(self.clients)} clients, channels {self.channels}",
            f"{self.message_count} messages a stream, storm of {self.storm_ns / MS:.0f} ms, datagrams of "
            f"{self.datagram_size_max} bytes{', real codec' if self.has_real_codec else ''}",
            f"publishing {self.publish.value}, on silence {self.on_silence.value}, digests every "
            f"{timing.digest_interval_messages} messages",
            f"lease {timing.lease_ttl_ns / MS:.0f} ms, sync {timing.sync_interval_ns / MS:.0f} ms, states every "
            f"{timing.state_interval_ns / MS:.0f} ms, heartbeats {timing.heartbeat_interval_ns / MS:.0f} ms",
            f"backups leave by {self.fail_policy.value} after being out of sync {self.fail_times} times",
            f"loss {weather.loss:.0%}, of replays {weather.replay_loss:.0%}, duplication {weather.duplication:.0%}",
            f"delay {weather.delay_min_ns / MS:.2f} to {(weather.delay_min_ns + weather.delay_span_ns) / MS:.2f} ms",
        ]
        lines += [
            f"adapter{each.adapter_id} starts at {each.start_ns / MS:.1f} ms, clock {each.drift_ppm:+d} ppm, health "
            f"{each.health}"
            for each in self.adapters
        ]
        lines += [
            f"client{each.number} starts at {each.start_ns / MS:.1f} ms, {'live' if each.is_live else 'from the start'}"
            f", confirm={each.confirm}"
            + (f", declares gaps after {each.declare_after_ns / MS:.0f} ms" if each.declare_after_ns else "")
            for each in self.clients
        ]
        lines += [str(each) for each in self.new_sessions]
        if self.new_sessions:
            grace_ms = timing.session_grace_ns / MS
            lines.append(f"conversion state at a new session: {self.session_state.value}, grace {grace_ms:.0f} ms")
        return lines + [str(hole) for hole in self.holes] + [str(fault) for fault in self.faults]

    def encode(self) -> bytes:
        """As JSON, for a file to replay from."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)


def decode_plan(data: bytes) -> Plan:
    """The inverse of `Plan.encode`.

    Raises:
        msgspec.ValidationError: it is no plan.
    """
    return msgspec.json.decode(data, type=Plan)
