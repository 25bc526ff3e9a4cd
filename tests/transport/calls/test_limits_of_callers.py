"""What one identity may take of a service: calls a second, places, streams, threads. The others always get some."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemfeed.transport.calls.serving.limits import (
    BURST_S,
    FEW,
    HELD_MAX,
    OF_CLIENTS,
    OF_OTHERS,
    REFUSAL_PAUSE_NS,
    SECOND_NS,
    SUBSCRIPTIONS,
    TURN_WAIT_NS_MAX,
    CallLimits,
    Refusal,
    Share,
    Turns,
    of_subscribers,
)
from tests.access.access_table import expectations
from tests.access.calls import CONTRACTS

LIMITS = CallLimits(per_second=100, open_max=10, stream_max=3)
STEP_NS = SECOND_NS // LIMITS.per_second
T0 = 1_000 * SECOND_NS


def share(now_ns: int = T0) -> Share:
    return Share("ann", LIMITS, now_ns)


def refusal(found: int | Refusal | None) -> Refusal:
    assert isinstance(found, Refusal)
    return found


# ---- rate ----


def test_calls_within_the_rate_never_wait() -> None:
    own = share()
    assert {own.turn(T0 + number * STEP_NS) for number in range(1_000)} == {0}


def test_a_burst_is_served_immediately_then_calls_wait_ever_longer_and_are_refused_at_last() -> None:
    own = share()
    turns = [own.turn(T0) for _ in range(LIMITS.per_second * (BURST_S + 5) + 5)]
    served = [turn for turn in turns if isinstance(turn, int)]
    assert served.count(0) == LIMITS.per_second * BURST_S + 1
    assert served[-1] == TURN_WAIT_NS_MAX
    assert {later - earlier for earlier, later in itertools.pairwise(served[200:])} == {STEP_NS}
    refused = refusal(turns[-1])
    assert refused.text == "ann makes more calls than 100 a second, which is the limit; make fewer"
    assert refused.pause_ns == REFUSAL_PAUSE_NS


def test_refused_calls_do_not_count_and_a_pause_gives_the_burst_back() -> None:
    own = share()
    for _ in range(2_000):
        own.turn(T0)
    later_ns = T0 + TURN_WAIT_NS_MAX + BURST_S * SECOND_NS
    assert [own.turn(later_ns) for _ in range(LIMITS.per_second * BURST_S)] == [0] * (LIMITS.per_second * BURST_S)


@given(st.lists(st.integers(0, SECOND_NS // 10), max_size=300))
@settings(deadline=None)
def test_no_second_has_more_turns_than_the_burst_and_the_rate(pauses_ns: list[int]) -> None:
    own, now_ns, begun = share(), T0, []
    for pause_ns in pauses_ns:
        now_ns += pause_ns
        for _ in range(5):
            if isinstance(turn := own.turn(now_ns), int):
                assert 0 <= turn <= TURN_WAIT_NS_MAX
                begun.append(now_ns + turn)
    begun.sort()
    for first, at_ns in enumerate(begun):
        within = sum(at_ns <= each < at_ns + SECOND_NS for each in begun[first : first + 1_000])
        assert within <= LIMITS.per_second * (BURST_S + 1) + 1


# ---- places and streams ----


def test_an_identity_gets_places_up_to_its_limit() -> None:
    own = share()
    own.open_count = LIMITS.open_max - 1
    assert own.place(total=20, total_max=256) is None
    own.open_count += 1
    assert refusal(own.place(20, 256)).text == "ann has 10 calls open, which is the limit; wait for their replies"


def test_when_all_places_are_taken_an_identity_with_few_calls_still_gets_one() -> None:
    own = share()
    for _ in range(FEW):
        assert own.place(total=256, total_max=256) is None
        own.open_count += 1
    assert refusal(own.place(256, 256)).text == "256 calls are open; try again later"


def test_an_identity_opens_streams_up_to_its_limit() -> None:
    own = share()
    own.stream_count = LIMITS.stream_max - 1
    assert own.stream() is None
    own.stream_count += 1
    assert refusal(own.stream()).text == "ann has 3 streams open, which is the limit; end one first"


def test_an_identity_of_which_too_many_calls_wait_is_refused_without_a_pause() -> None:
    own = share()
    own.stream_count = LIMITS.stream_max
    own.held_count = HELD_MAX
    assert refusal(own.stream()).pause_ns == 0


def test_a_share_is_idle_when_a_new_one_would_be_equal() -> None:
    own = share()
    assert own.is_idle(T0)
    own.turn(T0)
    assert not own.is_idle(T0)
    assert own.is_idle(T0 + STEP_NS)
    own.stream_count = 1
    assert not own.is_idle(T0 + STEP_NS)


# ---- threads ----


def taken(turns: Turns[int]) -> list[tuple[str, int]]:
    """The work that may run now."""
    found = []
    while (next_work := turns.take()) is not None:
        found.append(next_work)
    return found


def added(turns: Turns[int], owner: str, *jobs: int) -> Turns[int]:
    for job in jobs:
        turns.add(owner, job)
    return turns


def test_one_identity_may_have_all_threads_while_no_other_has_work() -> None:
    assert taken(added(Turns(4, 2), "ann", *range(6))) == [("ann", job) for job in range(4)]


def test_an_identity_without_work_in_a_thread_gets_one_although_another_has_them_all() -> None:
    turns = added(Turns(4, 2), "ann", *range(10))
    taken(turns)
    assert taken(added(turns, "bob", 1, 2)) == [("bob", 1)]
    assert taken(added(turns, "cid", 1)) == [("cid", 1)]
    assert taken(added(turns, "dan", 1)) == [], "all spare threads are in use"
    turns.end("ann")
    assert taken(turns) == [("dan", 1)]


def test_with_others_an_identity_has_its_part_of_the_threads() -> None:
    turns = added(Turns(4, 2), "ann", *range(20))
    taken(turns)
    taken(added(turns, "bob", *range(20)))
    running = {"ann": 4, "bob": 1}
    for _ in range(10):
        owner = max(running, key=lambda each: running[each])
        turns.end(owner)
        running[owner] -= 1
        for each, _ in taken(turns):
            running[each] += 1
    assert running == {"ann": 2, "bob": 2}


def test_identities_take_turns() -> None:
    turns = added(Turns(1, 0), "ann", *range(3))
    added(added(turns, "bob", *range(3)), "cid", 0)
    order = []
    while found := taken(turns):
        ((owner, job),) = found
        order.append((owner, job))
        turns.end(owner)
    assert order == [("ann", 0), ("bob", 0), ("cid", 0), ("ann", 1), ("bob", 1), ("ann", 2), ("bob", 2)]


@given(st.integers(1, 8), st.integers(0, 8), st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=200))
def test_all_work_runs_once_in_the_order_of_its_owner_and_no_thread_is_idle_while_one_may_run(
    count: int, spare_count: int, steps: list[tuple[bool, int]]
) -> None:
    turns: Turns[int] = Turns(count, spare_count)
    running: list[str] = []
    added_jobs: dict[str, int] = {}
    done: dict[str, list[int]] = {}

    def start() -> None:
        for owner, job in taken(turns):
            running.append(owner)
            done.setdefault(owner, []).append(job)
        assert len(running) <= count + spare_count

    for is_new, which in steps:
        if is_new:
            owner = f"owner {which}"
            turns.add(owner, added_jobs.setdefault(owner, 0))
            added_jobs[owner] += 1
        elif running:
            turns.end(running.pop(which % len(running)))
        start()
    while running:
        turns.end(running.pop())
        start()
    assert done == {owner: list(range(jobs)) for owner, jobs in added_jobs.items()}


# ---- which services ----


def test_every_service_of_which_a_client_may_call_a_method_has_limits_for_clients() -> None:
    full_names = {
        service.name: service.full_name for each in CONTRACTS for service in each.DESCRIPTOR.services_by_name.values()
    }
    calls = {each.call for each in expectations() if each.caller in ("stranger", "reader", "contributor")}
    of_clients = {
        full_names[each.call.partition("/")[0]]
        for each in expectations()
        if each.call in calls and each.caller in ("stranger", "reader", "contributor") and each.code is None
    }
    public = {"tandemfeed.v1.Authentication"}  # limited by address (`login_limits`), for it has no callers yet
    assert of_clients - public == OF_CLIENTS.keys()


@pytest.mark.parametrize("client_count_max", [1, 200, 5_000])
def test_all_clients_of_a_server_may_be_one_identity_and_come_back_together(client_count_max: int) -> None:
    limits = of_subscribers(client_count_max)
    usual = OF_CLIENTS[SUBSCRIPTIONS]
    assert limits.per_second >= max(client_count_max, usual.per_second)
    assert limits.stream_max >= max(client_count_max // 2, usual.stream_max)
    calls_of_each = 4  # to subscribe, and to read documents
    burst = limits.per_second * (BURST_S + TURN_WAIT_NS_MAX // SECOND_NS)
    assert burst >= calls_of_each * client_count_max
    assert limits.open_max == usual.open_max < OF_OTHERS.open_max
