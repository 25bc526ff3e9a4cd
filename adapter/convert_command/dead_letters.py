"""`dead-letters`: prints a dead-letter journal, for people or, with `--json`, for programs. It changes nothing."""

from __future__ import annotations

import argparse
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tandemfeed.adapter.conversion.formats.chunks import FormatError
from tandemfeed.adapter.conversion.formats.frames.frame_reader import FrameReader
from tandemfeed.adapter.conversion.table.reasons import Reason
from tandemfeed.adapter.convert_command.documents import SHIPPED, shipped_documents
from tandemfeed.adapter.records.dead_letter_record import DeadLetterRecord, decode_dead_letter
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.journal import Tailer
from tandemfeed.journal.commands.options import require_journal
from tandemfeed.journal.commands.presentation import counted, hex_lines, one_line, time_text, to_json
from tandemfeed.journal.commands.streams import Streams
from tandemfeed.journal.format.roll_cycle import format_index

SUMMARY = "print refused source messages from an adapter's dead-letter journal"
READ_COUNT = 1_024
TEXTS = {reason.name.lower(): reason.text for reason in Reason}


class NotADeadLetter(Exception):
    """A record is not a dead letter, because the folder is a different journal."""


def add_to(tasks: Any) -> None:
    """Add the task and its options."""
    task = tasks.add_parser(
        "dead-letters", allow_abbrev=False, help=SUMMARY, description=f"{SUMMARY}; the adapter may be running"
    )
    task.add_argument("folder", type=Path, metavar="FOLDER", help="folder of the dead-letter journal")
    task.add_argument(
        "--reason", action="append", metavar="NAME", help="only this reason (repeatable), such as unknown_type"
    )
    task.add_argument("--stream", type=int, metavar="ID", help="only this source stream")
    task.add_argument("--last", type=_count, metavar="N", help="only the newest N of them")
    task.add_argument("--json", action="store_true", help="print one JSON object per line")
    known = task.add_mutually_exclusive_group()
    known.add_argument("--shipped", metavar="NAME", help=f"show fields, by a shipped format: {', '.join(SHIPPED)}")
    known.add_argument("--source-format", type=Path, metavar="FILE", help="show fields, by this source format")


def _count(text: str) -> int:
    """Parse a positive integer."""
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive integer")
    return count


def run(arguments: argparse.Namespace) -> int:
    """Print the dead letters. Exit status 0.

    Raises:
        CommandError, JournalError, NotADeadLetter: the folder is not a dead-letter journal.
        DocumentError, OSError: the source format is unusable.
    """
    require_journal(arguments.folder)
    path = arguments.source_format or (shipped_documents(arguments.shipped)[0] if arguments.shipped else None)
    reader = FrameReader(load_source_format(path)) if path is not None else None
    streams, counts = Streams.of_process(), Counter[str]()
    with Tailer(arguments.folder) as tailer:
        found = (each for each in _records(tailer) if _is_wanted(each, arguments))
        for record in found if arguments.last is None else deque(found, arguments.last):
            counts[record.reason] += 1
            if arguments.json:
                streams.say(to_json(_as_json(record, reader)))
            else:
                for line in _lines(record, reader):
                    streams.say(line)
        lost = tailer.lost_count
    streams.out.flush()
    if not arguments.json:
        streams.note(counted(counts.total(), "dead letter"))
        for reason, count in counts.most_common():
            streams.note(f"  {reason} {count:,}: {TEXTS.get(reason, 'a reason of another release')}")
    if lost:
        streams.note(f"{counted(lost, 'record')} damaged; `tandemfeed journal verify` shows where")
    return 0


def _records(tailer: Tailer) -> Iterator[DeadLetterRecord]:
    while batch := tailer.read_many(READ_COUNT):
        for index, record in batch:
            try:
                yield decode_dead_letter(record)
            except ValueError as wrong:
                raise NotADeadLetter(f"{tailer.folder}: record {format_index(index)}: {wrong}") from None


def _is_wanted(record: DeadLetterRecord, arguments: argparse.Namespace) -> bool:
    if arguments.reason and record.reason not in arguments.reason:
        return False
    return arguments.stream is None or record.source_stream_id == arguments.stream


def _lines(record: DeadLetterRecord, reader: FrameReader | None) -> Iterator[str]:
    kind = f"type {record.type_id}"
    if 32 < record.type_id < 127:  # most venues use characters as types
        kind += f" {chr(record.type_id)!r}"
    name = one_line(record.message) or "unknown message"
    yield (
        f"{time_text(record.refused_at_ns)} {one_line(record.reason)}: stream {record.source_stream_id}, "
        f"source_seq {record.source_seq}: {name} ({kind}), {counted(len(record.frame), 'byte')}"
    )
    yield (
        f"  sent {time_text(record.sent_at_ns)}; feed {record.feed_id}, channel {record.channel_id}, "
        f"session {record.session}"
    )
    if reader is not None:
        try:
            fields = _fields(reader, record.frame)
        except FormatError as wrong:
            yield f"  unreadable: {wrong}"
        else:
            yield f"  {', '.join(f'{name}={_text(value)}' for name, value in fields.items())}"
    for line in hex_lines(memoryview(record.frame)):
        yield f"  {line}"


def _as_json(record: DeadLetterRecord, reader: FrameReader | None) -> dict[str, Any]:
    shown: dict[str, Any] = {**record._asdict(), "frame": record.frame.hex()}
    if reader is not None:
        try:
            shown["fields"] = _plain(_fields(reader, record.frame))
        except FormatError as wrong:
            shown["fields"], shown["why"] = None, str(wrong)
    return shown


def _fields(reader: FrameReader, frame: bytes) -> dict[str, Any]:
    """The fields of the frame's message, even if their values are invalid."""
    for _, values in reader.read(frame):
        return values
    raise FormatError("the frame is empty")


def _plain(value: Any) -> Any:
    """The value with its texts decoded, including those in groups."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _text(value: Any) -> str:
    return one_line(str(_plain(value)))
