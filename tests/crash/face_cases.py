"""Crash cases of the queue and of the transactional store: kill a process at a random time, then check its files."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.crash.power_cases import POWER_CASES, left_out
from tests.crash.victims import LIFE_LENGTHS, MODULES, live_and_die, module_of


def kill_case(face: str, folder: Path, seed: int) -> str:
    """Kill a victim after a random number of acknowledgements, once or twice in the same folder, and check its
    files against its reports."""
    module = module_of(face)
    source = random.Random(seed)
    reported: list[Any] = []
    for life in range(source.choice((1, 2))):
        reported += live_and_die(module.child, folder, seed * 2 + life, source.choice(LIFE_LENGTHS))
        module.verify(folder, reported)
    return "killed"


def cases() -> dict[str, Callable[[Path, int], str]]:
    """The cases by name."""
    kills = {f"{face}-kill": partial(kill_case, face) for face in MODULES}
    return {**kills, **{name: case for name, case in POWER_CASES.items() if name not in left_out()}}
