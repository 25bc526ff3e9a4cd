"""Faults planted in the cores, to prove that the simulator finds faults; one module per core."""

from __future__ import annotations

from tests.simulation.mutants.lease import LEASE
from tests.simulation.mutants.lies import LIES
from tests.simulation.mutants.merge import MERGE
from tests.simulation.mutants.mutant import Mutant, hunt
from tests.simulation.mutants.replica import REPLICA
from tests.simulation.mutants.sessions import SESSIONS
from tests.simulation.mutants.store import STORE

__all__ = ["MUTANTS", "Mutant", "hunt"]

MUTANTS: tuple[Mutant, ...] = (*LEASE, *STORE, *REPLICA, *SESSIONS, *MERGE, *LIES)
