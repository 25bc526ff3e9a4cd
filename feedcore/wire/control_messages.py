"""Messages that tandemfeed itself adds to an output stream. They have their own SBE schema id, so that a decoder of
the user's message model skips them."""

from __future__ import annotations

from tandemfeed.feedcore.wire.layout import Layout
from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME, OUTPUT_FRAME_SIZE
from tandemfeed.feedcore.wire.position import Run
from tandemfeed.feedcore.wire.sbe_header import SBE_MESSAGE_HEADER

CONTROL_SCHEMA_ID = 0x7F46
CONTROL_SCHEMA_VERSION = 0
SOURCE_GAP_TEMPLATE_ID = 1
SOURCE_GAP_BODY = Layout(("source_stream_id", "H"), ("first_source_seq", "Q"), ("last_source_seq", "Q")).struct


def encode_source_gap(run: Run) -> bytes:
    """The only message of a gap run, framed."""
    body = SOURCE_GAP_BODY.pack(run.source_stream_id, run.first_source_seq, run.end_source_seq - 1)
    header = SBE_MESSAGE_HEADER.pack(
        SOURCE_GAP_BODY.size, SOURCE_GAP_TEMPLATE_ID, CONTROL_SCHEMA_ID, CONTROL_SCHEMA_VERSION
    )
    return OUTPUT_FRAME.pack(OUTPUT_FRAME_SIZE + len(header) + len(body), 0) + header + body
