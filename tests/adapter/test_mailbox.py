"""The mailbox: the loop answers between two events, and nobody waits for a loop that has ended."""

from __future__ import annotations

import select
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from adapter.mailbox import Mailbox

WAIT_S = 20


def test_what_is_posted_wakes_the_loop_and_comes_in_order() -> None:
    mailbox = Mailbox()
    heard: list[int] = []
    for place in range(3):
        mailbox.post(lambda now_ns, place=place: heard.append(place + now_ns) or [])  # type: ignore[misc]
    assert select.select([mailbox.fileno()], [], [], WAIT_S)[0]
    for event in mailbox.take():
        assert event(10) == []
    assert heard == [10, 11, 12]
    assert mailbox.take() == []


def test_a_question_is_answered_by_the_loop_and_what_it_raises_is_raised_where_it_was_asked() -> None:
    mailbox = Mailbox()

    def refuse() -> int:
        raise ValueError("no")

    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(mailbox.ask, lambda: 7), pool.submit(mailbox.ask, refuse)]
        while not all(answer.done() for answer in answers):
            select.select([mailbox.fileno()], [], [], 0.01)
            for event in mailbox.take():
                event(0)
        assert answers[0].result() == 7
        with pytest.raises(ValueError, match="no"):
            answers[1].result()


def test_whoever_waits_for_a_loop_that_ends_is_told_at_once() -> None:
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
