"""The columns that a recording has for the fields of a source format. Pure.

Every recording has `record_index`, `kind` (the name of a message) and `event_at_ns`. The others have the names of the
format's fields: texts as text, floats as floats, all other numbers as the integers that the field holds, in units of
its exponent. Padding (fields whose names begin with `pad`) and constants have no column, because no row decides them.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tandemfeed.feedcore.documents.source_layout import FRAMING_DEFAULT, SourceField, SourceFormat, SourceMessageType
from tandemfeed.spark_feed.recordings.recording import CORE_FIELDS, RecordingError

PADDING = "pad"


def columns_of(message: SourceMessageType) -> dict[str, SourceField]:
    """The fields of a message that a recording has columns for."""
    return {
        name: field for name, field in message.fields.items() if not name.startswith(PADDING) and field.constant is None
    }


def recording_schema(source_format: SourceFormat) -> Any:
    """The Arrow schema of a recording from which all messages of a source format can be made.

    Raises:
        RecordingError: rows of a recording cannot make the messages.
    """
    fields = {field.name: field for field in CORE_FIELDS}
    for message in source_format.messages.values():
        if message.framing != FRAMING_DEFAULT or message.parts:
            raise RecordingError(
                f"{source_format.document}: message {message.name!r} has a framing of its own, groups or variable "
                "data; rows of a recording make fixed messages in the feed source's own framing"
            )
        for name, field in columns_of(message).items():
            column = pa.field(name, _type_of(field))
            known = fields.setdefault(name, column)
            if known.type != column.type:
                raise RecordingError(
                    f"{source_format.document}: field {name!r} is {known.type} in one message and {column.type} in "
                    f"{message.name!r}; a recording has one column for both, so rename one of them"
                )
    return pa.schema(list(fields.values()))


def _type_of(field: SourceField) -> Any:
    if field.is_text:
        return pa.string()
    return pa.float64() if field.kind.is_float else pa.int64()
