"""Scenarios: classes of plans for situations that freely drawn plans rarely reach.

A scenario changes a drawn plan so that its situation becomes likely. Most seeds stay as they were drawn; the rest are
divided among the scenarios (`tests.simulation.drawing`). A planted fault that only one scenario finds names it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum

from tandemfeed.feedcore.lease.failing import FailPolicy
from tandemfeed.feedcore.replica.config import OnSilence, PublishMode
from tests.simulation.plan import (
    ACTIVE,
    ALL_PROCESSES,
    MS,
    AdapterPlan,
    ClientPlan,
    Fault,
    FaultKind,
    JournalGap,
    Plan,
    Weather,
)
from tests.simulation.toy_feed import SYMBOLS
from tests.simulation.world import ADMIN, SOURCE

WHOLE_JOURNAL = 1_000_000  # entries; more than in any run


class Scenario(Enum):
    """The scenarios, each with a description."""

    OUTAGES = "partitions split the adapters and the admin server repeatedly; some adapters start late"
    RESTORED = "the admin server dies several times and forgets grants, and lease holders die soon after"
    ACKED = "acked publishing under loss; actives die, and backups need snapshots"
    COPIES = "copies differ, replay services lose packets, and clients need confirmation or declare gaps early"
    JOURNAL_GAPS = "messages that some adapters received are missing from the source journal"
    DAMAGE = "conversion states change by themselves or are damaged in transfer; health and fail policies vary"
    FLAPPING = "the active falls silent repeatedly"
    RESTARTS = "adapters restart from saved states while messages keep coming"
    PAUSES = "adapters, clients, the admin server and the source are paused, one at a time, and nothing else happens"
    HAND_OVERS = "hand-overs under loss, reordering and slow adapters"
    LIES = "one of three or four adapters names wrong numbers, while others crash, pause and hand over, one at a time"


def apply_scenario(scenario: Scenario, plan: Plan, chance: random.Random) -> Plan:
    """The plan, changed by the scenario."""
    return _SCENARIOS[scenario](plan, chance)


# ---- shared by several scenarios ----


def _adapters(plan: Plan, chance: random.Random, counts: Sequence[int]) -> tuple[AdapterPlan, ...]:
    """New adapters, their number drawn from `counts`."""
    return tuple(
        AdapterPlan(number, chance.randrange(20 * MS), chance.randrange(1 << 40), chance.randint(-200, 200))
        for number in range(1, chance.choice(counts) + 1)
    )


def _names(adapters: Sequence[AdapterPlan]) -> list[str]:
    return [f"adapter{each.adapter_id}" for each in adapters]


def _with_faults(plan: Plan, faults: list[Fault]) -> Plan:
    return replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at_ns)))


def _split(chance: random.Random, names: list[str], at_ns: int, length_ns: int) -> list[Fault]:
    """A partition into two sides; some of the connections between them survive it."""
    processes = [*names, ADMIN]
    ours = chance.sample(processes, chance.randint(1, len(processes) - 1))
    kind = chance.choice((FaultKind.CUT, FaultKind.CUT, FaultKind.HOLD))
    is_seen = int(kind is FaultKind.CUT and chance.random() < 0.5)
    return [
        Fault(kind, at_ns, length_ns, whom, other, is_seen)
        for whom in processes
        for other in processes
        if whom in ours and other not in ours
    ]


# ---- the scenarios ----


def _outages(plan: Plan, chance: random.Random) -> Plan:
    adapters = list(_adapters(plan, chance, (2, 3, 3, 3, 4)))
    storm_ns = chance.choice((500, 800)) * MS
    if len(adapters) > 2 and chance.random() < 0.4:
        late = chance.randrange(len(adapters))
        adapters[late] = replace(adapters[late], start_ns=chance.randrange(storm_ns // 2))
    names = _names(adapters)
    faults: list[Fault] = []
    for _ in range(chance.choice((1, 2, 2, 3))):
        at_ns = chance.choice((0, 1, 1, 1)) * chance.randrange(storm_ns)
        length_ns = chance.choice((20, 60, 120, 250, 400)) * MS
        if chance.random() < 0.35:
            kind = chance.choice((FaultKind.ADMIN_CRASH, FaultKind.ADMIN_VANISH))
            faults.append(Fault(kind, at_ns, length_ns, ADMIN, "", chance.choice((0, 0, 1))))
        else:
            faults += _split(chance, names, at_ns, length_ns)
        kind = chance.choice((FaultKind.PAUSE, FaultKind.PAUSE, FaultKind.CRASH, FaultKind.VANISH, FaultKind.MUTE))
        near_ns = max(0, at_ns + chance.randrange(length_ns + 50 * MS))
        if chance.random() < 0.3:
            faults.append(Fault(FaultKind.CUT, near_ns, chance.choice((50, 150)) * MS, ACTIVE, ADMIN, 1))
        whom, other = chance.choice((*names, ACTIVE, ACTIVE)), ""
        if kind is FaultKind.MUTE:
            other = chance.choice((*(name for name in names if name != whom), ADMIN))
        faults.append(Fault(kind, near_ns, chance.choice((20, 60, 100, 200)) * MS, whom, other))
    return _with_faults(replace(plan, adapters=tuple(adapters), storm_ns=storm_ns, journal_gaps=()), faults)


def _restored(plan: Plan, chance: random.Random) -> Plan:
    adapters = _adapters(plan, chance, (3, 3, 4))
    storm_ns, names = chance.choice((500, 800)) * MS, _names(adapters)
    faults: list[Fault] = []
    for _ in range(chance.choice((2, 3, 4))):
        at_ns = chance.randrange(storm_ns)
        length_ns = chance.choice((5, 10, 20)) * MS
        kind = chance.choice((FaultKind.ADMIN_CRASH, FaultKind.ADMIN_VANISH))
        faults.append(Fault(kind, at_ns, length_ns, ADMIN, "", chance.choice((0, 1, 1, 2))))
        if chance.random() < 0.5:  # the newest holder is cut off and missing from the notes, and two adapters die
            faults.append(Fault(FaultKind.HAND_OVER, max(0, at_ns - chance.randrange(5, 30) * MS), 0, ADMIN, ""))
            faults.append(Fault(FaultKind.CUT, max(0, at_ns - MS), 150 * MS, ACTIVE, ADMIN))
            for name in chance.sample(names, 2):
                near_ns = at_ns + length_ns + chance.randrange(20, 50) * MS
                faults.append(Fault(FaultKind.CRASH, near_ns, chance.choice((2, 5)) * MS, name))
        for _ in range(chance.choice((1, 2))):
            kind = chance.choice((FaultKind.CRASH, FaultKind.CRASH, FaultKind.HAND_OVER, FaultKind.PAUSE))
            near_ns = max(0, at_ns + chance.randrange(-40 * MS, length_ns + 60 * MS))
            length = chance.choice((10, 50, 150)) * MS
            if kind is FaultKind.HAND_OVER:
                faults.append(Fault(kind, near_ns, 0, ADMIN, chance.choice(("", *names))))
            else:
                faults.append(Fault(kind, near_ns, length, chance.choice((*names, ACTIVE))))
    return _with_faults(replace(plan, adapters=adapters, storm_ns=storm_ns, journal_gaps=()), faults)


def _acked(plan: Plan, chance: random.Random) -> Plan:
    adapters = _adapters(plan, chance, (2, 2, 3))
    names, storm_ns = _names(adapters), plan.storm_ns
    faults = []
    for _ in range(chance.choice((1, 2, 2, 3))):
        kind = chance.choice((FaultKind.CRASH, FaultKind.CRASH, FaultKind.VANISH, FaultKind.PAUSE, FaultKind.HAND_OVER))
        at_ns = chance.randrange(storm_ns)
        if plan.bursts_ns and chance.random() < 0.7:
            at_ns = max(0, plan.source_start_ns + chance.choice(plan.bursts_ns) + chance.randrange(-2 * MS, 15 * MS))
        length_ns = chance.choice((5, 20, 50, 100)) * MS
        if kind is FaultKind.HAND_OVER:
            faults.append(Fault(kind, at_ns, 0, ADMIN, ""))
        else:
            is_backup = kind is FaultKind.CRASH and chance.random() < 0.5
            whom = chance.choice(names) if is_backup else ACTIVE
            faults.append(Fault(kind, at_ns, length_ns, whom, "", WHOLE_JOURNAL if is_backup else 0))
    weather = replace(plan.weather, loss=chance.choice((0.0, 0.05, 0.15, 0.3)))
    on_silence = chance.choice((OnSilence.HOLD, OnSilence.HOLD, OnSilence.PROCEED))
    changed = replace(plan, adapters=adapters, weather=weather, publish=PublishMode.ACKED, on_silence=on_silence)
    return _with_faults(replace(changed, journal_gaps=()), faults)


def _copies(plan: Plan, chance: random.Random) -> Plan:
    adapters = _adapters(plan, chance, (2, 2, 3, 3))
    names, storm_ns = _names(adapters), plan.storm_ns
    clients = tuple(
        ClientPlan(
            number,
            confirm=chance.choice((1, 2)),
            is_live=chance.random() < 0.1,
            declare_after_ns=chance.choice((0, 150, 200, 300)) * MS,
        )
        for number in (1, 2)
    )
    faults = list(plan.faults[:2])
    for _ in range(chance.choice((0, 1, 2))):
        length_ns = chance.choice((50, 100, 400)) * MS
        at_ns, every = chance.randrange(storm_ns), chance.choice((1, 2, 3))
        faults.append(Fault(FaultKind.GARBLE, at_ns, length_ns, chance.choice((*names, ACTIVE)), "", every))
    for _ in range(chance.choice((0, 1, 1, 2))):
        kind = chance.choice((FaultKind.CUT, FaultKind.HOLD, FaultKind.MUTE))
        at_ns, length_ns = chance.randrange(storm_ns), chance.choice((50, 200, 300, 400)) * MS
        whom, other = chance.choice((ALL_PROCESSES, ALL_PROCESSES, *names)), chance.choice(("client1", "client2"))
        faults.append(Fault(kind, at_ns, length_ns, whom, other))
    if chance.random() < 0.4:  # the client receives only one adapter, and the answers of the others come late
        at_ns, heard = chance.randrange(storm_ns // 2), chance.choice(names)
        faults += [Fault(FaultKind.HOLD, at_ns, 350 * MS, name, "client1") for name in names if name != heard]
    weather = Weather(
        chance.choice((0.0, 0.05, 0.15, 0.3)),
        plan.weather.duplication,
        delay_span_ns=plan.weather.delay_span_ns,
        replay_loss=chance.choice((0.0, 0.5, 0.9)),
    )
    return _with_faults(replace(plan, adapters=adapters, clients=clients, weather=weather), faults)


def _journal_gaps(plan: Plan, chance: random.Random) -> Plan:
    adapters = _adapters(plan, chance, (2, 3, 3, 4))
    count, ids = plan.message_count, [each.adapter_id for each in adapters]
    journal_gaps = []
    for stream in plan.streams:
        if chance.random() < 0.8:
            first = chance.randint(1, count)
            heard_by = tuple(sorted(chance.sample(ids, chance.choice((0, 1, 1, len(ids) - 1)))))
            journal_gaps.append(JournalGap(stream, first, min(chance.randint(1, 4), count - first + 1), heard_by))
    timing = replace(plan.timing, source_declare_after_ns=chance.choice((80, 200)) * MS)
    faults = list(plan.faults[:2])
    if chance.random() < 0.5:
        at_ns = chance.randrange(plan.storm_ns)
        faults.append(Fault(FaultKind.CRASH, at_ns, chance.choice((20, 100)) * MS, ACTIVE))
    loss = chance.choice((0.0, 0.0, 0.05, plan.weather.loss))
    weather = replace(plan.weather, loss=loss)
    return _with_faults(
        replace(plan, adapters=adapters, timing=timing, journal_gaps=tuple(journal_gaps), weather=weather), faults
    )


def _damage(plan: Plan, chance: random.Random) -> Plan:
    policy = chance.choice(list(FailPolicy))
    scores = (0.1, 0.1, 0.6) if policy is FailPolicy.BELOW_THRESHOLD else (0.1, 0.3, 0.6, 1.0)
    adapters = tuple(replace(each, health=chance.choice(scores)) for each in _adapters(plan, chance, (2, 3, 3, 4)))
    names, storm_ns = _names(adapters), chance.choice((400, 800)) * MS
    faults = []
    for _ in range(chance.choice((1, 2, 3, 4))):
        symbol = chance.randrange(SYMBOLS)
        faults.append(Fault(FaultKind.CORRUPT, chance.randrange(storm_ns), 0, chance.choice(names), "", symbol))
    for _ in range(chance.choice((0, 1, 2))):
        at_ns, length_ns = chance.randrange(storm_ns), chance.choice((50, 100, 400)) * MS
        faults.append(Fault(FaultKind.DAMAGE, at_ns, length_ns, chance.choice((*names, ACTIVE))))
    for _ in range(chance.choice((0, 1, 2))):
        at_ns, length_ns = chance.randrange(storm_ns), chance.choice((10, 50)) * MS
        faults.append(Fault(FaultKind.CRASH, at_ns, length_ns, chance.choice(names), "", WHOLE_JOURNAL))
    timing = replace(plan.timing, digest_interval_messages=chance.choice((4, 8)))
    changed = replace(plan, adapters=adapters, storm_ns=storm_ns, timing=timing, journal_gaps=())
    return _with_faults(replace(changed, fail_policy=policy, fail_times=chance.choice((1, 1, 1, 2, 3))), faults)


def _flapping(plan: Plan, chance: random.Random) -> Plan:
    adapters = _adapters(plan, chance, (2, 2, 3))
    names, storm_ns = _names(adapters), 800 * MS
    silence_ns = 5 * plan.timing.heartbeat_interval_ns
    whom, deaf = chance.sample(names, 2)
    at_ns, faults = chance.randrange(50 * MS, 150 * MS), []
    for _ in range(chance.choice((3, 4, 5))):
        length_ns = silence_ns + chance.choice((5, 20, 60)) * MS
        faults.append(Fault(FaultKind.MUTE, at_ns, length_ns, chance.choice((whom, ACTIVE)), deaf))
        at_ns += length_ns + chance.choice((10, 40, 100)) * MS
    return _with_faults(
        replace(plan, adapters=adapters, storm_ns=storm_ns, journal_gaps=()), [*plan.faults[:1], *faults]
    )


def _restarts(plan: Plan, chance: random.Random) -> Plan:
    adapters = _adapters(plan, chance, (2, 3))
    names, storm_ns = _names(adapters), chance.choice((400, 600)) * MS
    faults = list(plan.faults[:1])
    for _ in range(chance.choice((1, 2, 3))):
        kind, amount = chance.choice((FaultKind.CRASH, FaultKind.VANISH)), chance.choice((0, 0, 0, 1, 3))
        at_ns, length_ns = chance.randrange(storm_ns), chance.choice((5, 20, 50)) * MS
        faults.append(Fault(kind, at_ns, length_ns, chance.choice((*names, ACTIVE)), "", amount))
    timing = replace(plan.timing, state_interval_ns=chance.choice((20, 50)) * MS)
    count = plan.message_count + 40
    return _with_faults(
        replace(plan, adapters=adapters, storm_ns=storm_ns, timing=timing, message_count=count, journal_gaps=()), faults
    )


def _pauses(plan: Plan, chance: random.Random) -> Plan:
    adapters = _adapters(plan, chance, (2, 2, 3))
    rest_ns = 3 * plan.timing.lease_ttl_ns
    at_ns, faults = chance.randrange(250 * MS, 400 * MS), []  # every adapter is synchronized by then
    for _ in range(chance.choice((1, 2, 3))):
        whom = chance.choice((*_names(adapters), *_names(adapters), ADMIN, ADMIN, SOURCE, "client1"))
        kind = {ADMIN: FaultKind.ADMIN_PAUSE, SOURCE: FaultKind.SOURCE_STOP}.get(whom, FaultKind.PAUSE)
        length_ns = chance.choice((15, 30, 60, 100, 150, 250, 400, 700)) * MS
        faults.append(Fault(kind, at_ns, length_ns, whom))
        at_ns += length_ns + rest_ns + chance.randrange(50 * MS)
    calm = replace(plan, adapters=adapters, storm_ns=at_ns, weather=Weather(), journal_gaps=())
    timing = replace(plan.timing, source_declare_after_ns=chance.choice((100, 300)) * MS)
    return _with_faults(replace(calm, timing=timing), faults)


def _hand_overs(plan: Plan, chance: random.Random) -> Plan:
    adapters = _adapters(plan, chance, (2, 3))
    names, storm_ns = _names(adapters), plan.storm_ns
    faults = list(plan.faults[:1])
    for _ in range(chance.choice((2, 3, 4))):
        at_ns = chance.randrange(storm_ns)
        if plan.bursts_ns and chance.random() < 0.6:
            at_ns = plan.source_start_ns + chance.choice(plan.bursts_ns) + chance.randrange(8 * MS)
        faults.append(Fault(FaultKind.HAND_OVER, at_ns, 0, ADMIN, chance.choice(("", *names))))
    if chance.random() < 0.5:
        length_ns, event_ns = chance.choice((50, 200)) * MS, chance.choice((1, 4)) * MS
        faults.append(Fault(FaultKind.SLOW, chance.randrange(storm_ns), length_ns, chance.choice(names), "", event_ns))
    weather = replace(plan.weather, loss=chance.choice((0.0, 0.05, 0.3)), delay_span_ns=chance.choice((3, 12)) * MS)
    return _with_faults(replace(plan, adapters=adapters, weather=weather, journal_gaps=()), faults)


def _lies(plan: Plan, chance: random.Random) -> Plan:
    """Most adapters are honest and up at any time, because more than half of a group that lies is believed."""
    adapters = _adapters(plan, chance, (3, 3, 4))
    names = _names(adapters)
    liar = names.pop(chance.randrange(len(names)))
    storm_ns = chance.choice((400, 700)) * MS
    end_ns = plan.source_start_ns + storm_ns
    lying_ns = chance.choice((25 * MS, 25 * MS, chance.randrange(25 * MS, end_ns // 2)))  # once it runs
    faults = [Fault(FaultKind.LIE, lying_ns, end_ns, liar, "", chance.choice((10, 50, 100)))]
    at_ns = plan.source_start_ns // 2
    kinds = (FaultKind.CRASH, FaultKind.PAUSE, FaultKind.SLOW, FaultKind.HAND_OVER, FaultKind.HAND_OVER)
    for _ in range(chance.choice((0, 1, 2, 3))):
        at_ns += chance.choice((30, 100, 250)) * MS
        kind, length_ns = chance.choice(kinds), chance.choice((30, 80, 150)) * MS
        if kind is FaultKind.HAND_OVER:
            faults.append(Fault(kind, at_ns, 0, ADMIN, chance.choice(("", *names))))
            continue
        amount = MS if kind is FaultKind.SLOW else 0
        faults.append(Fault(kind, at_ns, length_ns, chance.choice(names), "", amount))
        at_ns += length_ns
    return _with_faults(
        replace(
            plan,
            adapters=adapters,
            storm_ns=storm_ns,
            journal_gaps=(),
            publish=PublishMode.ASYNC,
            fail_policy=FailPolicy.BELOW_THRESHOLD,  # no honest adapter leaves, which would make the liar the majority
            weather=replace(plan.weather, loss=chance.choice((0.0, 0.01, 0.05))),
        ),
        faults,
    )


_SCENARIOS: dict[Scenario, Callable[[Plan, random.Random], Plan]] = {
    Scenario.OUTAGES: _outages,
    Scenario.RESTORED: _restored,
    Scenario.ACKED: _acked,
    Scenario.COPIES: _copies,
    Scenario.JOURNAL_GAPS: _journal_gaps,
    Scenario.DAMAGE: _damage,
    Scenario.FLAPPING: _flapping,
    Scenario.RESTARTS: _restarts,
    Scenario.PAUSES: _pauses,
    Scenario.HAND_OVERS: _hand_overs,
    Scenario.LIES: _lies,
}
