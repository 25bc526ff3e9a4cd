"""Shrinks a failing plan to the smallest one found, within a limit of runs, that still fails in the same way.

Delta debugging over the parts of a plan: remove faults (halves, quarters, single ones), then calm the weather, remove
clients, adapters, channels and streams, shorten faults and reduce counts. A smaller plan draws other random numbers on
the links that it changes, so each is tried with several seeds before it is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tandemfeed.feedcore.replica.config import SessionState
from tests.simulation.plan import CALM, MS, AdapterPlan, ClientPlan, Fault, Plan, Weather
from tests.simulation.running import Verdict, judge

CHANCE_SEEDS = 3  # chance seeds to try with each smaller plan


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A plan that fails, its verdict with the full timeline, and the number of runs it took to find."""

    plan: Plan
    verdict: Verdict
    runs: int


def shrink(
    plan: Plan,
    verdict: Verdict,
    run_count_max: int = 400,
    is_tried: Callable[[int], None] = lambda runs: None,
) -> Shrunk:
    """Shrink a failing plan.

    Args:
        verdict: how it failed; a smaller plan must fail in the same way.
        run_count_max: limit on the number of runs.
        is_tried: called after each run with the number of runs so far.
    """
    runs = 0

    def fails(candidate: Plan) -> Plan | None:
        nonlocal runs
        for chance in range(CHANCE_SEEDS):
            if runs >= run_count_max:
                return None
            runs += 1
            is_tried(runs)
            tried = replace(candidate, chance_seed=plan.chance_seed + chance)
            found = judge(tried)
            if found is not None and found.kind == verdict.kind:
                return tried
        return None

    is_smaller = True
    while is_smaller and runs < run_count_max:
        is_smaller = False
        for step in STEPS:
            candidates = step(plan)
            while (candidate := next(candidates, None)) is not None:
                if candidate != plan and (found := fails(candidate)) is not None:
                    plan, is_smaller = found, True
                    candidates = step(plan)
                if runs >= run_count_max:
                    break
    final = judge(plan, is_verbose=True)
    assert final is not None, "a run is reproducible byte for byte, so a failed plan fails again"
    return Shrunk(plan, final, runs)


def _fewer_faults(plan: Plan) -> Iterator[Plan]:
    faults = plan.faults
    size = len(faults)
    while size:
        for begin in range(0, len(faults), size):
            yield replace(plan, faults=faults[:begin] + faults[begin + size :])
        size //= 2


def _calmer_weather(plan: Plan) -> Iterator[Plan]:
    weather = plan.weather
    if weather == CALM:
        return
    yield replace(plan, weather=CALM)
    yield replace(plan, weather=replace(weather, loss=0.0))
    yield replace(plan, weather=replace(weather, duplication=0.0))
    yield replace(plan, weather=replace(weather, replay_loss=0.0))
    yield replace(plan, weather=Weather(weather.loss, weather.duplication))
    if weather.loss > 0.01:
        yield replace(plan, weather=replace(weather, loss=round(weather.loss / 2, 3)))


def _fewer_clients(plan: Plan) -> Iterator[Plan]:
    if len(plan.clients) > 1:
        for client in plan.clients:
            yield replace(plan, clients=tuple(each for each in plan.clients if each is not client))
    for place, client in enumerate(plan.clients):
        plain = ClientPlan(client.number)
        if client != plain:
            yield replace(plan, clients=(*plan.clients[:place], plain, *plan.clients[place + 1 :]))


def _fewer_sessions(plan: Plan) -> Iterator[Plan]:
    for session in plan.new_sessions:
        yield replace(plan, new_sessions=tuple(each for each in plan.new_sessions if each is not session))
        announced = tuple(replace(each, is_end_said=True) for each in plan.new_sessions)
        yield replace(plan, new_sessions=announced, session_state=SessionState.RESET)


def _fewer_adapters(plan: Plan) -> Iterator[Plan]:
    if len(plan.adapters) > 1:
        for adapter in plan.adapters:
            yield replace(plan, adapters=tuple(each for each in plan.adapters if each is not adapter))
    if any(adapter.drift_ppm or adapter.clock_offset_ns or adapter.health != 1.0 for adapter in plan.adapters):
        plain = tuple(AdapterPlan(adapter.adapter_id, adapter.start_ns) for adapter in plan.adapters)
        yield replace(plan, adapters=plain)


def _fewer_streams(plan: Plan) -> Iterator[Plan]:
    for number in range(len(plan.channels)):
        if len(plan.channels) > 1:
            yield _without_lost_gaps(replace(plan, channels=plan.channels[:number] + plan.channels[number + 1 :]))
        streams = plan.channels[number]
        for stream in streams if len(streams) > 1 else ():
            left = tuple(each for each in streams if each != stream)
            channels = (*plan.channels[:number], left, *plan.channels[number + 1 :])
            yield _without_lost_gaps(replace(plan, channels=channels))


def _fewer_messages(plan: Plan) -> Iterator[Plan]:
    for count in (1, 2, 4, plan.message_count // 2, plan.message_count * 3 // 4, plan.message_count - 1):
        if 0 < count < plan.message_count:
            yield _without_lost_gaps(replace(plan, message_count=count))
    for gap in plan.journal_gaps:
        yield replace(plan, journal_gaps=tuple(each for each in plan.journal_gaps if each is not gap))


def _shorter_faults(plan: Plan) -> Iterator[Plan]:
    for place, fault in enumerate(plan.faults):
        for smaller in _smaller(fault):
            yield replace(plan, faults=(*plan.faults[:place], smaller, *plan.faults[place + 1 :]))
    for storm_ns in (plan.storm_ns // 2, plan.storm_ns * 3 // 4):
        if storm_ns >= 20 * MS and all(each.begin_ns < storm_ns for each in plan.new_sessions):
            yield replace(plan, storm_ns=storm_ns)
    if plan.bursts_ns:
        yield replace(plan, bursts_ns=())
    if plan.source_start_ns:
        yield replace(plan, source_start_ns=0)


def _smaller(fault: Fault) -> Iterator[Fault]:
    if fault.length_ns >= 2 * MS:
        yield replace(fault, length_ns=fault.length_ns // 2 // MS * MS)
    if fault.amount:
        yield replace(fault, amount=0)
    if fault.amount > 1:
        yield replace(fault, amount=1)


def _without_lost_gaps(plan: Plan) -> Plan:
    """The plan with only those journal gaps that are still within a stream."""
    streams = plan.streams
    kept = [
        replace(gap, count=min(gap.count, plan.message_count - gap.first_source_seq + 1))
        for gap in plan.journal_gaps
        if gap.source_stream_id in streams and gap.first_source_seq <= plan.message_count
    ]
    return replace(plan, journal_gaps=tuple(kept))


STEPS = (
    _fewer_faults,
    _calmer_weather,
    _fewer_clients,
    _fewer_sessions,
    _fewer_adapters,
    _fewer_streams,
    _fewer_messages,
    _shorter_faults,
)
