"""Rows of the messages that a converter table makes: the columns are those of the message model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tandemfeed.adapter.conversion import CompiledConverter, ConverterTable
from tandemfeed.adapter.conversion.formats.chunks import FrameChunk
from tandemfeed.adapter.conversion.table.reasons import REFUSALS
from tandemfeed.adapter.convert_command.output.row_groups import FixedRows, FrameIndex, VariableRows
from tandemfeed.feedcore.documents.message_model import frame_size
from tandemfeed.feedcore.sbe.messages import MessageType
from tandemfeed.feedcore.wire.output_packet import FRAME_LAYOUT
from tandemfeed.offline.ticks.rows import OnRows, RecordBatch, RefusedMessage

OUT_SIZE = 4 << 20  # output space, in bytes


class ModelRows:
    """Converts a recording, and collects the output messages of one type.

    Args:
        session: trading day, YYYYMMDD; 0: not known.
    """

    def __init__(self, table: ConverterTable, message: MessageType, schema_id: int, session: int) -> None:
        self._converter, self._session = CompiledConverter(table), session
        self._template, self._schema_id = message.template_id, schema_id
        self._rows = rows_of(message)
        self._out: NDArray[np.uint8] = np.zeros(OUT_SIZE, np.uint8)
        self._streams: dict[bytes, int] = {}

    def take(self, chunk: FrameChunk, on_rows: OnRows | None) -> Iterator[RecordBatch]:
        """Convert a chunk; yields each batch that is complete."""
        stream = self._streams.setdefault(chunk.session, len(self._streams))
        packet = chunk.source_packet(feed_id=0, source_stream_id=stream, session=self._session)
        done, count = 0, chunk.message_count
        while done < count:
            result = self._converter.convert(packet, done, count - done, self._out, 0, OUT_SIZE)
            yield from self._collect(self._out[: result.end], done, on_rows)
            done += result.source_count

    def rest(self) -> RecordBatch:
        """What is left at the end."""
        return self._rows.batch()

    def take_refused(self) -> list[RefusedMessage]:
        """Samples of the newest chunk's messages that were refused."""
        letters = self._converter.take_dead_letters()
        return [RefusedMessage(each.source_seq, each.reason.name.lower(), each.frame) for each in letters]

    def refused_counts(self) -> dict[str, int]:
        """How many messages were refused so far, by reason."""
        counts, reasons = self._converter.counts(), [each.name.lower() for each in REFUSALS]
        return {reason: counts[reason] for reason in reasons if counts[reason]}

    def _collect(self, frames: NDArray[np.uint8], first: int, on_rows: OnRows | None) -> Iterator[RecordBatch]:
        """Add the frames of messages of a chunk, of which `first` is the place of the first."""
        index = FrameIndex.of(frames, self._schema_id)
        is_wanted = index.templates == self._template
        starts, sizes = index.starts[is_wanted], index.sizes[is_wanted]
        while len(starts):
            rows = self._rows
            taken = rows.take(frames, starts) if isinstance(rows, FixedRows) else rows.take(frames, starts, sizes)
            if on_rows is not None:
                on_rows(first + _source_offsets(frames, starts[:taken]))
            starts, sizes = starts[taken:], sizes[taken:]
            if rows.is_full:
                yield rows.batch()


def _source_offsets(frames: NDArray[np.uint8], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """By output frame, the place of its source message among those that were converted together."""
    at = starts + FRAME_LAYOUT.offsets["source_offset"]
    return frames[at].astype(np.int64) | frames[at + 1].astype(np.int64) << 8


def rows_of(message: MessageType) -> FixedRows | VariableRows:
    """What collects messages of a type."""
    return FixedRows(message, frame_size(message)) if message.is_fixed else VariableRows(message)
