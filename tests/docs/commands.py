"""Commands in a page's shell blocks: which there are, whether their real parsers accept them, and running them."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest import mock

from tandemfeed.deploy import command as tandemfeed_command
from tests.docs.blocks import ROOT

RUN_S = 60
SYNTAX_ONLY = frozenset(  # not commands of ours
    {"pip", "mkdir", "cp", "cd", "export", "sudo", "apt-get", "pytest", "spark-class", "spark-submit"}
)
# `pkill -SIGNAL -f TEXT` for the processes that a page serves, and for no others.
PKILL = """#!{python}
import os, pathlib, signal, sys
number = signal.Signals["SIG" + sys.argv[1].removeprefix("-")]
for process in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        parent = int(process.joinpath("stat").read_text().rpartition(")")[2].split()[1])
        command = process.joinpath("cmdline").read_text().replace("\\0", " ")
    except OSError:
        continue
    if parent == {parent} and sys.argv[-1] in command:
        os.kill(int(process.name), number)
        sys.exit(0)
sys.exit(1)
"""
ASSIGNMENT = re.compile(r"\w+=\S*")
# What `./run TASK` runs, apart from setting up; None: the task takes no options.
TASKS: dict[str, str | None] = {
    "demo": "tandemfeed demo",
    "drill": "tandemfeed drill",
    "bench": "tandemfeed bench",
    "simulate": "python -m tests.simulation",
    "crash-test": "python -m tests.crash",
    "contracts": "python -m tandemfeed.deploy.contracts",
    "test": "pytest",
    "tandemfeed": "tandemfeed",
    "check": None,
    "docs": None,
    "lint": None,
    "lock": None,
    "setup": None,
}


class BadExample(Exception):
    """An example does not do what the page says; the text says why."""


class _Parsed(BaseException):
    """The command's parser has accepted the command line."""


# ---- parsing ----


def check_syntax(script: str) -> None:
    """Check a script's syntax with `bash -n`."""
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BadExample(done.stderr.strip())


def check_command_lines(script: str) -> None:
    """Check that the real parser of each command accepts it."""
    check_syntax(script)
    for line in script.replace("\\\n", " ").splitlines():
        for words in _commands(line):
            _check_command(words)


def _commands(line: str) -> Iterator[list[str]]:
    """The commands of a line, without assignments and redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    for word in lexer:
        if word.startswith("#"):
            break
        if set(word) <= set("|&;<>"):
            yield words
            words = []
        else:
            words.append(word)
    yield words


def _check_command(words: list[str]) -> None:
    while words and ASSIGNMENT.fullmatch(words[0]):
        words = words[1:]
    match words:
        case []:
            return
        case ["./run", task, *options]:
            _check_task(task, [option for option in options if option != "--no-isolate"])
        case ["tandemfeed", *options]:
            _check_with(tandemfeed_command.main, options)
        case ["python", "-m", module, *options]:
            _check_with(_main_of(module), options)
        case [program, *_] if program not in SYNTAX_ONLY:
            raise BadExample(f"{program!r} is not a command that tests/docs knows")


def _check_task(task: str, options: list[str]) -> None:
    if task not in TASKS:
        raise BadExample(f"./run has no task {task!r}")
    match TASKS[task]:
        case None:
            if options:
                raise BadExample(f"./run {task} takes no options; found {options}")
        case "pytest":
            _check_pytest([option for option in options if option != "--all"])
        case implementation:
            _check_command([*implementation.split(), *options])


def _check_pytest(options: list[str]) -> None:
    if options:
        command = [sys.executable, "-m", "pytest", "--noconftest", "--collect-only", __file__, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        if done.returncode == 4:  # usage error
            raise BadExample(done.stderr.strip())


def _main_of(module: str) -> Callable[[Sequence[str]], object]:
    for name in (f"{module}.__main__", module):
        with contextlib.suppress(ModuleNotFoundError):
            found = importlib.import_module(name)
            if hasattr(found, "main"):
                main: Callable[[Sequence[str]], object] = found.main
                return main
    raise BadExample(f"python -m {module}: found no main()")


def _check_with(main: Callable[[Sequence[str]], object], options: list[str]) -> None:
    """Run a command up to the point where its parser has accepted the options, or one that does work of its own."""
    parse = argparse.ArgumentParser.parse_args

    def stop(*_: object) -> None:
        raise _Parsed

    def parse_and_stop(parser: argparse.ArgumentParser, *arguments: object, **named: object) -> None:
        with contextlib.ExitStack() as patches:
            for kind in {type(action) for action in parser._actions if type(action).__module__ != argparse.__name__}:
                patches.enter_context(mock.patch.object(kind, "__call__", stop))
            parse(parser, *arguments, **named)  # type: ignore[call-overload]
        raise _Parsed

    said = io.StringIO()
    with (
        mock.patch.object(argparse.ArgumentParser, "parse_args", parse_and_stop),
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(said),
    ):
        try:
            status = main(options)
        except _Parsed:
            return
        except SystemExit as refused:
            status = refused.code
    if status:
        raise BadExample(said.getvalue().strip())


# ---- running ----


class Shell:
    """Runs scripts one after another, as in one terminal, and processes that serve, as in terminals of their own.

    Args:
        folder: the working folder at first.
        bin_folder: where to put a `tandemfeed` command that runs the code under test, and a `pkill`.
    """

    def __init__(self, folder: Path, bin_folder: Path) -> None:
        self.folder = folder
        self._serving: list[subprocess.Popen[str]] = []
        self._logs = bin_folder
        bin_folder.mkdir(parents=True, exist_ok=True)
        python = shlex.quote(sys.executable)
        for name, text in (
            ("tandemfeed", f'#!/bin/sh\nexec {python} -m tandemfeed.deploy.command "$@"\n'),
            ("pkill", PKILL.format(python=sys.executable, parent=os.getpid())),
        ):
            (bin_folder / name).write_text(text)
            (bin_folder / name).chmod(0o755)
        path = f"{bin_folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "TANDEMFEED_LEASH": "1"}

    def run(self, script: str) -> str:
        """Run a script, and return what it printed.

        Raises:
            BadExample: its exit status is not 0.
        """
        done = self._run(script)
        if done.returncode:
            raise BadExample(f"exit status {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def run_and_compare(self, script: str, expected: str) -> None:
        """Run a script, whatever its exit status, and compare what it prints with what the page shows: standard output,
        or both outputs, because progress on standard error disappears from a terminal, and a report does not.

        Raises:
            BadExample: they differ.
        """
        done = self._run(script)
        both = done.stdout + done.stderr
        if not (is_as_expected(expected, done.stdout) or is_as_expected(expected, both)):
            raise BadExample(f"printed\n{both}\nbut the page shows\n{expected}")

    def _run(self, script: str) -> subprocess.CompletedProcess[str]:
        where = self._logs / "working-folder"
        whole = f"set -e\ntrap 'pwd >{shlex.quote(str(where))}' EXIT\n{script}"
        file = self._logs / "script"  # so that `pkill -f` finds its words in no command line of a shell
        file.write_text(whole)
        process = subprocess.Popen(
            ["bash", file],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=RUN_S)
        except subprocess.TimeoutExpired:
            raise BadExample(f"still runs after {RUN_S} s; mark it `parse only`, or `serves`") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.folder = Path(where.read_text().strip())
        return subprocess.CompletedProcess(whole, process.returncode, output, errors)

    def serve(self, command: str) -> None:
        """Start a command that runs until `close`, and wait for its ready line."""
        log = self._logs / f"served-{len(self._serving)}.log"
        with log.open("w") as errors:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command.strip()}"],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._serving.append(process)
        assert process.stdout is not None
        if not any('"ready"' in line for line in process.stdout):
            raise BadExample(f"the process ended before it was ready: {log.read_text()}")

    def close(self) -> None:
        """End every process that serves, the newest first."""
        for process in reversed(self._serving):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()


def is_as_expected(expected: str, printed: str) -> bool:
    """True if a command printed what a page shows. White space does not count, because pages wrap long lines; `…` is
    any text."""
    pattern = ".*".join(re.escape("".join(part.split())) for part in expected.split("…"))
    return re.fullmatch(pattern, "".join(printed.split()), re.DOTALL) is not None
