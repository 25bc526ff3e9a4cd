"""A run as data: topology, timing, weather and faults, all drawn before the run starts.

A plan can be printed, saved, replayed byte for byte, and shrunk (`tests.simulation.shrinking`). Times are nanoseconds
of virtual time since the start of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Literal

import msgspec

from tandemfeed.feedcore.lease.failing import FailPolicy
from tandemfeed.feedcore.replica.config import OnSilence, PublishMode, SessionState

US = 1_000
MS = 1_000_000
ACTIVE = "active"  # as the victim of a fault: the adapter that holds the lease at that time
ALL_PROCESSES = "*"


class FaultKind(Enum):
    """The kinds of fault; a plan shows the value."""

    CRASH = "crash"  # the process dies, loses its last `amount` journal entries, and restarts after `length_ns`
    VANISH = "vanish"  # like CRASH, but its host vanishes: no connection ends, and nothing more arrives
    PAUSE = "pause"  # the process is paused, then resumes; if it was active, another may be active by then
    PAUSE_BEFORE_SENDING = "pause before sending"  # the process is paused between a decision and sending its packets
    SLOW = "slow"  # every event of the process takes `amount` nanoseconds
    MUTE = "mute"  # one-way partition: `other` receives nothing from `whom`
    CUT = "cut"  # `whom` and `other` cannot reach each other; connections break; with `amount` 1 both ends notice
    HOLD = "hold"  # like CUT, but connections survive, and their messages arrive late
    ADMIN_CRASH = "admin crash"  # the admin server dies and streams end; it restarts, without its last `amount` notes
    ADMIN_PAUSE = "admin pause"  # the admin server is paused: what it is sent waits in its queues
    ADMIN_VANISH = "admin vanish"  # like ADMIN_CRASH, but its host vanishes: streams fall silent instead of ending
    SOURCE_STOP = "source stop"  # the feed source is paused: it sends nothing and answers nothing
    SOURCE_RESET = "source reset"  # packets of an old session appear on the source's groups
    CORRUPT = "corrupt"  # bucket `amount` of a backup's conversion state changes by itself
    HAND_OVER = "hand over"  # an operator orders a planned hand-over to `other`
    GARBLE = "garble"  # every `amount`-th packet that `whom` sends differs in one bit from the packet it journaled
    UNFIT = "unfit"  # the process loses a thread or its disk, and asks to leave; after `length_ns` it is restarted
    DAMAGE = "damage"  # snapshots and buckets that `whom` gives to others are damaged
    LIE = "lie"  # `whom` names wrong numbers, with its own valid keys, beside `amount` of 100 packets and in reports


PAUSES = (FaultKind.PAUSE, FaultKind.ADMIN_PAUSE, FaultKind.SOURCE_STOP)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that affects `whom` from `at_ns` for `length_ns`."""

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
    """Loss, duplication and delay of datagrams during the storm: rates from 0 to 1, delays in nanoseconds."""

    loss: float = 0.0
    duplication: float = 0.0
    delay_min_ns: int = 20 * US
    delay_span_ns: int = 180 * US
    replay_loss: float = 0.0  # share of the packets in replay answers that are lost


CALM = Weather()


@dataclass(frozen=True, slots=True)
class JournalGap:
    """Source messages that are missing from the source journal; only the adapters in `heard_by` ever receive them."""

    source_stream_id: int
    first_source_seq: int
    count: int
    heard_by: tuple[int, ...] = ()

    def __str__(self) -> str:
        last = self.first_source_seq + self.count - 1
        heard_by = f"only adapters {self.heard_by} receive them" if self.heard_by else "no adapter receives them"
        return f"the source journal lacks {self.first_source_seq}..{last} of source {self.source_stream_id}; {heard_by}"


@dataclass(frozen=True, slots=True)
class NewSession:
    """The source ends a session and begins the next one, numbered from 1.

    Attributes:
        begin_ns: since the start of the source.
        message_count: source messages per stream.
        is_end_said: the source announces END_OF_STREAM for the previous session; otherwise only the source journal has
            its end.
    """

    begin_ns: int
    message_count: int
    is_end_said: bool = True

    def __str__(self) -> str:
        how = "" if self.is_end_said else "; the end of the previous session is not announced"
        return f"a session of {self.message_count} messages per stream begins at {self.begin_ns / MS:.1f} ms{how}"


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """One adapter, with the offset and drift of its monotonic clock, and the health that it reports.

    Attributes:
        wall_steps: (when, by how much) its wall clock steps.
    """

    adapter_id: int
    start_ns: int = 0
    clock_offset_ns: int = 0
    drift_ppm: int = 0
    health: float = 1.0
    wall_steps: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """One client.

    Attributes:
        is_live: it starts with the first packet it receives instead of message_seq 1.
        confirm: how many adapters must have transmitted a message before it is delivered.
        declare_after_ns: how long to wait before declaring a gap; 0: the default.
        verify: which packets it believes before they are signed; "": it believes all, and hears no signatures.
    """

    number: int
    start_ns: int = 0
    is_live: bool = False
    confirm: int = 1
    declare_after_ns: int = 0
    verify: Literal["", "alarm", "signed"] = ""


@dataclass(frozen=True, slots=True)
class Timing:
    """Terms and intervals of the cluster, in nanoseconds.

    Attributes:
        source_declare_after_ns: how long the active waits before it may declare a source gap lost.
        session_grace_ns: how long a session with an unknown end may continue after packets of a later session arrive.
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
    """Everything that determines a run.

    Attributes:
        seed: determines the plan and the messages.
        chance_seed: determines the links' random numbers during the run.
        channels: the source streams that each channel reads; channels are numbered from 1.
        message_count: source messages per stream.
        bursts_ns: the source sends half of its packets around these times, so that faults hit many of them.
        journal_gaps: source messages that are missing from the source journal.
        new_sessions: the sessions after the first one, in order.
        has_real_codec: packets are encoded and decoded for every receiver, as on the wire.
        fail_policy, fail_times: which backup asks to be failed, and how often it must have been out of sync before.
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
    journal_gaps: tuple[JournalGap, ...] = ()
    faults: tuple[Fault, ...] = ()
    new_sessions: tuple[NewSession, ...] = ()
    session_state: SessionState = SessionState.RESET

    @property
    def message_counts(self) -> tuple[int, ...]:
        """Source messages per stream, by session."""
        return (self.message_count, *(each.message_count for each in self.new_sessions))

    @property
    def streams(self) -> tuple[int, ...]:
        """Every source stream."""
        return tuple(dict.fromkeys(stream for streams in self.channels for stream in streams))

    @property
    def tables(self) -> tuple[int, ...]:
        """The converter table of each channel: 0, or 1 if an earlier channel reads one of its streams too."""
        known: set[int] = set()
        tables = []
        for streams in self.channels:
            tables.append(int(not known.isdisjoint(streams)))
            known.update(streams)
        return tuple(tables)

    @property
    def may_lose_journals(self) -> bool:
        """True if a fault removes journal entries, so that clients may get gaps."""
        return any(fault.kind in (FaultKind.CRASH, FaultKind.VANISH) and fault.amount for fault in self.faults)

    @property
    def has_total_order(self) -> bool:
        """True if all clients must deliver in the same order: acked publishing, and at most one failing adapter."""
        failing = (FaultKind.CRASH, FaultKind.VANISH, FaultKind.PAUSE, FaultKind.PAUSE_BEFORE_SENDING)
        count = sum(fault.kind in failing for fault in self.faults)
        return self.publish is PublishMode.ACKED and self.on_silence is OnSilence.HOLD and count <= 1

    @property
    def has_lone_pauses(self) -> bool:
        """True if processes are paused one at a time, and nothing else happens: then only a paused process can have
        given a reason to be judged."""
        if not all(fault.kind in PAUSES for fault in self.faults) or self.weather.loss or self.journal_gaps:
            return False
        if self.weather.delay_span_ns > MS or self.weather.replay_loss:
            return False
        ends = [(fault.at_ns, fault.at_ns + fault.length_ns) for fault in self.faults]
        rest_ns = 3 * self.timing.lease_ttl_ns
        return all(end + rest_ns <= later for (_, end), (later, _) in pairwise(ends))

    def has(self, kind: FaultKind) -> bool:
        """True if a fault of this kind is planned."""
        return any(fault.kind is kind for fault in self.faults)

    def describe(self) -> list[str]:
        """The plan in words, as lines."""
        timing, weather = self.timing, self.weather
        lines = [
            f"seed {self.seed}, chance seed {self.chance_seed}",
            f"{len(self.adapters)} adapters, {len(self.clients)} clients, channels {self.channels}",
            f"{self.message_count} messages per stream, storm of {self.storm_ns / MS:.0f} ms, datagrams of "
            f"{self.datagram_size_max} bytes{', real codec' if self.has_real_codec else ''}",
            f"publish mode {self.publish.value}, on silence {self.on_silence.value}, digests every "
            f"{timing.digest_interval_messages} messages",
            f"lease {timing.lease_ttl_ns / MS:.0f} ms, sync {timing.sync_interval_ns / MS:.0f} ms, states every "
            f"{timing.state_interval_ns / MS:.0f} ms, heartbeats {timing.heartbeat_interval_ns / MS:.0f} ms",
            f"backups leave by policy {self.fail_policy.value} after being out of sync {self.fail_times} times",
            f"loss {weather.loss:.0%}, replay loss {weather.replay_loss:.0%}, duplication {weather.duplication:.0%}",
            f"delay {weather.delay_min_ns / MS:.2f} to {(weather.delay_min_ns + weather.delay_span_ns) / MS:.2f} ms",
        ]
        lines += [
            f"adapter{each.adapter_id} starts at {each.start_ns / MS:.1f} ms, clock {each.drift_ppm:+d} ppm, health "
            f"{each.health}"
            + "".join(f", its wall clock steps by {by / MS:+.0f} ms at {at / MS:.1f}" for at, by in each.wall_steps)
            for each in self.adapters
        ]
        lines += [
            f"client{each.number} starts at {each.start_ns / MS:.1f} ms, {'live' if each.is_live else 'from the start'}"
            f", confirm={each.confirm}"
            + (f", declares gaps after {each.declare_after_ns / MS:.0f} ms" if each.declare_after_ns else "")
            + (f', verify="{each.verify}"' if each.verify else "")
            for each in self.clients
        ]
        lines += [str(each) for each in self.new_sessions]
        if self.new_sessions:
            grace_ms = timing.session_grace_ns / MS
            lines.append(f"conversion state of a new session: {self.session_state.value}, grace {grace_ms:.0f} ms")
        return lines + [str(gap) for gap in self.journal_gaps] + [str(fault) for fault in self.faults]

    def encode(self) -> bytes:
        """The plan as JSON, to be saved and replayed."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)


def decode_plan(data: bytes) -> Plan:
    """The inverse of `Plan.encode`.

    Raises:
        msgspec.ValidationError: the data is not a plan.
    """
    return msgspec.json.decode(data, type=Plan)
