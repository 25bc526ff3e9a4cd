"""A planted fault: a small change of one function at run time, and the search for a seed that catches it.

For tests only. If no seed catches a mutant, either a checker misses it or no plan reaches it: both are faults of the
simulator. If a schedule is easier to write by hand, the mutant names the unit test that catches it.
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
from tests.simulation.scenarios import Scenario

Method = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted fault.

    Attributes:
        what: what the core does wrong, in one sentence.
        owner, method: the function to replace; `owner` is a class or a module.
        change: makes the faulty function from the right one, or a faulty property from the right property.
        seed_count_max: one of this many seeds must catch it.
        scenario: the scenario of the plans to run; None: plans as they are drawn.
        killer: the unit test that catches it, as "module:function"; if set, no seeds are run.
        is_long: takes more than a second or two, so only `./run simulate --mutants` runs it.
    """

    what: str
    owner: type | ModuleType
    method: str
    change: Callable[[Any], Any]
    seed_count_max: int = 300
    scenario: Scenario | None = None
    killer: str = ""
    is_long: bool = False

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Plant the fault for the duration of the block."""
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
        """The plan of a seed, in the mutant's scenario."""
        return draw_plan(seed, self.scenario)


def hunt(mutant: Mutant, first: int = 0) -> tuple[int, Verdict | None]:
    """Run seeds, or the unit test, with the fault planted.

    Returns:
        How many seeds were run (0: the unit test), and how the fault was caught, or None if it survived.

    Raises:
        AssertionError: the plan also fails without the fault, and so proves nothing.
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
    assert unprovoked is None, f"also fails without the planted fault: seed {seed}, {mutant.scenario}: {unprovoked}"
    return seed - first + 1, verdict


def _run_test(name: str) -> Verdict | None:
    module, _, function = name.partition(":")
    test = getattr(importlib.import_module(module), function)
    try:
        test()
    except (Exception, pytest.fail.Exception) as raised:  # noqa: BLE001 - an assertion of the test or of the core
        return Verdict(0, function, f"{function}: {type(raised).__name__}")
    return None


def always(value: object) -> Callable[[Method], Method]:
    """Makes a function that always returns the value."""
    return lambda right: lambda *arguments, **named: value


def is_never(right: property) -> property:
    """Makes a property that is always False."""
    return property(lambda self: False)
