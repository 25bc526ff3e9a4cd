"""A hook of mkdocs: the decisions end the navigation of the documentation's site, in their order."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_config(config: Any) -> None:
    """Add a section to what `mkdocs.yml` lists."""
    pages = sorted(Path(config.docs_dir, "decisions").glob("*.md"))
    config.nav.append({"Decisions": [f"decisions/{page.name}" for page in pages]})
