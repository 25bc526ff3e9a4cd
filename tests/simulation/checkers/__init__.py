"""What must hold in every run, each watched by an object of its own (docs/simulation.md has the table)."""

from __future__ import annotations

from tests.simulation.checkers.content import (
    ContentChecker,
    DeliveryChecker,
    PacketReader,
    TotalOrderChecker,
    Truth,
    Violation,
)

__all__ = ["ContentChecker", "DeliveryChecker", "PacketReader", "TotalOrderChecker", "Truth", "Violation"]
