"""`tail`: shows records, selected and formatted by its options."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from typing import Any

from tandemfeed.journal.commands.options import (
    CommandError,
    add_range,
    add_subcommand,
    count,
    pattern,
    read_key,
    require_journal,
    sequence_rule,
)
from tandemfeed.journal.commands.presentation import RecordView, time_text, to_json
from tandemfeed.journal.commands.reading import Entry, Range, backward, forward, lost_status, to_begin
from tandemfeed.journal.commands.streams import Interruption, Streams
from tandemfeed.journal.format.layout import CONTROL_NAME
from tandemfeed.journal.format.named_position import NAME
from tandemfeed.journal.format.roll_cycle import format_index
from tandemfeed.journal.tailer import Tailer

EXAMPLES = [
    "tail DIR --follow --show-index",
    "tail DIR --last 20 --include 'symbol=.ABC' --exclude cancel",
    "tail DIR --from-time 2026-11-21T08:30:00Z --until-time 2026-11-21T09:00:00Z --json",
    "tail DIR --name audit --follow       (continues where the last run stopped)",
]


def add_to(subcommands: Any) -> None:
    """Add the sub-command and its options."""
    parser = add_subcommand(
        subcommands,
        "tail",
        "show records, and new ones as they are appended",
        "Show a journal's records. Regular expressions search a record's text: method(argument=value) for a "
        "typed record, otherwise its bytes as UTF-8. Exit status 1: records are damaged or missing.",
        EXAMPLES,
        run,
    )
    chosen = parser.add_argument_group("which records")
    chosen.add_argument("--include", type=pattern, action="append", default=[], metavar="REGEX",
                        help="only records that match; if repeated, records that match all")  # fmt: skip
    chosen.add_argument("--exclude", type=pattern, action="append", default=[], metavar="REGEX",
                        help="leave out records that match; if repeated, records that match any")  # fmt: skip
    add_range(parser)
    chosen.add_argument("--last", type=count, metavar="N", help="begin N records before the end")
    chosen.add_argument("--max", type=count, metavar="N", help="stop after showing N records")
    chosen.add_argument(
        "--follow", "-f", action="store_true", help="also show records as they are appended, until interrupted"
    )
    chosen.add_argument("--reverse", action="store_true", help="show the newest record first")
    chosen.add_argument(
        "--name", metavar="NAME", help="continue where the tailer of this name stopped, and store the position"
    )
    shown = parser.add_argument_group("format")
    shown.add_argument("--one-line", action="store_true", help="show each record on one line, with line breaks escaped")
    shown.add_argument("--show-index", "-i", action="store_true", help="show the index and the time before each record")
    shown.add_argument("--json", action="store_true", help="show each record as a JSON object on one line")
    shown.add_argument("--sequence", type=sequence_rule, metavar="RULE",
                       help="with --json: add source_stream and source_seq (see verify --help)")  # fmt: skip


def run(arguments: argparse.Namespace, streams: Streams) -> int:
    """Exit status 0, also when interrupted or when the reader closes the output; 1 if records were missing."""
    _check(arguments)
    key, show = read_key(arguments.key_file), _shower(arguments, streams)
    if arguments.follow and not (arguments.folder / CONTROL_NAME).exists():
        streams.note(f"{arguments.folder} is not a journal yet; waiting for it to be created")
    else:
        require_journal(arguments.folder)
    wanted = Range.of(arguments)
    with Interruption() as interruption, Tailer(arguments.folder, name=arguments.name, key=key) as tailer:
        if arguments.reverse:
            _show_back(arguments, backward(tailer, key, wanted), show, interruption)
        else:
            _show_forward(arguments, streams, tailer, show, interruption)
        streams.out.flush()
        return lost_status(tailer.lost_count, arguments.folder, streams)


def _check(arguments: argparse.Namespace) -> None:
    if arguments.reverse and (arguments.follow or arguments.name):
        raise CommandError("--reverse cannot be combined with --follow or --name; leave one out")
    if arguments.last and Range.of(arguments).has_begin:
        raise CommandError("--last cannot be combined with --from-index or --from-time; give only one of them")
    if arguments.name and not NAME.fullmatch(arguments.name):
        raise CommandError(
            f"--name {arguments.name!r}: use 1 to 100 letters, digits, dots, hyphens or underscores, no dot first"
        )
    if arguments.name and not os.access(arguments.folder, os.W_OK):
        raise CommandError(f"{arguments.folder}: not writable, so --name cannot store a position; leave --name out")


def _show_forward(
    arguments: argparse.Namespace,
    streams: Streams,
    tailer: Tailer,
    show: Callable[[Entry], bool],
    interruption: Interruption,
) -> None:
    wanted, shown_count = Range.of(arguments), 0
    if arguments.last:
        tailer.to_end()
        for _ in range(arguments.last):
            if tailer.read_back() is None:
                break
    else:
        to_begin(tailer, wanted, arguments.folder)

    def is_over() -> bool:
        return interruption.is_requested or streams.is_out_closed()

    for entries in forward(tailer, wanted, follow=arguments.follow, is_over=is_over):
        for entry in entries:
            shown_count += show(entry)
            if shown_count == arguments.max:
                break
        streams.out.flush()
        if arguments.name:  # stored only after the records are written out, so that none is lost
            if tailer.position != entry.index + 1:
                tailer.to_index(entry.index + 1)
            tailer.commit()
        if shown_count == arguments.max:
            break


def _show_back(
    arguments: argparse.Namespace, entries: Iterator[Entry], show: Callable[[Entry], bool], interruption: Interruption
) -> None:
    shown_count = 0
    for place, entry in enumerate(entries):
        if interruption.is_requested or place == arguments.last:
            break
        shown_count += show(entry)
        if shown_count == arguments.max:
            break


def _shower(arguments: argparse.Namespace, streams: Streams) -> Callable[[Entry], bool]:
    """A function that shows a record if the filters select it, and returns whether they did."""

    def show(entry: Entry) -> bool:
        view = RecordView(*entry)
        if not all(each.search(view.text) for each in arguments.include):
            return False
        if any(each.search(view.text) for each in arguments.exclude):
            return False
        if arguments.json:
            streams.say(to_json(view.as_json(arguments.sequence)))
            return True
        head = f"{format_index(entry.index)} {time_text(entry.appended_at_ns)} " if arguments.show_index else ""
        streams.say(head + (view.line() if arguments.one_line else view.block()))
        return True

    return show
