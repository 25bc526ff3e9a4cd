"""Mutants that no test can kill, because what they change cannot be seen: (file, function, change) -> why."""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str, str], str] = {}
