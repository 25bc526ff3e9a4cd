"""Row groups: columns that compiled code collects equal those that numpy takes out of the frames."""

from __future__ import annotations

import numpy as np
import pytest

from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.convert_command.output import row_groups
from tandemfeed.adapter.convert_command.output.row_groups import RowGroups
from tandemfeed.feedcore.documents.message_model import frame_dtype, frame_size, load_message_model
from tandemfeed.feedcore.sbe.messages import MessageType
from tandemfeed.tables.columns import FixedColumns

MODEL = load_message_model(document("tick.xml"))
ROWS = 2_000


def rows_of(message: MessageType, random: np.random.Generator) -> np.ndarray[tuple[int, ...], np.dtype[np.void]]:
    """Messages with random values, nulls, and more distinct texts than there is room for at first."""
    size = frame_size(message)
    rows = np.zeros(ROWS, frame_dtype(message, size))
    rows["frame_length"], rows["blockLength"] = size, message.block_length
    rows["templateId"], rows["schemaId"] = message.template_id, MODEL.schema.schema_id
    for name, column in message.columns.items():
        kind = rows.dtype[name]
        if kind.kind == "S":
            texts = [f"T{number}"[: kind.itemsize] for number in random.integers(0, ROWS, ROWS)]
            rows[name] = np.where(random.random(ROWS) < 0.1, b"", np.array(texts, kind))
        else:
            bounds = np.iinfo(kind)
            rows[name] = random.integers(bounds.min, bounds.max, ROWS, kind.type, endpoint=True)
            if column.null is not None:
                rows[name] = np.where(random.random(ROWS) < 0.1, kind.type(column.null), rows[name])
    return rows


@pytest.mark.parametrize("name", sorted(MODEL.schema.messages))
def test_compiled_columns_equal_those_of_numpy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_groups, "TEXTS_FIRST", 16)
    message = MODEL.schema.messages[name]
    rows = rows_of(message, np.random.default_rng(len(name)))
    groups = RowGroups(MODEL)
    assert list(groups.take(rows[:700].view(np.uint8))) == list(groups.take(rows[700:].view(np.uint8))) == []
    ((found, batch),) = groups.rest()
    batch.validate(full=True)
    assert found == name
    list(groups.take(rows[::-1].copy().view(np.uint8)))  # does not touch the batch
    assert batch.to_pylist() == FixedColumns(message).batch(rows).to_pylist()
