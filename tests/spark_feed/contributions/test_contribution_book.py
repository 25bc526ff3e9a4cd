"""The book of contributions: what it accepts, when, and in which order messages leave it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tandemfeed.spark_feed.contributions.book import (
    Contribution,
    ContributionBook,
    ContributionRefused,
    Limits,
    Producer,
    Why,
)
from tests.spark_feed.contributions.contribution_material import ALICE, BOB, A, B

NOW = 1_000_000_000
SECOND = 1_000_000_000


def opened(*producers: Producer, limits: Limits | None = None) -> ContributionBook:
    book = ContributionBook(limits)
    for each in producers:
        book.opened(each, A, NOW)
    return book


def send(book: ContributionBook, producer: Producer, count: int, *, hold_ns: int = 0, item: int = 0) -> None:
    """Contribute messages with the producer's next numbers."""
    book.charge(producer.identity, count, NOW)
    first = book.next_number(producer)
    assert book.begin(producer, A, first, [10] * count, hold_ns) == 0
    release = NOW + hold_ns if hold_ns else 0
    book.accept((Contribution(item + at, producer, first + at, release, bytes(10)) for at in range(count)), NOW)
    book.finish(producer)


def refusal(book: ContributionBook, *arguments: object) -> Why:
    with pytest.raises(ContributionRefused) as refused:
        book.begin(*arguments)  # type: ignore[arg-type]
    return refused.value.why


def test_a_message_that_is_sent_again_is_not_accepted_again() -> None:
    book = opened(ALICE)
    send(book, ALICE, 3)
    assert book.begin(ALICE, A, 2, [10, 10], 0) == 2
    assert book.begin(ALICE, A, 2, [10, 10, 10], 0) == 2  # numbers 2 and 3 again, and 4
    assert [each.number for each in book.pending()] == [1, 2, 3]


def test_numbers_continue_without_gaps() -> None:
    book = opened(ALICE)
    assert refusal(book, ALICE, A, 2, [10], 0) is Why.OUT_OF_ORDER
    assert refusal(book, ALICE, A, 0, [10], 0) is Why.OUT_OF_ORDER


def test_while_a_request_is_in_progress_another_of_its_producer_waits() -> None:
    book = opened(ALICE, BOB)
    book.begin(ALICE, A, 1, [10], 0)
    assert refusal(book, ALICE, A, 1, [10], 0) is Why.BUSY
    assert book.begin(BOB, A, 1, [10], 0) == 0
    book.finish(ALICE)
    assert book.begin(ALICE, A, 1, [10], 0) == 0


def test_the_process_that_opened_a_producer_last_contributes_and_no_other() -> None:
    book = opened(ALICE)
    assert refusal(book, BOB, A, 1, [10], 0) is Why.NOT_OPEN
    assert book.may_open(ALICE, B)
    book.opened(ALICE, B, NOW)
    assert refusal(book, ALICE, A, 1, [10], 0) is Why.SUPERSEDED
    assert not book.may_open(ALICE, B)


def test_an_identity_that_sends_too_much_waits_and_another_does_not() -> None:
    book = opened(ALICE, BOB, limits=Limits(pending_count_max=5, pending_size_max=100, messages_per_second=6))
    send(book, ALICE, 5)
    assert refusal(book, ALICE, A, 6, [10], 0) is Why.LIMIT
    send(book, BOB, 5)
    book.take_due(20, NOW)
    assert refusal(book, ALICE, A, 6, [101], 0) is Why.LIMIT
    send(book, ALICE, 5)
    book.take_due(20, NOW)
    send(book, ALICE, 5)  # what is saved up has been spent, and more
    book.take_due(20, NOW)
    with pytest.raises(ContributionRefused, match="more than 6 messages a second") as refused:
        book.charge("alice", 1, NOW)
    assert refused.value.why is Why.LIMIT
    book.charge("alice", 1, NOW + SECOND)
    book.charge("bob", 1, NOW)


def test_an_identity_has_a_limited_number_of_producers() -> None:
    book = opened(ALICE, limits=Limits(producer_count_max=1))
    with pytest.raises(ContributionRefused):
        book.may_open(Producer("alice", "another"), A)
    assert book.may_open(BOB, A)
    assert not book.may_open(ALICE, A)


def test_identities_take_turns() -> None:
    book = opened(ALICE, BOB)
    send(book, ALICE, 1_000)
    send(book, BOB, 2, item=1_000)
    assert [each.producer for each in book.take_due(5, NOW)] == [ALICE, BOB, ALICE, BOB, ALICE]


def test_a_message_that_is_held_back_stays_pending_until_its_time() -> None:
    book = opened(ALICE)
    send(book, ALICE, 1, hold_ns=SECOND)
    send(book, ALICE, 1, item=1)
    assert [each.number for each in book.take_due(5, NOW)] == [2]
    assert book.next_release_ns(NOW) == NOW + SECOND
    assert book.take_due(5, NOW + SECOND - 1) == []
    assert [each.number for each in book.take_due(5, NOW + SECOND)] == [1]
    assert book.next_release_ns(NOW + SECOND) is None


def test_only_pending_messages_of_their_own_identity_are_cancelled() -> None:
    book = opened(ALICE, BOB)
    send(book, ALICE, 3)
    send(book, BOB, 1, item=3)
    assert [each.number for each in book.take_due(1, NOW)] == [1]
    taken = book.cancel(ALICE, [1, 2, 9])
    book.cancelled(taken)
    assert [each.number for each in taken] == [2]
    assert [book.was_cancelled(ALICE, number) for number in (1, 2, 9)] == [False, True, False]
    assert [each.number for each in book.cancel_all("alice")] == [3]
    assert book.cancel_all("nobody") == book.cancel_all("alice", "another") == []
    assert [each.producer for each in book.take_due(9, NOW)] == [BOB]


def test_cancelled_messages_leave_no_growing_lists() -> None:
    book = opened(ALICE, limits=Limits(messages_per_second=10**9))
    for hold_ns in (0, SECOND):
        for item in range(0, 20_000, 10):
            send(book, ALICE, 10, hold_ns=hold_ns, item=item)
            book.cancelled(book.cancel_all("alice"))
    assert len(book._held) + len(book._contributors["alice"].ready) < 3_000
    assert book.take_due(10, NOW + SECOND) == []


class BookMachine(RuleBasedStateMachine):
    """Two identities, retries, cancellations and restarts, against lists of what was accepted and decided."""

    @initialize()
    def begin(self) -> None:
        self.book, self.now, self.items = opened(ALICE, BOB), NOW, 0
        self.accepted: list[Contribution] = []
        self.numbered: list[Contribution] = []
        self.cancelled: list[Contribution] = []

    @rule(
        producer=st.sampled_from([ALICE, BOB]), back=st.integers(0, 3), count=st.integers(1, 4), hold=st.integers(0, 3),
    )  # fmt: skip
    def contribute(self, producer: Producer, back: int, count: int, hold: int) -> None:
        first = max(self.book.next_number(producer) - back, 1)
        repeated = self.book.begin(producer, A, first, [1] * count, hold * SECOND)
        if repeated == count:
            return
        release = self.now + hold * SECOND if hold else 0
        new = [
            Contribution(self.items + at, producer, first + repeated + at, release, b"x")
            for at in range(count - repeated)
        ]
        self.items += len(new)
        self.book.accept(new, self.now)
        assert self.book.is_busy(producer)
        self.book.finish(producer)
        self.accepted += new

    @rule(producer=st.sampled_from([ALICE, BOB]), numbers=st.lists(st.integers(1, 30), max_size=4))
    def cancel(self, producer: Producer, numbers: list[int]) -> None:
        taken = self.book.cancel(producer, numbers)
        assert all(each.producer == producer and each.number in numbers for each in taken)
        self.book.cancelled(taken)
        self.cancelled += taken

    @rule(identity=st.sampled_from(["alice", "bob"]))
    def cancel_all(self, identity: str) -> None:
        taken = self.book.cancel_all(identity)
        self.book.cancelled(taken)
        self.cancelled += taken

    @rule(count=st.integers(1, 5), later=st.integers(0, 2))
    def decide(self, count: int, later: int) -> None:
        self.now += later * SECOND
        taken = self.book.take_due(count, self.now)
        assert all(each.release_at_ns <= self.now for each in taken)
        self.numbered += taken

    @precondition(lambda self: self.accepted)
    @rule()
    def restart(self) -> None:
        self.book = opened(ALICE, BOB)
        for each in self.cancelled:
            self.book.restore_decided(each.producer, each.number, is_cancelled=True, now_ns=self.now)
        for each in self.numbered:
            self.book.restore_decided(each.producer, each.number, is_cancelled=False, now_ns=self.now)
        decided = {each.item_id for each in self.cancelled + self.numbered}
        for each in self.accepted:
            if each.item_id not in decided:
                self.book.restore_pending(each, self.now)

    @invariant()
    def each_accepted_message_is_pending_or_decided_once(self) -> None:
        places = Counter(self.numbered + self.cancelled + list(self.book.pending()))
        assert places == Counter(self.accepted)
        assert self.book.pending_count == len(list(self.book.pending()))

    @invariant()
    def the_numbers_of_a_producer_are_accepted_once_without_gaps(self) -> None:
        for producer in (ALICE, BOB):
            numbers = [each.number for each in self.accepted if each.producer == producer]
            assert numbers == list(range(1, self.book.next_number(producer)))

    def teardown(self) -> None:
        self.now += 10 * SECOND
        self.numbered += self.book.take_due(10_000, self.now)
        assert Counter(self.numbered + self.cancelled) == Counter(self.accepted)
        assert self.book.next_release_ns(self.now) is None


BookMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestBookMachine = BookMachine.TestCase
