"""The SBE message header of every message in an output packet, between its frame header and its body.

The SBE standard allows other types here; `feedcore.documents.message_model` refuses message models that use them.
"""

from __future__ import annotations

from tandemfeed.feedcore.wire.layout import Layout

SBE_HEADER_LAYOUT = Layout(("blockLength", "H"), ("templateId", "H"), ("schemaId", "H"), ("version", "H"))
SBE_MESSAGE_HEADER = SBE_HEADER_LAYOUT.struct
SBE_HEADER_SIZE = SBE_HEADER_LAYOUT.size
# The beginning of a frame as two integers, without what differs within a run of equal messages.
EQUAL_PARTS_LAYOUT = Layout(("frame_length", "H"), ("source_offset", "2x"), ("header", "Q"))
EQUAL_PARTS = EQUAL_PARTS_LAYOUT.struct
