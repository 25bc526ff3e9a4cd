"""`replay`: sends records to a socket or a file, with the pauses between them that they were appended with."""

from __future__ import annotations

import argparse
import time
from fractions import Fraction
from typing import Any

from tandemfeed.journal.commands.destinations import Destination, Interrupted, ReceiverGone, opened
from tandemfeed.journal.commands.options import add_range, add_subcommand, count, read_key, require_journal
from tandemfeed.journal.commands.pacing import Pacer, parse_speed
from tandemfeed.journal.commands.presentation import RecordView, counted, time_text
from tandemfeed.journal.commands.reading import Entry, Range, forward, lost_status, to_begin
from tandemfeed.journal.commands.streams import Interruption, Meter, Streams, meter
from tandemfeed.journal.format.roll_cycle import NS_PER_S, format_index
from tandemfeed.journal.tailer import Tailer

EXAMPLES = [
    "replay DIR --to tcp://127.0.0.1:9000",
    "replay DIR --to udp://239.1.1.1:7000 --speed 10 --from-time 2026-11-21T08:00:00Z",
    "replay DIR --to - --lines --speed max | grep symbol",
]
EXIT_GONE = 1


def add_to(subcommands: Any) -> None:
    """Add the sub-command and its options."""
    parser = add_subcommand(
        subcommands,
        "replay",
        "send records to a socket or a file, at their original pace",
        "Send records to a socket or a file, with the pauses between them that they were appended with. On streams and "
        "in files each record follows its length (u32, little-endian); a UDP datagram is one record. Ends after the "
        "newest record. Exit status 1: the receiver closed the connection before the end, or records "
        "are damaged or missing.",
        EXAMPLES,
        run,
    )
    parser.add_argument("--to", required=True, metavar="WHERE",
                        help="tcp://HOST:PORT, udp://HOST:PORT, unix:PATH, FILE, or - for stdout")  # fmt: skip
    parser.add_argument("--speed", type=_speed, default=Fraction(1), metavar="FACTOR",
                        help="1 as recorded (default), 10 ten times as fast, max without waiting")  # fmt: skip
    parser.add_argument(
        "--lines", action="store_true", help="send each record as a line of text, with line breaks escaped"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    parser.add_argument("--max", type=count, metavar="N", help="stop after N records")
    add_range(parser)


def _speed(text: str) -> Fraction | None:
    try:
        return parse_speed(text)
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from None


def run(arguments: argparse.Namespace, streams: Streams) -> int:
    """Exit status 0, also when interrupted; 1 if the receiver closed the connection or records were missing."""
    require_journal(arguments.folder)
    wanted = Range.of(arguments)
    with Interruption() as interruption, Tailer(arguments.folder, key=read_key(arguments.key_file)) as tailer:
        to_begin(tailer, wanted, arguments.folder)
        destination = opened(
            arguments.to, as_lines=arguments.lines, overwrite=arguments.overwrite, interruption=interruption
        )
        has_bar = not (arguments.to == "-" and streams.out.isatty())
        progress = meter(streams, "records sent", None, has_bar=has_bar)
        replay = _Replay(destination, Pacer(arguments.speed), interruption, progress)
        try:
            replay.send_all(tailer, wanted, arguments.max)
        finally:
            replay.end()
    streams.note(replay.summary(arguments.to))
    lost = lost_status(tailer.lost_count, arguments.folder, streams)
    return EXIT_GONE if replay.why.startswith("the receiver") else lost


class _Replay:
    """One replay and its progress."""

    def __init__(self, destination: Destination, pacer: Pacer, interruption: Interruption, progress: Meter) -> None:
        self._destination, self._pacer = destination, pacer
        self._interruption, self._progress = interruption, progress
        self.why = "reached the end"

    def send_all(self, tailer: Tailer, wanted: Range, count_max: int | None) -> None:
        """Send until the range ends, the receiver is gone, or the user interrupts."""
        left = count_max
        try:
            for entries in forward(tailer, wanted, is_over=lambda: self._interruption.is_requested):
                for entry in entries[:left]:
                    self._await(entry)
                    self._destination.send(RecordView(*entry))
                self._progress.advance(len(entries[:left]), format_index(entries[0].index))
                if left is not None and (left := left - len(entries)) <= 0:
                    break
            self._destination.flush()
        except Interrupted:
            self.why = "interrupted"
        except ReceiverGone as gone:
            self.why = f"the receiver is gone ({gone})"
        if self._interruption.is_requested:
            self.why = "interrupted"

    def _await(self, entry: Entry) -> None:
        """Wait until the record is due."""
        now_ns = time.monotonic_ns()
        due_ns = self._pacer.due_ns(entry.appended_at_ns, now_ns)
        if due_ns > now_ns:
            self._destination.flush()  # records that are due do not wait for the next one
        while (left_ns := due_ns - time.monotonic_ns()) > 0:
            if self._interruption.wait(left_ns / NS_PER_S):
                break
        if self._interruption.is_requested:
            raise Interrupted

    def end(self) -> None:
        """Close the destination and the progress meter."""
        self._destination.close()
        self._progress.finish()

    def summary(self, receiver: str) -> str:
        """Why the replay ended, and what it sent."""
        last = self._destination.last
        if last is None:
            return f"{self.why}: no record sent to {receiver}"
        return (
            f"{self.why}: {counted(self._destination.sent_count, 'record')} sent to {receiver}; "
            f"the last is {format_index(last.index)} of {time_text(last.appended_at_ns)}"
        )
