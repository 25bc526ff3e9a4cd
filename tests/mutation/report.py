"""Results on disk: one JSON line per mutant, written as it ends; a page of each module's survivors; a table of all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.equivalent import EQUIVALENT
from tests.mutation.mutants import Mutant
from tests.mutation.running import Outcome, Result

NOTICED_SHARE_MIN = 0.9  # of the mutants that are not equivalent


@dataclass(frozen=True, slots=True)
class Tally:
    """The results of one module.

    Attributes:
        equivalent_count: of those that were tried and survived.
        survivors: without the equivalent ones.
    """

    module: str
    mutant_count: int
    tried_count: int
    noticed_count: int
    equivalent_count: int
    survivors: tuple[Mutant, ...]

    @property
    def share(self) -> float | None:
        """The share of mutants that were noticed, of those that were tried and are not equivalent."""
        counted = self.tried_count - self.equivalent_count
        return self.noticed_count / counted if counted else None

    @property
    def is_enough(self) -> bool:
        """Whether enough of the mutants that were tried were noticed."""
        return self.share is None or self.share >= NOTICED_SHARE_MIN


class Results:
    """The results of one module.

    Args:
        folder: where they are stored.
        is_resumed: continue with earlier results; those of functions that have changed since are not used.
    """

    def __init__(self, folder: Path, module: str, mutants: Sequence[Mutant], *, is_resumed: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._module, self._mutants = module, mutants
        name = module.removesuffix(".py").replace("/", ".")
        self._path, self.page_path = folder / f"{name}.jsonl", folder / f"{name}.md"
        self._outcomes: dict[str, Outcome] = {}
        if is_resumed and self._path.exists():
            rows = [json.loads(line) for line in self._path.read_text().splitlines()]
            self._outcomes = {row["key"]: Outcome(row["outcome"]) for row in rows}
        elif not is_resumed:
            self._path.unlink(missing_ok=True)

    def outcome_of(self, mutant: Mutant) -> Outcome | None:
        """How a mutant ended; None if it has not been tried."""
        return self._outcomes.get(mutant.key)

    def note(self, result: Result) -> None:
        """Store a result."""
        mutant = result.mutant
        self._outcomes[mutant.key] = result.outcome
        row = {"key": mutant.key, "id": mutant.id, "outcome": result.outcome, "by": result.by}
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def tally(self) -> Tally:
        """The results in numbers."""
        tried = [mutant for mutant in self._mutants if mutant.key in self._outcomes]
        survived = [mutant for mutant in tried if self._outcomes[mutant.key] is Outcome.SURVIVED]
        survivors = tuple(mutant for mutant in survived if reason_of(mutant) is None)
        return Tally(
            self._module,
            len(self._mutants),
            len(tried),
            len(tried) - len(survived),
            len(survived) - len(survivors),
            survivors,
        )

    def write_page(self) -> Path:
        """Write the page of survivors; returns its path."""
        lines = [f"# {self._module}", "", *table([self.tally()]), ""]
        for mutant in self._mutants:
            if self._outcomes.get(mutant.key) is not Outcome.SURVIVED:
                continue
            reason = reason_of(mutant)
            lines += [f"## {mutant.id} in {mutant.function}", "", "```diff", mutant.change, "```", ""]
            lines += [f"Equivalent: {reason}.", ""] if reason is not None else []
        self.page_path.write_text("\n".join(lines))
        return self.page_path


def table(tallies: Iterable[Tally]) -> list[str]:
    """A table of modules, as Markdown."""
    lines = ["| module | mutants | tried | noticed | equivalent | survived | share |", "|---|---|---|---|---|---|---|"]
    for each in tallies:
        share = "" if each.share is None else f"{each.share:.1%}"
        lines.append(
            f"| `{each.module}` | {each.mutant_count} | {each.tried_count} | {each.noticed_count} "
            f"| {each.equivalent_count} | {len(each.survivors)} | {share} |"
        )
    return lines


def together(tallies: Sequence[Tally]) -> Tally:
    """The sum of the results of modules."""
    return Tally(
        "together",
        sum(each.mutant_count for each in tallies),
        sum(each.tried_count for each in tallies),
        sum(each.noticed_count for each in tallies),
        sum(each.equivalent_count for each in tallies),
        tuple(mutant for each in tallies for mutant in each.survivors),
    )


def reason_of(mutant: Mutant, reasons: Mapping[tuple[str, str, str], str] = EQUIVALENT) -> str | None:
    """Why a mutant is equivalent to the original; None if it is not known to be. The line number does not matter."""
    return reasons.get((mutant.module, mutant.function, mutant.change))
