"""The checks of every run; each checker is a separate object (docs/simulation.md lists them)."""

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
