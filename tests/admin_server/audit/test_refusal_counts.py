"""Refusals are recorded once and then counted, within limits that no flood exceeds."""

from __future__ import annotations

from tandemfeed.admin_server.audit.refusal_counts import (
    INTERVAL_NS,
    MANY,
    ROW_COUNT_MAX,
    ROWS_OF_AN_ADDRESS_MAX,
    RefusalCounts,
    Refused,
)


def refused(identity: str = "reader", address: str = "ipv4:10.0.0.1") -> Refused:
    return Refused("subscription refused", "PERMISSION_DENIED", identity, address, "not granted")


def test_the_first_refusal_is_recorded_and_the_next_are_counted_for_a_minute() -> None:
    counts = RefusalCounts()
    assert counts.add(refused(), 0)
    assert not any(counts.add(refused(), at_ns) for at_ns in range(1, 10))
    assert counts.add(refused("stranger"), 10)
    assert counts.next_deadline_ns() == INTERVAL_NS
    assert counts.due(INTERVAL_NS - 1) == []
    assert counts.due(INTERVAL_NS) == [(refused(), {"count": 9})]
    assert counts.due(None) == [], "the stranger was refused only once"
    assert counts.next_deadline_ns() is None
    assert counts.add(refused(), INTERVAL_NS + 1)


def test_an_address_that_claims_many_identities_has_few_rows() -> None:
    counts = RefusalCounts()
    recorded = sum(counts.add(refused(str(place)), 0) for place in range(10_000))
    assert recorded == ROWS_OF_AN_ADDRESS_MAX + 1
    ((common, counted),) = counts.due(None)
    assert (common.identity, common.address) == (MANY, "ipv4:10.0.0.1")
    assert counted == {"count": 10_000 - recorded}


def test_many_addresses_have_a_bounded_number_of_rows() -> None:
    counts = RefusalCounts()
    recorded = sum(counts.add(refused(address=f"ipv4:{place}"), 0) for place in range(10_000))
    assert recorded == ROW_COUNT_MAX + 1
    assert sum(int(str(counted["count"])) for _, counted in counts.due(None)) == 10_000 - recorded
