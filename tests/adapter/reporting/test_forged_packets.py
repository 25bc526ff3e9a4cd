"""What an adapter records about packets that impersonate an adapter: a bounded number of the newest senders."""

from __future__ import annotations

from tandemfeed.adapter.reporting.forged_packets import ADDRESSES_MAX, ForgedPackets
from tandemfeed.adapter.reporting.reports import forgery_metric


def test_packets_of_one_address_and_one_start_are_counted_together_with_first_and_last_time() -> None:
    forged = ForgedPackets()
    for now_unix_ns in (100, 200, 300):
        forged.note(2, 7, "10.0.0.9:5555", now_unix_ns)
    (sender,) = forged.newest()
    assert (sender.adapter_id, sender.incarnation, sender.address) == (2, 7, "10.0.0.9:5555")
    assert (sender.count, sender.first_unix_ns, sender.last_unix_ns) == (3, 100, 300)


def test_different_addresses_adapters_and_starts_are_counted_separately() -> None:
    forged = ForgedPackets()
    places = [(1, 7, "10.0.0.9:5555"), (2, 7, "10.0.0.9:5555"), (2, 8, "10.0.0.9:5555"), (2, 8, "10.0.0.9:5556")]
    for place in places:
        forged.note(*place, 100)
    assert [(each.adapter_id, each.incarnation, each.address) for each in forged.newest()] == places


def test_a_forger_that_changes_its_address_displaces_the_oldest_addresses_but_loses_no_count() -> None:
    forged = ForgedPackets()
    forged.note(1, 7, "10.0.0.8:1", 1)
    for number in range(1_000):
        forged.note(2, 7, f"10.0.0.9:{number}", number)
        forged.note(1, 7, "10.0.0.8:1", number)  # an active sender is not displaced
    newest = forged.newest()
    assert len(newest) == ADDRESSES_MAX
    assert {each.address for each in newest if each.adapter_id == 2} == {
        f"10.0.0.9:{number}" for number in range(1_000 - ADDRESSES_MAX + 1, 1_000)
    }
    assert (newest[-1].address, newest[-1].count) == ("10.0.0.8:1", 1_001)
    assert forged.counts() == {1: 1_001, 2: 1_000}


def test_the_metric_names_the_adapter_that_is_impersonated() -> None:
    samples = forgery_metric({2: 1_000}).samples
    assert [(each.name, each.labels, each.value) for each in samples] == [
        ("tandemfeed_forged_packets_total", {"impersonated_adapter_id": "2"}, 1_000)
    ]
