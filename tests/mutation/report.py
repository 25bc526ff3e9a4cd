"""Results on disk: one JSON line per mutant, written as it ends, and a page of the surviving mutants."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.mutation.equivalent import EQUIVALENT
from tests.mutation.mutants import Mutant
from tests.mutation.running import Outcome


class Results:
    """The results of one module.

    Args:
        folder: where they are stored.
        source: the module's source text; results for a different text are not used.
        is_resumed: continue with the results of an earlier run.
    """

    def __init__(self, folder: Path, module: str, source: str, *, is_resumed: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._module = module
        name = module.removesuffix(".py").replace("/", ".")
        self._path, self.page_path = folder / f"{name}.jsonl", folder / f"{name}.md"
        self._source = source
        self.outcomes: dict[str, Outcome] = {}
        if is_resumed and self._path.exists():
            self._read()
        else:
            self._path.write_text(json.dumps({"source": source}) + "\n")

    def note(self, mutant: Mutant, outcome: Outcome) -> None:
        """Store a result."""
        self.outcomes[mutant.id] = outcome
        with self._path.open("a") as file:
            file.write(json.dumps({"id": mutant.id, "outcome": outcome}) + "\n")

    def write_page(self, mutants: Iterable[Mutant]) -> str:
        """Write the page of survivors; returns its first line."""
        tried = [mutant for mutant in mutants if mutant.id in self.outcomes]
        survived = [mutant for mutant in tried if self.outcomes[mutant.id] is Outcome.SURVIVED]
        open_ones = [mutant for mutant in survived if reason_of(mutant) is None]
        counted = len(tried) - (len(survived) - len(open_ones))
        killed = len(tried) - len(survived)
        share = f"{killed / counted:.1%}" if counted else "none"
        head = (
            f"{self._module}: {len(tried)} mutants, {killed} killed, {len(survived)} survived, "
            f"{len(survived) - len(open_ones)} of them equivalent: {share} of the others killed"
        )
        lines = [f"# {head}", ""]
        for mutant in survived:
            reason = reason_of(mutant)
            lines += [f"## {mutant.id} in {mutant.function}", "", "```diff", mutant.change, "```", ""]
            lines += [f"Equivalent: {reason}.", ""] if reason is not None else []
        self.page_path.write_text("\n".join(lines))
        return head

    def _read(self) -> None:
        first, *rest = self._path.read_text().splitlines()
        if json.loads(first)["source"] != self._source:
            raise ValueError(f"{self._module} has changed since {self._path} was written: run without --resume")
        rows = [json.loads(line) for line in rest]
        self.outcomes = {row["id"]: Outcome(row["outcome"]) for row in rows}


def reason_of(mutant: Mutant, reasons: Mapping[tuple[str, str, str], str] = EQUIVALENT) -> str | None:
    """Why a mutant is equivalent to the original; None if it is not known to be. The line number does not matter."""
    return reasons.get((mutant.id.partition(":")[0], mutant.function, mutant.change))
