"""The simulator as the last check of a mutant that survived the tests."""

from __future__ import annotations

from tests.simulation.drawing import draw_plan
from tests.simulation.running import judge


def noticed_by_seeds(count: int) -> str:
    """Run seeds of the simulator; returns the first that fails, as text, or an empty string."""
    return next((f"seed {seed}" for seed in range(count) if judge(draw_plan(seed)) is not None), "")
