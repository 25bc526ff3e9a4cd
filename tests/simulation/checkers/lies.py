"""Checks what an adapter with valid keys that lies can do beyond its own role: nothing (docs/blast-radius.md).

The invariants of delivery and convergence are checked as in any run. Here: the admin server believes no number that
only the liar names, so that no key is replaced and no epoch is skipped; and it names the liar, and no other adapter.
"""

from __future__ import annotations

from tandemfeed.admin_server.feed.members.claims import Claims, Grounds
from tests.simulation.checkers.content import Violation
from tests.simulation.plan import FaultKind, Plan


class LieChecker:
    """Checks one run."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._told: set[int] = set()  # adapters of which the server has received a report that it must refuse

    def on_epoch_believed(self, adapter_id: int, epoch: int, grounds: Grounds) -> None:
        """The server believes an epoch beyond its records. No run restores a backup, so it was invented."""
        text = f"the server believes adapter {adapter_id} that it is in epoch {epoch}, because {grounds.value}"
        raise Violation("lies", text)

    def on_refusable(self, adapter_id: int) -> None:
        """The server received a report that it has no reason to believe."""
        self._told.add(adapter_id)

    def on_session(self, session: int, source_session: int) -> None:
        """The server announces a session."""
        if session > source_session:
            raise Violation("lies", f"the server announces session {session}; the source is in {source_session}")

    def at_end(self, claims: Claims) -> None:
        """Check whom the server names."""
        liars = {int(each.whom.removeprefix("adapter")) for each in self._plan.faults if each.kind is FaultKind.LIE}
        named = {each.adapter_id for each in self._plan.adapters if claims.doubts(each.adapter_id)}
        if not named <= liars:
            raise Violation("lies", f"the server does not believe adapters {sorted(named - liars)}, which are honest")
        if not self._told <= named:
            raise Violation("lies", f"the server does not name adapters {sorted(self._told - named)}, which lied to it")
