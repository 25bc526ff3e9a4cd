"""`verify`: checks a journal's files, its sources' sequence numbers, and its records against another journal's."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemfeed.journal.commands.options import add_subcommand, read_key, require_journal, sequence_rule
from tandemfeed.journal.commands.presentation import counted, to_json
from tandemfeed.journal.commands.streams import Interruption, Streams, meter
from tandemfeed.journal.completeness import Digests, compare, digest
from tandemfeed.journal.findings import Finding
from tandemfeed.journal.journal_files import JournalFiles
from tandemfeed.journal.roll_cycle import format_index
from tandemfeed.journal.tailer import Tailer
from tandemfeed.journal.verification import Verification

EXAMPLES = [
    "verify DIR",
    "verify DIR --sequence 8:u64                 (the number is a little-endian u64 at offset 8)",
    "verify DIR --sequence 8:u64@2:u16           (… per stream; the stream's id is a u16 at offset 2)",
    r"verify DIR --sequence 'stream=(?P<stream>\w+) seq=(?P<seq>\d+)'",
    "verify DIR --against COPY                   (every record of COPY is in DIR, in the same order)",
]
READ_AT_ONCE = 4_096
INDICES = frozenset({"index", "due_index", "here_index"})
EXIT_FOUND = 1
EXIT_INTERRUPTED = 130


def add_to(subcommands: Any) -> None:
    """Add the sub-command and its options."""
    parser = add_subcommand(
        subcommands,
        "verify",
        "check every segment, link, index and sequence",
        "Check a journal: CRCs, sequences and times of all segments, end marks and links, sparse index, checkpoints, "
        "tails. Changes nothing, and can run while appenders do. Exit status: 0 no findings, 1 findings (one line "
        "each, with file, offset and index), 2 the check failed, 130 interrupted.",
        EXAMPLES,
        run,
    )
    parser.add_argument(
        "--sequence",
        type=sequence_rule,
        metavar="RULE",
        help="where records have their source's sequence number, which must increase by one: "
        "OFFSET:TYPE[@STREAM_OFFSET:TYPE] (u8 to u64, i8 to i64, little-endian; with the suffix be, big-endian), or a "
        "regular expression with the group seq and, for several streams, the group stream. Records that do not match "
        "are ignored. Offsets count from the end of a record's history, if it has one",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="DIR",
        help="another journal; all its records must be in this one, in the same order",
    )
    parser.add_argument(
        "--against-key-file", type=Path, metavar="FILE", help="the other journal's key file, if its key differs"
    )
    parser.add_argument("--json", action="store_true", help="show findings as JSON, one per line, then the totals")


def run(arguments: argparse.Namespace, streams: Streams) -> int:
    """Exit status 0 without findings, 1 with findings, 130 if interrupted."""
    require_journal(arguments.folder)
    key = read_key(arguments.key_file)
    if arguments.against is not None:
        require_journal(arguments.against)
    with Interruption() as interruption, JournalFiles(arguments.folder) as files:
        verification = Verification(files, key=key, rule=arguments.sequence)
        if files.settings.key_check and key is None:
            streams.note(f"{arguments.folder} is encrypted; without --key-file its records are not decrypted")
        found_count = 0
        for finding in _findings(verification, streams, interruption):
            found_count += 1
            streams.say(_shown(finding, arguments))
        missing_count = 0
        if arguments.against is not None:
            for missing in _compared(arguments, key, streams, interruption):
                missing_count += 1
                streams.say(_shown(missing, arguments))
        if interruption.is_requested:
            streams.note("interrupted: not everything was checked")
            return EXIT_INTERRUPTED
        streams.say(_sums(verification, arguments, found_count, missing_count))
    return EXIT_FOUND if found_count or missing_count else 0


def _findings(verification: Verification, streams: Streams, interruption: Interruption) -> Iterator[Finding]:
    progress = meter(streams, "files checked", len(verification.names), interval_s=0)
    try:
        for name in verification.names:
            for finding in verification.check_file(name):
                progress.hide()
                yield finding
                if interruption.is_requested:
                    return
            progress.advance(1, name.path.name)
            if interruption.is_requested:
                return
        yield from verification.check_end()
    finally:
        progress.finish()


def _shown(finding: Any, arguments: argparse.Namespace) -> str:
    if not arguments.json:
        return str(finding)
    fields = {each.name: getattr(finding, each.name) for each in dataclasses.fields(finding)}
    for name in fields.keys() & INDICES:
        fields[name] = None if fields[name] is None else format_index(fields[name])
    return to_json({"finding": type(finding).__name__} | fields | {"text": str(finding)})


def _sums(verification: Verification, arguments: argparse.Namespace, found_count: int, missing_count: int) -> str:
    continuity = verification.continuity
    if arguments.json:
        return to_json(
            {
                "files": len(verification.names),
                "segments": verification.segment_count,
                "records": verification.record_count,
                "records_with_a_sequence": continuity.counted,
                "source_streams": continuity.stream_count,
                "findings": found_count,
                "missing": missing_count,
            }
        )
    parts = [
        f"{counted(len(verification.names), 'file')}, {counted(verification.segment_count, 'segment')}, "
        f"{counted(verification.record_count, 'record')}"
    ]
    if arguments.sequence is not None:
        parts.append(
            f"{continuity.counted:,} with a sequence number, of {counted(continuity.stream_count, 'source stream')}"
        )
    parts.append("no findings" if not found_count else counted(found_count, "finding"))
    if arguments.against is not None:
        other = arguments.against
        parts.append(
            f"{counted(missing_count, 'record')} of {other} missing" if missing_count else f"all of {other} found"
        )
    return "; ".join(parts)


def _compared(
    arguments: argparse.Namespace, key: bytes | None, streams: Streams, interruption: Interruption
) -> Iterator[Any]:
    other_key = read_key(arguments.against_key_file)
    with JournalFiles(arguments.against) as other:
        if other.settings.key_check and other_key is None:
            other_key = key
    # The other journal first: a record appended to both meanwhile must not count as missing from this one.
    theirs = _digests(arguments.against, other_key, streams, interruption)
    ours = _digests(arguments.folder, key, streams, interruption)
    if not interruption.is_requested:
        yield from compare(*ours, *theirs)


def _digests(
    folder: Path, key: bytes | None, streams: Streams, interruption: Interruption
) -> tuple[Digests, NDArray[np.int64]]:
    """The digests of all records, and their indices."""
    digests, indices = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    progress = meter(streams, f"records of {folder} read", None)
    with Tailer(folder, key=key) as tailer:
        while not interruption.is_requested and (batch := tailer.read_batch(READ_AT_ONCE)) is not None:
            found = [digest(record) for record in batch.records()]
            digests.append(np.array(found, np.uint64))
            indices.append(np.arange(batch.first_index, batch.next_index, dtype=np.int64))
            progress.advance(len(found), "")
    progress.finish()
    return np.concatenate(digests), np.concatenate(indices)
