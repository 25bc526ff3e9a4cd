"""`tandemfeed journal SUBCOMMAND DIR`: runs a sub-command, and reports in one line why it failed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tandemfeed.journal.commands import dump, info, replay, replicate, tail, upkeep, verify
from tandemfeed.journal.commands.options import REFUSALS, Parser
from tandemfeed.journal.commands.streams import Streams
from tandemfeed.journal.compiled.compile_report import journal_compilation_reported

EXIT_REFUSED = 2
GROUPS = (dump, tail, info, verify, replay, upkeep, replicate)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Exit status: 0 success, 1 something was found or not delivered, 2 the command failed."""
    arguments = parser().parse_args(argv)
    try:
        streams = Streams.of_process()
        with journal_compilation_reported(streams.note):
            status: int = arguments.run(arguments, streams)
    except BrokenPipeError:  # the reader of the output has closed it
        raise
    except REFUSALS as refused:
        print(f"tandemfeed journal {arguments.subcommand}: {' '.join(str(refused).split())}", file=sys.stderr)
        return EXIT_REFUSED
    except OSError as refused:
        where = f"{refused.filename}: " if refused.filename else ""
        print(f"tandemfeed journal {arguments.subcommand}: {where}{refused.strerror or refused}", file=sys.stderr)
        return EXIT_REFUSED
    return status


def parser() -> argparse.ArgumentParser:
    """The parser of all sub-commands."""
    whole = Parser(
        allow_abbrev=False,
        prog="tandemfeed journal",
        description="Read, check and maintain a journal. All sub-commands except unlock, prune and follow only read. "
        "They can run while appenders do.",
        epilog="run tandemfeed journal SUBCOMMAND --help for options and examples",
    )
    subcommands = whole.add_subparsers(
        dest="subcommand", required=True, metavar="SUBCOMMAND", parser_class=Parser, title="sub-commands"
    )
    for group in GROUPS:
        group.add_to(subcommands)
    return whole


if __name__ == "__main__":
    raise SystemExit(main())
