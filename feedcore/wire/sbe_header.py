"""The SBE message header as every message of an output packet has it, between its frame header and its body.

The standard lets a schema choose other types; `feedcore.documents.message_model` refuses a message model that does.
"""

from __future__ import annotations

from feedcore.wire.layout import Layout

SBE_HEADER_LAYOUT = Layout(("blockLength", "H"), ("templateId", "H"), ("schemaId", "H"), ("version", "H"))
SBE_MESSAGE_HEADER = SBE_HEADER_LAYOUT.struct
SBE_HEADER_SIZE = SBE_HEADER_LAYOUT.size
