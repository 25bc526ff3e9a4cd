"""Goes through a page as a reader does: runs its code blocks in order, in one folder and one Python namespace."""

from __future__ import annotations

import contextlib
import io
import tomllib
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from tests.docs import documents
from tests.docs.blocks import ROOT, Block
from tests.docs.commands import BadExample, Shell, check_command_lines, check_syntax
from tests.docs.preparations import PREPARATIONS
from tests.spark_jvm import forget_ended_jvm

PROMPT = "$ "


class Reader:
    """Runs blocks; use it in a `with`, which ends the processes that the page started.

    Args:
        folder: where the page's commands and code run. It looks like a checkout.
        bin_folder: for the shell's own files.
    """

    def __init__(self, folder: Path, bin_folder: Path) -> None:
        self.shell = Shell(folder, bin_folder)
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("adapter", "deploy", "run"):
            if not (folder / name).exists():
                (folder / name).symlink_to(ROOT / name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shell.close()

    def failure(self, block: Block) -> str:
        """Treat a block; returns what is wrong with it, or an empty text."""
        try:
            self._treat(block)
        except BadExample as wrong:
            return f"{block.place}: {wrong}"
        except Exception:  # noqa: BLE001 - whatever an example raises is the page's fault
            return f"{block.place}: {traceback.format_exc()}"
        return ""

    def _treat(self, block: Block) -> None:
        for directive in block.directives:
            if directive in PREPARATIONS:
                PREPARATIONS[directive](self.shell.folder)
        is_parsed_only = "parse only" in block.directives
        match block.language:
            case "python" if is_parsed_only:
                compile(block.text, block.place, "exec")
            case "python":
                self._run_python(block)
            case "sh" if is_parsed_only:
                check_command_lines(block.text)
            case "sh" if "serves" in block.directives:
                check_syntax(block.text)
                self.shell.serve(block.text)
            case "sh":
                self.shell.run(block.text)
            case "console":
                self._run_console(block, is_parsed_only)
            case "xml" if is_parsed_only:
                documents.check_xml(block.text)
            case "toml" if is_parsed_only:
                tomllib.loads(block.text)
            case "xml" | "toml" | "json" | "mermaid":
                LOADERS[block.language](block.text, self.shell.folder)
            case "text" if "sample" in block.directives:
                pass
            case "text":
                raise BadExample("a text block needs the directive `sample`, which says where the text comes from")
            case unknown:
                raise BadExample(f"no test knows how to treat a block in {unknown!r}")

    def _run_python(self, block: Block) -> None:
        lines = "\n" * (block.line - 1) + block.text  # so that a traceback gives the line of the page
        code = compile(lines, str(block.page), "exec")
        awaited = block.directives.get("interrupt after", "")
        output = _Output(awaited)
        if "pyspark" in block.text:
            forget_ended_jvm()
        with contextlib.chdir(self.shell.folder), contextlib.redirect_stdout(output):
            try:
                exec(code, self.namespace)
            except KeyboardInterrupt:
                if not output.is_complete:
                    raise
        if awaited and not output.is_complete:
            raise BadExample(f"ended without printing {awaited!r}; it printed\n{output.getvalue()}")

    def _run_console(self, block: Block, is_parsed_only: bool) -> None:
        for command, expected in _sessions(block.text):
            if is_parsed_only:
                check_command_lines(command)
            elif expected:
                self.shell.run_and_compare(command, expected)
            else:
                self.shell.run(command)


LOADERS: dict[str, Callable[[str, Path], None]] = {
    "xml": documents.load_xml,
    "toml": documents.load_toml,
    "json": documents.load_json,
    "mermaid": documents.check_mermaid,
}


class _Output(io.StringIO):
    """Standard output of an example; after a line with the awaited text, the reader presses Ctrl-C."""

    def __init__(self, awaited: str) -> None:
        super().__init__()
        self._awaited = awaited
        self.is_complete = False

    def write(self, text: str) -> int:
        count = super().write(text)
        lines = self.getvalue().rpartition("\n")[0]
        if self._awaited and not self.is_complete and self._awaited in lines:
            self.is_complete = True
            raise KeyboardInterrupt
        return count


def _sessions(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with the output shown after it."""
    for part in f"\n{text}".split(f"\n{PROMPT}")[1:]:
        lines = part.splitlines(keepends=True)
        end = next((at for at, line in enumerate(lines, 1) if not line.endswith("\\\n")), len(lines))
        yield "".join(lines[:end]), "".join(lines[end:])
    if not text.startswith(PROMPT):
        raise BadExample(f"a console block must begin with a command: {PROMPT}…")
