"""Running seeds: one plan to its verdict, and many in several processes."""

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

BLOCK = 20  # seeds a process takes at once


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a run failed.

    Attributes:
        invariant: its number in DESIGN section 11, or the exception that a core raised.
    """

    seed: int
    invariant: str
    text: str
    timeline: tuple[str, ...] = ()

    @property
    def kind(self) -> tuple[str, str]:
        """The invariant and the text without its numbers and names: equal for failures that are alike."""
        return self.invariant, re.sub(r"[\w.]*\d[\w.]*", "#", self.text.partition(": ")[2].partition("(")[0])


def judge(plan: Plan, *, is_verbose: bool = False) -> Verdict | None:
    """Run a plan; None if every invariant held. What a core raises is a violation as well: a core never may."""
    cluster = Cluster(plan, is_verbose=is_verbose)
    try:
        cluster.run()
    except Violation as violation:
        return Verdict(plan.seed, violation.invariant, str(violation), tuple(cluster.world.timeline()))
    except Exception as raised:  # noqa: BLE001 - whatever it is, it is the finding
        name = type(raised).__name__
        lines = [*cluster.world.timeline(), *traceback.format_exc().splitlines()]
        return Verdict(plan.seed, name, f"{name}: {raised}", tuple(lines))
    return None


def judge_seeds(first: int, count: int, jobs: int) -> Iterator[tuple[int, list[Verdict]]]:
    """Run the seeds from `first` on; yields, as they come, how many have been run and which of them failed."""
    blocks = [(begin, min(BLOCK, first + count - begin)) for begin in range(first, first + count, BLOCK)]
    if jobs <= 1:
        for block in blocks:
            yield block[1], _judge_block(block)
        return
    # Not by fork: a process with threads, as a test's is, may have held a lock that its copy then waits for for ever.
    with multiprocessing.get_context("forkserver").Pool(jobs) as pool:
        for (_, size), failed in zip(blocks, pool.imap(_judge_block, blocks), strict=True):
            yield size, failed


def _judge_block(block: tuple[int, int]) -> list[Verdict]:
    first, count = block
    verdicts = [judge(draw_plan(seed)) for seed in range(first, first + count)]
    return [verdict for verdict in verdicts if verdict is not None]
