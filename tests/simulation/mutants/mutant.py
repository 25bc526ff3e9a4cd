"""A planted fault: a small change of one function at run time, and the hunt for it.

For tests only. A mutant that no seed of its budget kills means that a checker sees nothing or that no plan leads there:
that is a fault of the simulator. Where a schedule is better made by hand, a mutant names the unit test that kills it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from tests.simulation.drawing import draw_plan
from tests.simulation.plan import Plan
from tests.simulation.running import Verdict, judge
from tests.simulation.scenes import Scene

Method = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted fault.

    Attributes:
        what: what the core does wrong now, one sentence.
        owner, method: what is replaced; a module's own functions can be as well.
        change: makes the wrong function from the right one; a property is given and returned as one.
        seed_count_max: how many seeds may pass before one of them must have caught it.
        scene: the class of plans that leads there; None: seeds as they are drawn.
        killer: the unit test that catches it instead, as "module:function".
        is_long: the hunt takes more than a second or two; `./run simulate --mutants` runs it, the suite does not.
    """

    what: str
    owner: type | ModuleType
    method: str
    change: Callable[[Any], Any]
    seed_count_max: int = 300
    scene: Scene | None = None
    killer: str = ""
    is_long: bool = False

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The fault is there inside the block."""
        is_own = self.method in vars(self.owner)
        right = vars(self.owner)[self.method] if is_own else getattr(self.owner, self.method)
        setattr(self.owner, self.method, self.change(right))
        try:
            yield
        finally:
            if is_own:
                setattr(self.owner, self.method, right)
            else:
                delattr(self.owner, self.method)

    def plan(self, seed: int) -> Plan:
        """The plan of a seed of this hunt."""
        return draw_plan(seed, self.scene)


def hunt(mutant: Mutant, first: int = 0) -> tuple[int, Verdict | None]:
    """Run seeds, or the unit test, with the fault planted.

    Returns:
        How many seeds it took (0: the unit test), and how it was caught; None: it was not. A plan that fails without
        the fault as well is no proof, and raises.
    """
    with mutant.planted():
        if mutant.killer:
            return 0, _run_test(mutant.killer)
        for seed in range(first, first + mutant.seed_count_max):
            verdict = judge(mutant.plan(seed))
            if verdict is not None:
                break
        else:
            return mutant.seed_count_max, None
    unprovoked = judge(mutant.plan(seed))
    assert unprovoked is None, f"without the planted fault as well: seed {seed}, scene {mutant.scene}: {unprovoked}"
    return seed - first + 1, verdict


def _run_test(name: str) -> Verdict | None:
    module, _, function = name.partition(":")
    test = getattr(importlib.import_module(module), function)
    try:
        test()
    except (Exception, pytest.fail.Exception) as raised:  # noqa: BLE001 - an assertion of the test's, or of the core's: it fails
        return Verdict(0, function, f"{function}: {type(raised).__name__}")
    return None


def always(value: object) -> Callable[[Method], Method]:
    """A function that always returns the value."""
    return lambda right: lambda *arguments, **named: value


def is_never(right: property) -> property:
    """A property that is always False."""
    return property(lambda self: False)
