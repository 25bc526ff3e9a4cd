"""Keeps a Python worker of Spark from reading its archives again before every task.

Spark clears Python's import caches before each task. Python then reads the directory of every archive on its path
again, once per package that was imported from it: a tenth of a second, more than the task itself takes. The archives of
Spark do not change while it runs.
"""

from __future__ import annotations

from zipimport import zipimporter


def keep_archive_directories() -> None:
    """Call it in a worker's task; it takes effect from the worker's next task on."""
    zipimporter.invalidate_caches = _do_nothing  # type: ignore[method-assign, assignment]


def _do_nothing(_: zipimporter) -> None:
    pass
