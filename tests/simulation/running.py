"""Runs one plan, or many seeds in several processes, and returns what failed."""

from __future__ import annotations

import multiprocessing
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from tests.simulation.checkers.content import Violation
from tests.simulation.cluster import Cluster
from tests.simulation.drawing import draw_plan
from tests.simulation.plan import Plan

BLOCK = 20  # seeds per task of a process


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a run failed.

    Attributes:
        invariant: its number in docs/protocol.md clause 9, the name of another check, or the exception that a core
            raised.
    """

    seed: int
    invariant: str
    text: str
    timeline: tuple[str, ...] = ()

    @property
    def kind(self) -> tuple[str, str]:
        """The invariant, and the text without numbers and names; equal for failures of the same kind."""
        return self.invariant, re.sub(r"[\w.]*\d[\w.]*", "#", self.text.partition(": ")[2].partition("(")[0])


def judge(plan: Plan, *, is_verbose: bool = False) -> Verdict | None:
    """Run a plan; returns None if no invariant was violated. An exception in a core is also a violation."""
    cluster = Cluster(plan, is_verbose=is_verbose)
    try:
        cluster.run()
    except Violation as violation:
        return Verdict(plan.seed, violation.invariant, str(violation), tuple(cluster.world.timeline()))
    except Exception as raised:  # noqa: BLE001 - any exception is a finding
        name = type(raised).__name__
        lines = [*cluster.world.timeline(), *traceback.format_exc().splitlines()]
        return Verdict(plan.seed, name, f"{name}: {raised}", tuple(lines))
    return None


def judge_seeds(first: int, count: int, jobs: int) -> Iterator[tuple[int, list[Verdict]]]:
    """Run `count` seeds from `first`; yields, block by block, how many seeds were run and which failed."""
    blocks = [(begin, min(BLOCK, first + count - begin)) for begin in range(first, first + count, BLOCK)]
    if jobs <= 1:
        for block in blocks:
            yield block[1], _judge_block(block)
        return
    # Not "fork": a test process has threads, and a forked copy could wait forever for a lock that another thread held.
    with multiprocessing.get_context("forkserver").Pool(jobs) as pool:
        for (_, size), failed in zip(blocks, pool.imap(_judge_block, blocks), strict=True):
            yield size, failed


def _judge_block(block: tuple[int, int]) -> list[Verdict]:
    first, count = block
    verdicts = [judge(draw_plan(seed)) for seed in range(first, first + count)]
    return [verdict for verdict in verdicts if verdict is not None]
