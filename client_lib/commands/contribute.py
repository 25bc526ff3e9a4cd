"""Contribute messages to a feed: one JSON object per line of standard input, such as
{"message": "Trade", "symbol": "ACME", "price": 38.49}. Prints the id of each message once it is durable."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any

from tandemfeed.client_lib.commands.running import client_of, run_command
from tandemfeed.client_lib.contribution.contribution import Contribution, ContributionId
from tandemfeed.client_lib.messages.message import MessageClasses
from tandemfeed.client_lib.messages.sbe_writing import SbeWriteError
from tandemfeed.transport.process_shell import add_connection_arguments, configure_logging, connection_from


class BadLine(ValueError):
    """A line of the input cannot be contributed; the text says which, and why."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns 2 if the cluster refuses or does not answer, or a line is invalid."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    connection = connection_from(parser, arguments)
    configure_logging("contribute", arguments.log_level)

    def work() -> int:
        with client_of(connection) as client:
            contribution = client.contribute(arguments.topic, producer=arguments.producer, timeout_s=arguments.timeout)
            if arguments.cancel is not None:
                _cancel(contribution, arguments.cancel)
            else:
                _send(contribution, sys.stdin, hold_s=arguments.hold, is_resumed=arguments.resume)
        return 0

    return run_command("contribute", work)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tandemfeed contribute", description=__doc__)
    parser.add_argument("topic", metavar="TOPIC", help="topic of a channel that takes contributions")
    parser.add_argument(
        "--producer",
        default="default",
        metavar="NAME",
        help="under which name messages are numbered; each process needs its own (default %(default)s)",
    )
    parser.add_argument(
        "--hold", type=float, default=0.0, metavar="S", help="keep messages pending for so many seconds at least"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="the input is that of earlier runs of this producer, from its first line: skip what was accepted",
    )
    parser.add_argument(
        "--cancel",
        type=_numbers,
        metavar="N,N,…|all",
        help="read nothing; cancel these numbers of the producer, or all that is pending",
    )
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="S", help="for how long to try again (default %(default)g)"
    )
    add_connection_arguments(parser)
    return parser


def _numbers(text: str) -> list[int]:
    if text == "all":
        return []
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not valid; use numbers with ',' between them, or all") from None


def _send(contribution: Contribution, lines: Iterable[str], *, hold_s: float, is_resumed: bool) -> None:
    """Send line by line: the sender of a pipe wants to know of each message when it is durable."""
    numbered = enumerate(lines, 1)
    accepted_count = contribution.next_number - 1 if is_resumed else 0
    for _ in islice(numbered, accepted_count):
        pass
    for number, line in numbered:
        if line.strip():
            message = _message(contribution.messages, line, number)
            print(json.dumps({"line": number, "id": str(contribution.send(message, hold_s=hold_s))}), flush=True)


def _message(classes: MessageClasses, line: str, number: int) -> Any:
    try:
        values = json.loads(line, parse_float=Decimal)
        name = values.pop("message")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise BadLine(f'line {number} is not a JSON object with the key "message": {line.strip()[:100]!r}') from None
    if name not in classes:
        raise BadLine(f"line {number}: the feed takes no {name!r}; it takes {', '.join(classes)}")
    try:
        return classes[name](**values)
    except (SbeWriteError, TypeError) as wrong:
        raise BadLine(f"line {number}: {wrong}") from None


def _cancel(contribution: Contribution, numbers: Sequence[int]) -> None:
    if not numbers:
        print(json.dumps({"cancelled": contribution.cancel_all()}))
        return
    cancelled = contribution.cancel(_ids(contribution, numbers))
    print(json.dumps({"cancelled": len(cancelled), "ids": [str(each) for each in cancelled]}))


def _ids(contribution: Contribution, numbers: Iterable[int]) -> Iterator[ContributionId]:
    return (ContributionId(contribution.producer, number) for number in numbers)
