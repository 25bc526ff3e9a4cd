"""Converting recordings to the common tick model, and reading the output with an independent decoder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
from sbedecoder import SBESchema
from sbedecoder.message import CompositeMessageField, EnumMessageField, SBEMessage

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.chunks import FrameChunk
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.adapter.conversion.table.table import ConverterTable
from tandemfeed.feedcore.replica.output.converter import Converter
from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME
from tests.conversion.oracle.interpreted import InterpretedConverter

OUT_SIZE = 1 << 20
FRAME_SIZE = OUTPUT_FRAME.size


@cache
def shipped_table(name: str) -> ConverterTable:
    """The table from a shipped format to the tick model."""
    return load_checked_table(document(f"{name}.xml"), document(f"{name}-to-tick.xml"), document("tick.xml"))


@cache
def _schema() -> SBESchema:
    schema = SBESchema()
    schema.parse(str(document("tick.xml")))
    return schema


def converted(converter: Converter, chunks: Iterable[FrameChunk], session: int = 20191230) -> Iterator[bytes]:
    """The output of all chunks, packet by packet; checks that every source message is consumed."""
    out = np.zeros(OUT_SIZE, np.uint8)
    for chunk in chunks:
        packet = chunk.source_packet(feed_id=1, source_stream_id=1, session=session)
        assert converter.check(packet)
        done = 0
        while done < chunk.message_count:
            result = converter.convert(packet, done, chunk.message_count - done, out, 0, OUT_SIZE)
            assert result.source_count > 0
            done += result.source_count
            yield bytes(out[: result.end])


def messages(frames: bytes) -> Iterator[bytes]:
    """Each message without its frame."""
    offset = 0
    while offset < len(frames):
        size, _ = OUTPUT_FRAME.unpack_from(frames, offset)
        yield frames[offset + FRAME_SIZE : offset + size]
        offset += size


def as_another_decoder_reads(message: bytes) -> tuple[str, dict[str, Any]]:
    """(name, values that are set) of an output message, as sbedecoder reads it with our message model.

    A decimal is its mantissa, an enumeration its character; null and blank values are left out.
    """
    other = SBEMessage.parse_message(_schema(), message)
    values: dict[str, Any] = {}
    for field in other.fields:
        if field.name in ("block_length", "template_id", "schema_id", "version"):
            continue
        if isinstance(field, CompositeMessageField):
            value = field.mantissa.value
        elif isinstance(field, EnumMessageField):
            value = field.raw_value.strip("\0")
        else:
            value = field.value
        if value not in (None, ""):
            values[field.original_name] = value
    return other.name, values


def interpreted(
    table: str | ConverterTable, chunks: Iterable[FrameChunk], session: int = 20191230
) -> list[tuple[str, dict[str, Any]]]:
    """The output of a shipped table for these messages; none of them may be refused."""
    converter = InterpretedConverter(shipped_table(table) if isinstance(table, str) else table)
    found = [
        as_another_decoder_reads(each) for frames in converted(converter, chunks, session) for each in messages(frames)
    ]
    refused = {
        reason: count
        for reason, count in converter.counts().items()
        if count and reason not in ("unknown_order", "not_converted")
    }
    assert not refused, refused
    return found
