"""Which unicast clients adapters admit, and how many subscriptions each channel has."""

from __future__ import annotations

from tandemfeed.admin_server.feed.keys.admissions import ENDED_COUNT_MAX, RETURN_NS, Admission, Admissions
from tandemfeed.v1.admin_pb2 import SubscriptionsChanged

KEY = b"k" * 32
ONE, BOTH = Admission(KEY, frozenset({1})), Admission(KEY, frozenset({1, 2}))
WITHOUT_KEY = Admission(b"", frozenset({1}))


def admitted(changed: SubscriptionsChanged | None) -> dict[bytes, list[int]]:
    assert changed is not None
    return {client.client_key: list(client.channel_ids) for client in changed.admitted}


def test_a_subscription_admits_its_key_to_its_channels() -> None:
    admissions = Admissions()
    begun = admissions.begin("s", BOTH)
    assert admitted(begun) == {KEY: [1, 2]}
    assert begun.subscriber_counts == {1: 1, 2: 1}
    assert not begun.is_whole


def test_a_subscription_without_a_key_is_only_counted() -> None:
    admissions = Admissions()
    begun = admissions.begin("s", WITHOUT_KEY)
    assert not begun.admitted
    assert begun.subscriber_counts == {1: 1}


def test_a_revoked_subscription_removes_its_key_at_once() -> None:
    admissions = Admissions()
    admissions.begin("s", ONE)
    ended = admissions.end("s", 0, is_revoked=True)
    assert ended is not None
    assert list(ended.removed_client_keys) == [KEY]
    assert ended.subscriber_counts == {}


def test_a_subscription_that_broke_counts_until_its_time_to_return_is_over() -> None:
    admissions = Admissions()
    admissions.begin("s", ONE)
    assert admissions.end("s", 0) is None
    assert admitted(admissions.whole()) == {KEY: [1]}
    assert admissions.next_expiry_ns() == RETURN_NS
    assert admissions.expire(RETURN_NS - 1) is None
    expired = admissions.expire(RETURN_NS)
    assert expired is not None
    assert list(expired.removed_client_keys) == [KEY]
    assert admissions.next_expiry_ns() is None


def test_a_client_that_returns_stays_admitted_when_its_former_stream_expires() -> None:
    admissions = Admissions()
    admissions.begin("former", ONE)
    admissions.end("former", 0)
    admissions.begin("present", ONE)
    expired = admissions.expire(RETURN_NS)
    assert admitted(expired) == {KEY: [1]}
    assert not expired.removed_client_keys  # type: ignore[union-attr]


def test_a_key_of_two_streams_keeps_the_channels_of_the_one_that_is_not_revoked() -> None:
    admissions = Admissions()
    admissions.begin("former", BOTH)
    admissions.begin("present", ONE)
    assert admitted(admissions.end("former", 0, is_revoked=True)) == {KEY: [1]}


def test_a_subscription_that_changes_its_channels_gives_up_the_others() -> None:
    admissions = Admissions()
    admissions.begin("s", BOTH)
    changed = admissions.begin("s", ONE)
    assert admitted(changed) == {KEY: [1]}
    assert changed.subscriber_counts == {1: 1}


def test_subscriptions_that_come_and_go_do_not_pile_up() -> None:
    admissions = Admissions()
    for number in range(ENDED_COUNT_MAX + 1):
        key = number.to_bytes(32, "little")
        admissions.begin(number, Admission(key, frozenset({1})))
        ended = admissions.end(number, 0)
    assert ended is not None
    assert list(ended.removed_client_keys) == [bytes(32)]  # the oldest


def test_a_new_adapter_gets_the_whole_list() -> None:
    admissions = Admissions()
    admissions.begin("s", ONE)
    whole = admissions.whole()
    assert whole.is_whole
    assert admitted(whole) == {KEY: [1]}
    assert whole.subscriber_counts == {1: 1}
