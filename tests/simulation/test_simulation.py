"""Seeds in the suite; the long run is `./run simulate`."""

from __future__ import annotations

import pytest

from tests.simulation.cluster import Cluster

SEEDS = 300
BLOCK = 50


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_no_seed_violates_an_invariant(first: int) -> None:
    for seed in range(first, first + BLOCK):
        cluster = Cluster(seed)
        try:
            cluster.run()
        except AssertionError as violation:
            story = "\n".join(cluster.world.timeline)
            pytest.fail(f"seed {seed}: {violation}\n{story}")


def test_equal_seeds_give_equal_runs() -> None:
    assert Cluster(17).run() == Cluster(17).run()
