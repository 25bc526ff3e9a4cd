"""Failed logins are slowed down where they happen, and nowhere else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.admin_server.identity.login_limits import (
    ADDRESS_ALLOWANCE,
    PAIR_ALLOWANCE,
    SECOND_NS,
    Allowance,
    LoginLimits,
    address_of,
)

FAILURES = PAIR_ALLOWANCE.failure_count_max
TRIES = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["here", "there"]), st.integers(0, 30), st.booleans()),
    max_size=200,
)


def test_after_some_failures_an_identity_has_to_wait_at_that_address_only() -> None:
    limits = LoginLimits()
    assert [limits.begin("ann", "here", 0) for _ in range(FAILURES)] == [0] * FAILURES
    assert limits.begin("ann", "here", 0) == PAIR_ALLOWANCE.forgiven_after_ns
    assert limits.begin("ann", "there", 0) == 0
    assert limits.begin("bob", "here", 0) == 0
    assert limits.begin("ann", "here", PAIR_ALLOWANCE.forgiven_after_ns) == 0


def test_a_correct_login_forgets_the_failures_of_its_pair_and_not_those_of_the_address() -> None:
    limits = LoginLimits(address=Allowance(FAILURES + 1, SECOND_NS))
    for _ in range(FAILURES):
        limits.begin("ann", "here", 0)
    limits.succeeded("ann", "here")
    assert limits.begin("ann", "here", 0) == 0
    assert limits.begin("ann", "here", 0) == 0
    assert limits.begin("ann", "here", 0) == SECOND_NS


def test_an_address_that_tries_many_identities_has_to_wait_more_generously() -> None:
    limits = LoginLimits()
    waits = [limits.begin(str(number), "here", 0) for number in range(ADDRESS_ALLOWANCE.failure_count_max + 1)]
    assert waits == [0] * ADDRESS_ALLOWANCE.failure_count_max + [ADDRESS_ALLOWANCE.forgiven_after_ns]
    assert limits.begin("0", "there", 0) == 0


def test_a_login_that_could_not_be_decided_does_not_count() -> None:
    limits = LoginLimits()
    for _ in range(10 * FAILURES):
        assert limits.begin("ann", "here", 0) == 0
        limits.withdraw("ann", "here")


def test_the_tables_are_bounded() -> None:
    limits = LoginLimits(entry_count_max=8)
    for number in range(100):
        limits.begin(str(number), str(number), 0)
    assert len(limits._pairs) == len(limits._addresses) == 8


@given(TRIES)
def test_no_sequence_of_tries_lets_an_address_delay_another(tries: list[tuple[str, str, int, bool]]) -> None:
    """What happens at one address is the same with and without the tries at the other."""
    both, alone, now_ns = LoginLimits(), LoginLimits(), 0
    for identity, address, pause_s, is_correct in tries:
        now_ns += pause_s * SECOND_NS
        seen = [limits.begin(identity, address, now_ns) for limits in (both, *([alone] if address == "here" else []))]
        assert len(set(seen)) == 1
        if is_correct and seen[0] == 0:
            both.succeeded(identity, address)
            if address == "here":
                alone.succeeded(identity, address)


@given(TRIES)
def test_after_the_wait_that_was_answered_a_try_is_allowed(tries: list[tuple[str, str, int, bool]]) -> None:
    limits, now_ns = LoginLimits(), 0
    for identity, address, pause_s, _ in tries:
        now_ns += pause_s * SECOND_NS
        if wait_ns := limits.begin(identity, address, now_ns):
            now_ns += wait_ns
            assert limits.begin(identity, address, now_ns) == 0


@given(st.integers(1, 1_000))
def test_wrong_guesses_are_bounded_over_time(hours: int) -> None:
    limits, guesses = LoginLimits(), 0
    for second in range(min(hours, 2) * 3_600):
        guesses += limits.begin("ann", "here", second * SECOND_NS) == 0
    assert guesses <= FAILURES + min(hours, 2) * 360


def test_an_ipv6_host_counts_with_its_network() -> None:
    assert address_of("ipv4:10.0.0.1:4711") == "10.0.0.1"
    assert address_of("ipv6:%5B2001:db8::1%5D:4711") == address_of("ipv6:[2001:db8::2]:1") == "2001:db8::/64"
    assert address_of("ipv6:[::ffff:10.0.0.1]:1") == "10.0.0.1"
    assert address_of("unix:/run/socket") == address_of("unix:/run/socket")
