"""The question before a command that hurts. A script has to say `--yes`, because no person could answer."""

from __future__ import annotations

import argparse
import sys


class NotConfirmed(Exception):
    """The command was not confirmed; the text says how to."""


def add_confirmation(command: argparse.ArgumentParser) -> None:
    """Add `--yes` to a command that hurts."""
    command.add_argument("--yes", action="store_true", help="do not ask; required where no terminal can be asked")


def confirm(arguments: argparse.Namespace, what: str) -> None:
    """Return if a person or `--yes` confirms. Args: what: what the command is about to do.

    Raises:
        NotConfirmed.
    """
    if arguments.yes:
        return
    if not sys.stdin.isatty():
        raise NotConfirmed(f"this would {what}; standard input is not a terminal, so confirm with --yes")
    print(f"This will {what}. Continue? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise NotConfirmed("nothing was done")
