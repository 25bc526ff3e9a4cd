"""What the packages offer by name: the entry points of the project."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path


def entry_points(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    """The entry points of a group. In a checkout the project file lists them, even if an older version is installed."""
    project = Path(__file__).resolve().parent.parent / "pyproject.toml"
    if project.is_file():
        listed = tomllib.loads(project.read_text())["project"]["entry-points"][group]
        return {name: importlib.metadata.EntryPoint(name, value, group) for name, value in listed.items()}
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=group)}
