"""Turns among identities: none waits for all that another has waiting, and a call that ends early costs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec

import pytest

from tandemfeed.adapter.records.fair_turns import FairTurns

Arguments = ParamSpec("Arguments")


def on_a_loop(test: Callable[Arguments, Awaitable[None]]) -> Callable[Arguments, None]:
    @wraps(test)
    def run(*arguments: Arguments.args, **named: Arguments.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **named), 60))  # type: ignore[arg-type]

    return run


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


class Taking:
    """Tasks that take turns, and the order in which they had them."""

    def __init__(self, count: int = 1) -> None:
        self.turns, self.had = FairTurns(count), list[str]()
        self.let_go = asyncio.Semaphore(0)
        self.tasks: list[asyncio.Task[None]] = []

    async def begin(self, *identities: str) -> None:
        """Have identities ask for turns, in this order."""
        for identity in identities:
            self.tasks.append(asyncio.create_task(self._take(identity)))
            await settle()

    async def end(self, count: int = 1) -> None:
        """End some turns."""
        for _ in range(count):
            self.let_go.release()
            await settle()

    async def _take(self, identity: str) -> None:
        async with self.turns.turn(identity):
            self.had.append(identity)
            await self.let_go.acquire()


@on_a_loop
async def test_an_identity_with_many_calls_waits_for_those_of_others_in_between() -> None:
    taking = Taking()
    await taking.begin("a", "a", "a", "a", "b", "c", "b")
    await taking.end(7)
    assert taking.had == ["a", "a", "b", "c", "a", "b", "a"]


@on_a_loop
async def test_only_so_many_turns_are_taken_at_a_time() -> None:
    taking = Taking(2)
    await taking.begin("a", "b", "c")
    assert taking.had == ["a", "b"]
    await taking.end()
    assert taking.had == ["a", "b", "c"]
    await taking.end(2)


@on_a_loop
async def test_a_call_that_ends_while_it_waits_is_passed_over() -> None:
    taking = Taking()
    await taking.begin("a", "b", "c")
    taking.tasks[1].cancel()
    await settle()
    await taking.end()
    assert taking.had == ["a", "c"]
    await taking.end()
    await taking.begin("b")
    assert taking.had == ["a", "c", "b"]
    await taking.end()


@on_a_loop
async def test_a_call_that_ends_as_its_turn_comes_gives_it_to_the_next() -> None:
    taking = Taking()
    await taking.begin("a", "b", "c")
    taking.let_go.release()
    await asyncio.sleep(0)  # a's task is woken, and will give the turn to b
    while not taking.tasks[0].done():
        await asyncio.sleep(0)
    taking.tasks[1].cancel()  # b has the turn, and has not run yet
    await settle()
    assert taking.had == ["a", "c"]
    await taking.end()


@on_a_loop
async def test_a_turn_that_ends_by_an_exception_is_over() -> None:
    turns = FairTurns()
    with pytest.raises(ValueError, match="broken"):
        async with turns.turn("a"):
            raise ValueError("broken")
    async with turns.turn("b"):
        pass
