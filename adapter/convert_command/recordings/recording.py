"""The conversion of one recording: its inputs in order, through one converter, to files of its own."""

from __future__ import annotations

import argparse
import datetime
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.formats.chunks import FrameChunk
from tandemfeed.adapter.conversion.formats.files.tick_table import TableOptions
from tandemfeed.adapter.convert_command.converting import REFUSED_SHOWN, Result, convert_all
from tandemfeed.adapter.convert_command.documents import Documents
from tandemfeed.adapter.convert_command.input.inputs import Findings, Input
from tandemfeed.adapter.convert_command.input.packet_values import reads_packet
from tandemfeed.adapter.convert_command.output.outputs import open_output
from tandemfeed.adapter.convert_command.output.partitions import Partitioning


@dataclass(slots=True)
class Outcome:
    """What became of a recording, or of several.

    Attributes:
        counts: messages that were not converted correctly, by reason.
        failures: of users' functions, the last of each.
    """

    result: Result = field(default_factory=Result)
    counts: Counter[str] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)

    @classmethod
    def of_all(cls, outcomes: Sequence[Outcome]) -> Outcome:
        """The outcome of several recordings, as if they had been converted one after another."""
        whole = cls()
        for each in outcomes:
            whole.result.read += each.result.read
            whole.result.written += each.result.written
            whole.result.refused = (whole.result.refused + each.result.refused)[:REFUSED_SHOWN]
            whole.counts.update(each.counts)
            whole.failures.update(each.failures)
            whole.findings.add(each.findings)
        return whole


def input_of(documents: Documents, arguments: argparse.Namespace, paths: Sequence[Path]) -> Input:
    """What `convert file` reads, from its arguments; `paths` may be a part of them."""
    return Input(
        tuple(paths),
        documents.source_format,
        TableOptions(arguments.symbol, arguments.time_unit),
        tuple(arguments.lines),
        keeps_times=reads_packet(documents.table, "sent_at_ns"),
        keeps_streams=reads_packet(documents.table, "source_stream_id"),
    )


def convert_recording(
    documents: Documents,
    converter: CompiledConverter,
    given: Input,
    reader: str,
    session: int,
    arguments: argparse.Namespace,
    folder: Path,
    advance: Callable[[int, int], None],
) -> Outcome:
    """Convert a recording.

    Args:
        session: trading day, YYYYMMDD; 0: not known.
        arguments: of `convert file`.
        advance: called with the bytes of each chunk of messages, and their number.

    Raises:
        FormatError, OSError: an input cannot be read at all, or the output cannot be written.
    """
    findings = Findings()

    def on_chunk(chunk: FrameChunk, _: Result) -> None:
        advance(len(chunk.frames), chunk.message_count)

    output = open_output(folder, documents.model, arguments.kind, _partitioning(arguments.buckets, session))
    result = convert_all(
        converter, given, reader, output, findings,
        session=session, is_strict=arguments.strict, on_chunk=on_chunk,
    )  # fmt: skip
    findings.origin, findings.numbers = str, None  # they are of the newest chunk only
    return Outcome(result, Counter(converter.counts()), converter.function_failures(), findings)


def _partitioning(buckets: int, session: int) -> Partitioning | None:
    if not buckets:
        return None
    day = datetime.datetime.strptime(str(session), "%Y%m%d").date() if session else None
    return Partitioning(buckets, day=day)
