"""The tables that commands of `tandemfeed admin` print."""

from __future__ import annotations

from collections.abc import Iterable

import rich.box
from rich.table import Table


def titled_table(title: str, headings: Iterable[str]) -> Table:
    """A table without a frame that folds long names."""
    table = Table(title=title, title_justify="left", box=rich.box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.padding = (0, 1, 0, 0)
    for heading in headings:
        table.add_column(heading, overflow="fold")  # rather than cut off a name
    return table
