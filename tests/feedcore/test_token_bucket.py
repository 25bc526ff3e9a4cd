"""The token bucket keeps its rate over every stretch of time, and gives all of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.feedcore.token_bucket import SECOND_NS, TokenBucket

AMOUNTS = st.lists(st.integers(1, 5_000), min_size=1, max_size=40)
PAUSES_NS = st.lists(st.integers(0, 3 * SECOND_NS), min_size=40, max_size=40)
RATES, BURSTS = st.integers(1, 10_000), st.integers(0, 5_000)


@given(RATES, BURSTS, AMOUNTS, PAUSES_NS)
def test_no_stretch_of_time_gets_more_than_the_rate_and_a_burst(
    rate: int, burst: int, amounts: list[int], pauses_ns: list[int]
) -> None:
    now_ns, bucket, spent = 0, TokenBucket(rate, burst, 0), []
    for amount, pause_ns in zip(amounts, pauses_ns, strict=False):
        now_ns += pause_ns
        now_ns += bucket.wait_ns(now_ns)
        bucket.spend(amount, now_ns)
        spent.append((now_ns, amount))
    for first, (began_ns, _) in enumerate(spent):
        for last in range(first, len(spent)):
            total = sum(amount for _, amount in spent[first:last])  # the last item may overdraw
            assert total * SECOND_NS <= burst * SECOND_NS + rate * (spent[last][0] - began_ns)


@given(RATES, BURSTS, AMOUNTS)
def test_items_that_always_wait_get_the_whole_rate(rate: int, burst: int, amounts: list[int]) -> None:
    now_ns, bucket = 0, TokenBucket(rate, burst, 0)
    for amount in amounts:
        wait_ns = bucket.wait_ns(now_ns)
        if wait_ns:
            assert bucket.wait_ns(now_ns + wait_ns - 1) == 1, "no longer than necessary"
        now_ns += wait_ns
        bucket.spend(amount, now_ns)
    gained = burst * SECOND_NS + rate * (now_ns + len(amounts))  # each wait is rounded up to a nanosecond
    assert sum(amounts[:-1]) * SECOND_NS <= gained
    assert rate * now_ns <= sum(amounts) * SECOND_NS + rate * len(amounts)


@given(RATES, BURSTS, st.integers(0, 100 * SECOND_NS))
def test_a_pause_saves_no_more_than_a_burst(rate: int, burst: int, pause_ns: int) -> None:
    bucket = TokenBucket(rate, burst, 0)
    bucket.spend(burst + 1, pause_ns)
    assert bucket.wait_ns(pause_ns) == -(-SECOND_NS // rate)


def test_a_clock_that_is_set_back_gives_nothing_twice() -> None:
    bucket = TokenBucket(1, 0, 0)
    bucket.spend(10, SECOND_NS)
    assert bucket.wait_ns(0) == bucket.wait_ns(SECOND_NS) == 10 * SECOND_NS
