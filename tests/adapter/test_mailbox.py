"""The mailbox: the loop answers questions between events, and no thread waits for a loop that has ended."""

from __future__ import annotations

import select
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tandemfeed.adapter.mailbox import Mailbox

WAIT_S = 60


def test_posted_events_wake_the_loop_and_come_in_order() -> None:
    mailbox = Mailbox()
    heard: list[int] = []
    for place in range(3):
        mailbox.post(lambda now_ns, place=place: heard.append(place + now_ns) or [])  # type: ignore[misc]
    assert select.select([mailbox.fileno()], [], [], WAIT_S)[0]
    for event in mailbox.take(100):
        assert event(10) == []
    assert heard == [10, 11, 12]
    assert mailbox.take(100) == []


def test_events_posted_together_wake_the_loop_once_and_come_in_order() -> None:
    mailbox = Mailbox()
    heard: list[int] = []
    mailbox.post_all(lambda _now_ns, place=place: heard.append(place) or [] for place in range(3))  # type: ignore[misc]
    for event in mailbox.take(100):
        event(0)
    assert heard == [0, 1, 2]
    assert not select.select([mailbox.fileno()], [], [], 0)[0]


def test_events_that_a_turn_leaves_wake_the_loop_again() -> None:
    mailbox = Mailbox()
    heard: list[int] = []
    for place in range(5):
        mailbox.post(lambda _now_ns, place=place: heard.append(place) or [])  # type: ignore[misc]
    counts = []
    while select.select([mailbox.fileno()], [], [], 0)[0]:
        taken = mailbox.take(2)
        counts.append(len(taken))
        for event in taken:
            event(0)
    assert (counts, heard) == ([2, 2, 1], [0, 1, 2, 3, 4])


def test_the_loop_answers_a_question_and_its_exception_is_raised_in_the_asking_thread() -> None:
    mailbox = Mailbox()

    def refuse() -> int:
        raise ValueError("no")

    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(mailbox.ask, lambda: 7), pool.submit(mailbox.ask, refuse)]
        while not all(answer.done() for answer in answers):
            select.select([mailbox.fileno()], [], [], 0.01)
            for event in mailbox.take(100):
                assert event(0) == []  # a question has no effects
        assert answers[0].result() == 7
        with pytest.raises(ValueError, match="no"):
            answers[1].result()


def test_a_question_to_a_loop_that_ends_raises_immediately() -> None:
    mailbox = Mailbox()
    asked = threading.Event()
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(lambda: (asked.set(), mailbox.ask(lambda: 7)))
        assert asked.wait(WAIT_S)
        mailbox.close()
        with pytest.raises(TimeoutError, match="has ended"):
            answer.result(WAIT_S)
    with pytest.raises(TimeoutError, match="has ended"):
        mailbox.ask(lambda: 7)
