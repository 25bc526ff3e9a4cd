"""`dump`: shows everything in a journal's files as text."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tandemfeed.journal.check.inspection import DamagedStretch, EndMark, OpenEnd, SegmentView, records_of, segments
from tandemfeed.journal.check.journal_files import JournalFiles
from tandemfeed.journal.commands.options import add_subcommand, read_key, require_journal, size
from tandemfeed.journal.commands.presentation import RecordView, counted, hex_lines, time_text
from tandemfeed.journal.commands.streams import Interruption, Streams
from tandemfeed.journal.errors import JournalError
from tandemfeed.journal.format.block import Block
from tandemfeed.journal.format.roll_cycle import format_index
from tandemfeed.journal.format.sealing import require_key
from tandemfeed.journal.read.continuity import link_of, name_of

HEX_BYTES_DEFAULT = 4_096


def add_to(subcommands: Any) -> None:
    """Add the sub-command and its options."""
    dump = add_subcommand(
        subcommands,
        "dump",
        "show everything in the files as text",
        "Show files, headers, checkpoints, segments, and each record as text, as a method call or in hexadecimal. "
        "Damaged bytes are reported and skipped.",
        ["dump DIR | less", "dump DIR --file 000000508-000000.tfj --hex-bytes 64"],
        run,
    )
    dump.add_argument("--file", action="append", metavar="NAME", help="show only this file (repeatable)")
    dump.add_argument("--hex-bytes", type=size, default=HEX_BYTES_DEFAULT, metavar="N",
                      help="bytes of each record to show in hexadecimal (default %(default)s; 0: none)")  # fmt: skip


def run(arguments: argparse.Namespace, streams: Streams) -> int:
    """Exit status 0; 1 if there is damage or a file is missing."""
    require_journal(arguments.folder)
    key, is_whole = read_key(arguments.key_file), True
    with Interruption() as interruption, JournalFiles(arguments.folder) as files:
        if key is not None:
            require_key(key, files.settings.key_check, arguments.folder)
        streams.say(f"{files.control.path}: journal {files.control.journal_id}")
        for name, value in (asdict(files.settings) | asdict(files.words())).items():
            streams.say(f"  {name} {value}".rstrip())
        following: int | None = None
        for each in files.names():
            if following is not None and following < each.ordinal and files.settings.face != "queue":
                streams.say(f"DAMAGED: {name_of(following)} is missing; the file before it continues there")
                is_whole = False
            following = None
            if arguments.file and each.path.name not in arguments.file:
                continue
            try:
                block = files.open(each)
            except JournalError as reason:
                streams.say(f"{each.path.name}: cannot be read: {reason}")
                is_whole = False
                continue
            for line, is_damage in _dump_lines(files, block, key, arguments.hex_bytes) if block is not None else ():
                if interruption.is_requested:
                    return 0
                streams.say(line)
                is_whole = is_whole and not is_damage
            following = link_of(block) if block is not None else None
    return 0 if is_whole else 1


def _dump_lines(files: JournalFiles, block: Block, key: bytes | None, hex_bytes: int) -> Iterator[tuple[str, bool]]:
    """Lines, and whether each reports damage."""
    yield f"{block.path.name}: cycle {files.schedule.label(block.header.cycle)}", False
    for name, value in block.header._asdict().items():
        yield f"  {name} {_header_text(name, value)}", False
    yield f"  checkpoint {block.checkpoint()._asdict()}", False
    for each in segments(block, files.written_end(block, files.words())):
        match each:
            case SegmentView():
                for line in _segment_lines(files, block, each, key, hex_bytes):
                    yield line, False
            case DamagedStretch(offset, end, due, _):
                to = "the end of the file" if end is None else f"offset {end}"
                index = format_index(files.index_of(block, due))
                yield f"  DAMAGED from offset {offset} to {to}; expected index {index}", True
            case EndMark(offset, _, link):
                yield f"  end mark at offset {offset}: continues in block {link:#x}", False
            case OpenEnd(offset, sequence):
                yield f"  end at offset {offset}; next is {format_index(files.index_of(block, sequence))}", False
    yield f"  tail {block.tail()}", False


def _header_text(name: str, value: Any) -> str:
    if name == "created_at_ns":
        return f"{value} ({time_text(value)})"
    return str(value.hex() if isinstance(value, bytes) else value)


def _segment_lines(
    files: JournalFiles, block: Block, segment: SegmentView, key: bytes | None, hex_bytes: int
) -> Iterator[str]:
    first = files.index_of(block, segment.first_sequence)
    sealed = ", encrypted" if segment.is_sealed else ""
    yield (
        f"  segment at offset {segment.offset}: {segment.length} bytes, "
        f"{counted(segment.record_count, 'record')}{sealed}, appended {time_text(segment.appended_at_ns)}"
    )
    records = records_of(block, segment, key)
    if records is None:
        why = (
            "not decrypted: give --key-file; with the key given, the segment was altered"
            if segment.is_sealed
            else "their lengths do not add up"
        )
        yield f"    {format_index(first)} … {why}"
        return
    for place, record in enumerate(records):
        view = RecordView(first + place, segment.appended_at_ns, bytes(record))
        yield f"    {format_index(view.index)} {len(record)} bytes: {view.line()}"
        for hop in view.history.hops if view.history is not None else ():
            times = f"received {time_text(hop.received_at_ns)}, sent {time_text(hop.sent_at_ns)}"
            yield f"      hop {hop.source_id}: answers {hop.source_index:#018x}, {times}"
        for line in hex_lines(record, hex_bytes) if hex_bytes else ():
            yield f"      {line}"
