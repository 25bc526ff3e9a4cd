"""Which test executes which lines of the mutated modules, so that a mutant needs only the tests that reach it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any


class LineRecorder:
    """Records executed lines of some files as (file, line).

    Use it as a context manager; each time it begins with no lines. It records only the thread that enters it.
    """

    def __init__(self, files: Iterable[str]) -> None:
        self._files = frozenset(files)
        self.lines: set[tuple[str, int]] = set()

    def __enter__(self) -> LineRecorder:
        self.lines = set()
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.settrace(None)

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._on_line if frame.f_code.co_filename in self._files else None

    def _on_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._on_line
