"""Faults that an adapter process plants in itself before it starts, and that a test switches on by creating a file."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

RAISES = "the test planted this"


def raise_in(owner: str, method: str, switch: str) -> None:
    """Have a method raise an unexpected exception from when the file exists.

    Args:
        owner: module:Class.
    """
    module, _, name = owner.partition(":")
    found = getattr(importlib.import_module(module), name)
    right = getattr(found, method)

    def planted(*arguments: Any, **named: Any) -> Any:
        if Path(switch).exists():
            raise KeyError(RAISES)
        return right(*arguments, **named)

    setattr(found, method, planted)


def prelude(owner: str, method: str, switch: Path) -> str:
    """What an adapter process runs first, for `raise_in`."""
    return f"from tests.adapter.processes.planted import raise_in\nraise_in({owner!r}, {method!r}, {str(switch)!r})"


def fail_flushes(switch: str) -> None:
    """Have the disk refuse to flush files of journals from when the file exists."""
    durable = importlib.import_module("tandemfeed.runtime.durable")

    class Refusing(durable.Disk):  # type: ignore[misc, name-defined]
        def flush(self, descriptor: int, path: Path) -> None:
            if Path(switch).exists():
                raise OSError(5, "Input/output error")
            super().flush(descriptor, path)

    durable.DISK = Refusing()


def disk_prelude(switch: Path) -> str:
    """What an adapter process runs first, for `fail_flushes`."""
    return f"from tests.adapter.processes.planted import fail_flushes\nfail_flushes({str(switch)!r})"
