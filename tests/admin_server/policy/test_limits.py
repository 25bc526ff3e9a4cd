"""The limits of an identity."""

from __future__ import annotations

from tandemfeed.admin_server.policy.limits import SECOND_NS, CallRates, OpenSubscriptions


def test_an_identity_may_make_its_calls_of_a_second_at_once_and_then_at_its_rate() -> None:
    rates = CallRates()
    assert [rates.admit("a", 2, 0) for _ in range(3)] == [True, True, False]
    assert rates.admit("b", 2, 0)
    assert not rates.admit("a", 2, SECOND_NS // 2 - 1)
    assert rates.admit("a", 2, SECOND_NS // 2)
    assert [rates.admit("a", 2, 100 * SECOND_NS) for _ in range(3)] == [True, True, False]


def test_a_rate_below_one_a_second_still_admits_one_call() -> None:
    rates = CallRates()
    assert [rates.admit("a", 0.5, time) for time in (0, SECOND_NS, 2 * SECOND_NS)] == [True, False, True]


def test_a_subscription_that_ends_makes_room_for_another() -> None:
    subscriptions = OpenSubscriptions()
    assert [subscriptions.begin("a", 2) for _ in range(3)] == [True, True, False]
    assert subscriptions.begin("b", None)
    subscriptions.end("a")
    assert subscriptions.begin("a", 2)
