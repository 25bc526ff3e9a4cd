"""The outbox: consecutive numbers, requests within their limits, and the same request again while it is in doubt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.client_lib.contribution.outbox import REQUEST_MESSAGES_MAX, REQUEST_SIZE_MAX, Outbox, Request


def test_a_request_that_was_not_answered_is_sent_again_unchanged_and_first() -> None:
    outbox = Outbox(7)
    assert outbox.add([b"a", b"b"]) == range(7, 9)
    first = outbox.request
    outbox.add([b"c"], hold_ns=5)
    assert outbox.request is first
    outbox.accepted()
    assert outbox.request == Request(9, (b"c",), 5)
    outbox.accepted()
    assert outbox.request is None


def test_what_follows_a_refused_request_is_forgotten_and_its_numbers_are_used_again() -> None:
    outbox = Outbox(1)
    outbox.add([b"a"])
    outbox.accepted()
    outbox.add([b"bad"])
    outbox.add([b"c", b"d"])
    assert outbox.refused() == 3
    assert outbox.request is None
    assert outbox.add([b"e"]) == range(2, 3)


@given(st.lists(st.lists(st.integers(0, 60_000), max_size=40), max_size=6))
def test_requests_have_every_message_once_in_order_and_keep_to_the_limits(calls: list[list[int]]) -> None:
    outbox, numbers = Outbox(1), list[int]()
    messages = [[bytes(size) for size in sizes] for sizes in calls]
    for each in messages:
        numbers += outbox.add(each)
    sent = list[bytes]()
    while (request := outbox.request) is not None:
        assert request.first_number == len(sent) + 1
        assert len(request.messages) <= REQUEST_MESSAGES_MAX
        assert len(request.messages) == 1 or sum(map(len, request.messages)) <= REQUEST_SIZE_MAX
        sent += request.messages
        assert request.end_number == len(sent) + 1
        outbox.accepted()
    assert sent == [message for each in messages for message in each]
    assert numbers == list(range(1, len(sent) + 1))
