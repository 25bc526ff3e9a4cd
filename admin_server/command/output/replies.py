"""The server's replies as JSON."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message


def as_dict(reply: Message) -> dict[str, Any]:
    """Protocol Buffers' JSON mapping, with the fields that are zero or empty: programs should find every field."""
    found: dict[str, Any] = MessageToDict(
        reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return found


def print_json(*replies: Message) -> None:
    """Print a reply as one JSON object on a line; several, which have different fields, as one object."""
    fields: dict[str, Any] = {}
    for reply in replies:
        fields |= as_dict(reply)
    print(json.dumps(fields))
