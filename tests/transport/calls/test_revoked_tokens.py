"""Tokens that were revoked stay so until they have expired, whatever happens to the wall clock."""

from __future__ import annotations

import pytest

from tandemfeed.transport.calls.revoked_tokens import (
    CLOCK_DIFFERENCE_NS,
    EVERYBODY,
    IDENTITY_COUNT_MAX,
    KEPT_NS,
    TOKEN_VALID_NS,
    RevokedTokens,
)

MINUTE_NS = 60_000_000_000
DAY_NS = 24 * 60 * MINUTE_NS


class Clocks:
    """The two clocks of a host."""

    def __init__(self) -> None:
        self.wall_ns, self.monotonic_ns = 1_000_000 * DAY_NS // 100, 5 * MINUTE_NS

    def pass_time(self, duration_ns: int) -> None:
        self.wall_ns += duration_ns
        self.monotonic_ns += duration_ns

    def revoked(self, recorded: dict[str, int] | None = None) -> RevokedTokens:
        return RevokedTokens(recorded, now_unix_ns=lambda: self.wall_ns, now_ns=lambda: self.monotonic_ns)


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.mark.parametrize("step_ns", [0, -TOKEN_VALID_NS, TOKEN_VALID_NS])
def test_a_revocation_holds_for_the_life_of_a_token_over_a_step_of_the_clock_and_back(
    clocks: Clocks, step_ns: int
) -> None:
    revoked, issued_ns = clocks.revoked(), clocks.wall_ns
    clocks.pass_time(MINUTE_NS)
    revoked.revoke(["ann"])
    clocks.pass_time(10 * MINUTE_NS)
    clocks.wall_ns += step_ns
    revoked.revoke(["another"])  # what is too old is forgotten now
    clocks.wall_ns -= step_ns
    clocks.pass_time(TOKEN_VALID_NS - 12 * MINUTE_NS)
    revoked.revoke(["one more"])
    assert revoked.covers("ann", issued_ns)


def test_a_revocation_is_forgotten_when_all_that_it_covers_has_expired(clocks: Clocks) -> None:
    revoked = clocks.revoked()
    revoked.revoke(["ann"])
    clocks.pass_time(KEPT_NS + 1)
    revoked.receive(revoked.messages())  # as an adapter that receives its server's list again
    assert revoked.as_dict() == {}


def test_a_token_that_is_issued_after_a_step_back_states_the_time_of_the_revocation(clocks: Clocks) -> None:
    revoked = clocks.revoked()
    revoked.revoke(["ann"])
    clocks.wall_ns -= TOKEN_VALID_NS
    assert revoked.not_before("ann") == clocks.wall_ns + TOKEN_VALID_NS + CLOCK_DIFFERENCE_NS
    assert not revoked.covers("ann", revoked.not_before("ann"))
    assert not revoked.covers("bob", clocks.wall_ns)


def test_what_was_recorded_holds_after_a_restart_with_a_wrong_clock_and_not_for_ever(clocks: Clocks) -> None:
    revoked, issued_ns = clocks.revoked(), clocks.wall_ns
    revoked.revoke(["ann"])
    for step_ns in (-TOKEN_VALID_NS, TOKEN_VALID_NS):
        clocks.wall_ns += step_ns
        assert clocks.revoked(revoked.as_dict()).covers("ann", issued_ns)
        clocks.wall_ns -= step_ns
    clocks.pass_time(DAY_NS + 5 * MINUTE_NS)
    assert clocks.revoked(revoked.as_dict()).as_dict() == {}


def test_beyond_its_limit_it_covers_every_identity(clocks: Clocks) -> None:
    revoked, issued_ns = clocks.revoked(), clocks.wall_ns
    revoked.revoke(str(number) for number in range(IDENTITY_COUNT_MAX + 1))
    assert list(revoked.as_dict()) == [EVERYBODY]
    assert revoked.covers("any", issued_ns)
