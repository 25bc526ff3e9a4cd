"""Draws a plan from a seed: makes all random choices that precede a run.

Most plans are small and quick, so that many interleavings are tried; some are large, so that all parts interact.
`SIZES` lists the sizes; docs/simulation.md says how long they take.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tandemfeed.feedcore.replica.config import OnSilence, PublishMode, SessionState
from tests.simulation.plan import (
    ACTIVE,
    ALL_PROCESSES,
    MS,
    US,
    AdapterPlan,
    ClientPlan,
    Fault,
    FaultKind,
    JournalGap,
    NewSession,
    Plan,
    Timing,
    Weather,
)
from tests.simulation.scenarios import WHOLE_JOURNAL, Scenario, apply_scenario
from tests.simulation.toy_feed import SYMBOLS
from tests.simulation.world import ADMIN, SOURCE

SCENARIO_SHARE = 0.45  # of the seeds: a scenario applies
NEW_SESSION_SHARE = 0.35  # of the other seeds: the source begins one or two new sessions
PATIENCE_NS = 600 * MS  # after the storm, before a session without an announced end is concluded
ACKED_SHARE = 0.15  # of the runs: acked publishing
HOLD_SHARE = 0.3  # of the runs: adapters hold on silence; in the others they proceed
SHARED_SHARE = 0.2  # of the runs: several channels read the same source streams
PAUSING_SHARE = 0.3  # of the runs: readers pause at random
TRUST_SHARE = 0.4  # of the runs: readers check signatures
LYING_SHARE = 0.06  # of the runs: an adapter lies
UNFIT_SHARE = 0.15  # of the runs: adapters lose a thread or their disk
HEARD_BY_SOME_PERCENT = 50  # of the journal gaps: some adapters received the messages


@dataclass(frozen=True, slots=True)
class Size:
    """A class of runs: the values to draw from."""

    weight: int
    adapters: tuple[int, ...]
    clients: tuple[int, ...]
    channels: tuple[int, ...]
    streams: tuple[int, ...]
    messages: tuple[int, int]
    storm_ms: tuple[int, ...]
    faults: tuple[int, ...]
    lease_ttl_ms: tuple[int, ...]
    heartbeat_ms: tuple[int, ...]


SIZES = (
    Size(176, (1, 2, 2, 2, 2, 3), (1,), (1,), (1, 2, 2), (6, 40), (250, 400), (0, 1, 2, 2, 3, 4), (60, 100), (20, 30)),
    Size(21, (2, 2, 3, 3), (1, 2), (1, 1, 2), (1, 2, 3), (20, 80), (500, 800), (1, 2, 3, 4), (100, 150), (15, 20)),
    Size(3, (2, 3, 4, 5), (1, 2, 3), (1, 2, 3), (2, 3, 4), (50, 200), (1_000, 1_500), (2, 3, 4, 6), (150, 300), (10,)),
)
KINDS = {  # relative frequency of each kind of fault
    FaultKind.CRASH: 6,
    FaultKind.VANISH: 2,
    FaultKind.PAUSE: 5,
    FaultKind.PAUSE_BEFORE_SENDING: 2,
    FaultKind.SLOW: 2,
    FaultKind.MUTE: 3,
    FaultKind.CUT: 3,
    FaultKind.HOLD: 2,
    FaultKind.ADMIN_CRASH: 2,
    FaultKind.ADMIN_VANISH: 1,
    FaultKind.ADMIN_PAUSE: 2,
    FaultKind.SOURCE_STOP: 1,
    FaultKind.SOURCE_RESET: 1,
    FaultKind.CORRUPT: 1,
    FaultKind.HAND_OVER: 3,
    FaultKind.GARBLE: 1,
    FaultKind.DAMAGE: 1,
}


def draw_plan(seed: int, scenario: Scenario | None = None) -> Plan:
    """The plan of a seed.

    Args:
        scenario: the scenario to apply; None: a share of the seeds gets a random one.
    """
    chance = random.Random(seed)
    size = chance.choices(SIZES, [size.weight for size in SIZES])[0]
    plan = _draw_at_large(seed, chance, size)
    is_free = scenario is None
    if scenario is None and chance.random() < SCENARIO_SHARE:
        scenario = chance.choice([each for each in Scenario if each is not Scenario.LIES])
    if scenario is Scenario.LIES or (is_free and random.Random((seed << 8) ^ 0x11E).random() < LYING_SHARE):
        plan = apply_scenario(Scenario.LIES, _with_sessions(plan, size), chance)
        return _patient(_with_readers(_with_shared_streams(plan)))
    plan = _with_sessions(plan, size) if scenario is None else apply_scenario(scenario, plan, chance)
    plan = _with_shared_streams(plan)
    if scenario is not Scenario.PAUSES:
        plan = _with_unfit_adapters(_with_readers(plan))
    return plan if plan.journal_gaps or scenario is Scenario.PAUSES else _patient(plan)


def _with_readers(plan: Plan) -> Plan:
    """The plan; in a share of the runs, readers pause at random, in half of these without any other fault. In another
    share, they check signatures, and the adapters' wall clocks step."""
    chance = random.Random((plan.seed << 8) ^ 0x9A05E)  # a separate generator, so that nothing else changes
    if chance.random() < TRUST_SHARE:
        clients = tuple(replace(each, verify=chance.choice(("alarm", "alarm", "signed"))) for each in plan.clients)
        adapters = tuple(replace(each, wall_steps=_draw_steps(chance, plan.storm_ns)) for each in plan.adapters)
        plan = replace(plan, clients=clients, adapters=adapters)
    if chance.random() >= PAUSING_SHARE:
        return plan
    end_ns = plan.source_start_ns + plan.storm_ns
    pauses = [
        Fault(
            FaultKind.PAUSE,
            chance.randrange(end_ns),
            chance.choice((30, 60, 120, 120, 250, 500)) * MS,
            f"client{chance.choice(plan.clients).number}",
        )
        for _ in range(chance.randint(1, 12))
    ]
    faults = pauses if chance.random() < 0.5 and not plan.has(FaultKind.LIE) else [*plan.faults, *pauses]
    return replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at_ns)))


def _with_unfit_adapters(plan: Plan) -> Plan:
    """The plan; in a share of the runs, adapters lose something that they need."""
    chance = random.Random((plan.seed << 8) ^ 0x0F17)  # a separate generator, so that nothing else changes
    if chance.random() >= UNFIT_SHARE:
        return plan
    names = [f"adapter{each.adapter_id}" for each in plan.adapters]
    lost = [
        Fault(
            FaultKind.UNFIT,
            chance.randrange(plan.source_start_ns + plan.storm_ns),
            chance.choice((60, 150, 400)) * MS,
            chance.choice((ACTIVE, *names)),
        )
        for _ in range(chance.choice((1, 1, 2, 3)))
    ]
    return replace(plan, faults=tuple(sorted((*plan.faults, *lost), key=lambda fault: fault.at_ns)))


def _draw_steps(chance: random.Random, storm_ns: int) -> tuple[tuple[int, int], ...]:
    """When a wall clock steps, and by how much."""
    count = chance.choice((0, 0, 1, 2))
    sizes_ns = [sign * size * MS for sign in (-1, 1) for size in (3_600_000, 130, 40)]
    return tuple((chance.randrange(storm_ns), chance.choice(sizes_ns)) for _ in range(count))


def _patient(plan: Plan) -> Plan:
    """If nothing is missing from the source journal, adapters must not declare losses while it is unreachable."""
    return replace(plan, timing=replace(plan.timing, source_declare_after_ns=Timing().source_declare_after_ns))


def _draw_at_large(seed: int, chance: random.Random, size: Size) -> Plan:
    storm_ns = chance.choice(size.storm_ms) * MS
    timing = _draw_timing(chance, size)
    adapters = tuple(
        AdapterPlan(number, chance.randrange(20 * MS), chance.randrange(1 << 40), chance.randint(-200, 200))
        for number in range(1, chance.choice(size.adapters) + 1)
    )
    clients = tuple(
        _draw_client(chance, number, storm_ns, len(adapters)) for number in range(1, chance.choice(size.clients) + 1)
    )
    channels = _draw_channels(chance, size)
    count = chance.randint(*size.messages)
    has_journal_gaps = chance.random() < 0.1
    journal_gaps = _draw_journal_gaps(chance, channels, count, len(adapters)) if has_journal_gaps else ()
    if journal_gaps:
        timing = _impatient(chance, timing)
    source_start_ns = chance.randrange(120 * MS)
    bursts_ns = tuple(sorted(chance.randrange(storm_ns) for _ in range(chance.choice((0, 1, 2, 3)))))
    moments = [source_start_ns + burst_ns for burst_ns in bursts_ns]
    faults = [_draw_fault(chance, adapters, clients, storm_ns, moments) for _ in range(chance.choice(size.faults))]
    return Plan(
        seed=seed,
        chance_seed=seed,
        adapters=adapters,
        clients=clients,
        channels=channels,
        message_count=count,
        storm_ns=storm_ns,
        source_start_ns=source_start_ns,
        bursts_ns=bursts_ns,
        datagram_size_max=chance.choice((256, 256, 512)),
        has_real_codec=chance.random() < 0.1,
        timing=timing,
        publish=PublishMode.ACKED if chance.random() < ACKED_SHARE else PublishMode.ASYNC,
        on_silence=OnSilence.HOLD if chance.random() < HOLD_SHARE else OnSilence.PROCEED,
        weather=_draw_weather(chance),
        journal_gaps=journal_gaps,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_ns)),
    )


def _with_sessions(plan: Plan, size: Size) -> Plan:
    """The plan; in a share of the runs, with one or two new sessions."""
    chance = random.Random((plan.seed << 8) ^ 0x5E55)  # a separate generator, so that nothing else changes
    if chance.random() >= NEW_SESSION_SHARE:
        return plan
    new_sessions = _draw_sessions(chance, size, plan.storm_ns)
    is_end_announced = all(each.is_end_said for each in new_sessions)
    grace_ns = plan.storm_ns + PATIENCE_NS
    timing = replace(
        plan.timing, session_grace_ns=chance.choice((grace_ns, 5_000 * MS)) if is_end_announced else grace_ns
    )
    begins_ns = [plan.source_start_ns + each.begin_ns for each in new_sessions]
    faults = plan.faults + tuple(
        _draw_fault(chance, plan.adapters, plan.clients, plan.storm_ns, begins_ns)
        for _ in range(chance.choice((0, 0, 1, 2)))
    )
    return replace(
        plan,
        timing=timing,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_ns)),
        new_sessions=new_sessions,
        session_state=SessionState.CARRY if len(new_sessions) == 1 and chance.random() < 0.3 else SessionState.RESET,
    )


def _with_shared_streams(plan: Plan) -> Plan:
    """The plan; in a share of the runs, with another channel that reads some of the streams, or with channels that read
    each other's streams."""
    chance = random.Random((plan.seed << 8) ^ 0x5A7ED)  # a separate generator, so that nothing else changes
    if chance.random() >= SHARED_SHARE:
        return plan
    if len(plan.channels) == 1 or chance.random() < 0.5:
        read = chance.sample(plan.streams, chance.randint(1, len(plan.streams)))
        return replace(plan, channels=(*plan.channels, tuple(sorted(read))))
    others = [[stream for stream in plan.streams if stream not in streams] for streams in plan.channels]
    also = [chance.sample(found, chance.randint(0, len(found))) for found in others]
    channels = tuple((*streams, *sorted(more)) for streams, more in zip(plan.channels, also, strict=True))
    return replace(plan, channels=channels)


def _draw_sessions(chance: random.Random, size: Size, storm_ns: int) -> tuple[NewSession, ...]:
    """One new session, sometimes two, well within the storm."""
    count = chance.choice((1, 1, 1, 2))
    begins = [storm_ns * (number + 1) // (count + 1) + chance.randrange(-20 * MS, 20 * MS) for number in range(count)]
    return tuple(NewSession(begin, chance.randint(*size.messages), chance.random() < 0.75) for begin in begins)


def _draw_timing(chance: random.Random, size: Size) -> Timing:
    ttl_ns = chance.choice(size.lease_ttl_ms) * MS
    return Timing(
        lease_ttl_ns=ttl_ns,
        sync_interval_ns=ttl_ns // chance.choice((2, 3, 4)),
        state_interval_ns=chance.choice((20, 100, 400)) * MS,
        heartbeat_interval_ns=chance.choice(size.heartbeat_ms) * MS,
        grace_ns=chance.choice((100, 300)) * MS,
        digest_interval_messages=chance.choice((8, 64, 8_192)),
    )


def _impatient(chance: random.Random, timing: Timing) -> Timing:
    """If messages are missing from the source journal, adapters declare them lost during the run."""
    return replace(timing, source_declare_after_ns=chance.choice((80, 200)) * MS)


def _draw_client(chance: random.Random, number: int, storm_ns: int, adapter_count: int) -> ClientPlan:
    is_late = chance.random() < 0.15
    is_live = chance.random() < 0.15
    confirm = 2 if adapter_count > 1 and chance.random() < 0.12 else 1
    return ClientPlan(number, chance.randrange(storm_ns) if is_late else 0, is_live, confirm)


def _draw_channels(chance: random.Random, size: Size) -> tuple[tuple[int, ...], ...]:
    channel_count, stream_count = chance.choice(size.channels), chance.choice(size.streams)
    stream_count = max(stream_count, channel_count)
    groups: list[list[int]] = [[number] for number in range(1, channel_count + 1)]
    for stream in range(channel_count + 1, stream_count + 1):
        chance.choice(groups).append(stream)
    return tuple(tuple(group) for group in groups)


def _draw_weather(chance: random.Random) -> Weather:
    return Weather(
        loss=chance.choice((0.0, 0.01, 0.05, 0.15, 0.3)),
        duplication=chance.choice((0.0, 0.0, 0.05, 0.2)),
        delay_span_ns=chance.choice((180 * US, 180 * US, 3 * MS, 12 * MS)),
    )


def _draw_journal_gaps(
    chance: random.Random, channels: tuple[tuple[int, ...], ...], count: int, adapter_count: int
) -> tuple[JournalGap, ...]:
    journal_gaps = []
    for stream in sorted(stream for streams in channels for stream in streams):
        if chance.random() < 0.7:
            first = chance.randint(1, count)
            heard_by: tuple[int, ...] = ()
            if chance.randrange(100) < HEARD_BY_SOME_PERCENT:
                heard_by = tuple(sorted(chance.sample(range(1, adapter_count + 1), chance.randint(1, adapter_count))))
            journal_gaps.append(JournalGap(stream, first, min(chance.randint(1, 8), count - first + 1), heard_by))
    return tuple(journal_gaps)


def _draw_fault(
    chance: random.Random,
    adapters: tuple[AdapterPlan, ...],
    clients: tuple[ClientPlan, ...],
    storm_ns: int,
    moments: list[int],
) -> Fault:
    """Draw a fault; half of the faults are near a burst of the source."""
    kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
    at_ns = chance.randrange(storm_ns // 8, storm_ns)
    if moments and chance.random() < 0.5:
        at_ns = max(0, chance.choice(moments) + chance.randrange(-2 * MS, 10 * MS))
    length_ns = chance.choice((5, 20, 50, 100, 200, 400)) * MS
    names = [f"adapter{each.adapter_id}" for each in adapters]
    whom, other, amount = chance.choice((*names, ACTIVE)), "", 0
    if kind in (FaultKind.CRASH, FaultKind.VANISH):
        amount = chance.choice((0, 0, 0, 1, 3, 10, WHOLE_JOURNAL))
    elif kind is FaultKind.SLOW:
        amount = chance.choice((200 * US, 1 * MS, 4 * MS))
    elif kind is FaultKind.PAUSE:
        whom = chance.choice((whom, whom, whom, f"client{chance.choice(clients).number}"))
    elif kind in (FaultKind.MUTE, FaultKind.CUT, FaultKind.HOLD):
        other = chance.choice(
            (*(name for name in names if name != whom), ADMIN, ADMIN, SOURCE, "client1", ALL_PROCESSES)
        )
        if kind is FaultKind.MUTE and chance.random() < 0.5 and other != ALL_PROCESSES:
            whom, other = other, whom
        amount = int(kind is FaultKind.CUT and chance.random() < 0.5)
    elif kind in (FaultKind.ADMIN_CRASH, FaultKind.ADMIN_VANISH):
        whom, amount = ADMIN, chance.choice((0, 0, 1, 3))
    elif kind is FaultKind.ADMIN_PAUSE:
        whom = ADMIN
    elif kind is FaultKind.GARBLE:
        amount = chance.choice((1, 2, 3))
    elif kind is FaultKind.CORRUPT:
        amount = chance.randrange(SYMBOLS)
    elif kind is FaultKind.HAND_OVER:
        whom, other, length_ns = ADMIN, chance.choice(("", *names)), 0
    elif kind in (FaultKind.SOURCE_STOP, FaultKind.SOURCE_RESET):
        whom = SOURCE
    return Fault(kind, at_ns, length_ns, whom, other, amount)
