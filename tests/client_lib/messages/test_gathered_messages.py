"""The messages of many packets, gathered into one array for each type, are those of the packets' own views."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.client_lib.messages.gathering import STEPPED_COUNT, gather
from tandemfeed.feedcore.documents.message_model import MessageModel, load_message_model
from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME, OUTPUT_FRAME_SIZE

MODEL_ID, OTHER_ID = 7, 8
XML = """<?xml version="1.0" encoding="UTF-8"?>
<sbe:messageSchema xmlns:sbe="http://fixprotocol.io/2016/sbe" package="toy" id="7" version="1" byteOrder="littleEndian">
  <types>
    <composite name="messageHeader">
      <type name="blockLength" primitiveType="uint16"/><type name="templateId" primitiveType="uint16"/>
      <type name="schemaId" primitiveType="uint16"/><type name="version" primitiveType="uint16"/>
    </composite>
    <composite name="groupSizeEncoding">
      <type name="blockLength" primitiveType="uint16"/><type name="numInGroup" primitiveType="uint16"/>
    </composite>
  </types>
  <sbe:message name="Trade" id="1" blockLength="8"><field name="number" id="1" type="uint64"/></sbe:message>
  <sbe:message name="Quote" id="2" blockLength="16"><field name="number" id="1" type="uint64"/></sbe:message>
  <sbe:message name="Book" id="3" blockLength="8">
    <field name="number" id="1" type="uint64"/>
    <group name="levels" id="2" dimensionType="groupSizeEncoding" blockLength="8">
      <field name="price" id="3" type="uint64"/>
    </group>
  </sbe:message>
</sbe:messageSchema>
"""


def frame(template: int, block: int, number: int, *, schema: int = MODEL_ID, version: int = 1) -> bytes:
    header = b"".join(value.to_bytes(2, "little") for value in (block, template, schema, version))
    body = number.to_bytes(8, "little").ljust(block, b"\0")[:block]
    return OUTPUT_FRAME.pack(OUTPUT_FRAME_SIZE + len(header) + block, number) + header + body


KINDS = {
    "trade": lambda number: frame(1, 8, number),
    "trade of a longer version": lambda number: frame(1, 12, number, version=2),
    "trade of a shorter version": lambda number: frame(1, 4, number, version=0),
    "quote": lambda number: frame(2, 16, number),
    "message with a group": lambda number: frame(3, 12, number),
    "message of another schema": lambda number: frame(1, 8, number, schema=OTHER_ID),
    "empty frame": lambda _: OUTPUT_FRAME.pack(OUTPUT_FRAME_SIZE, 0),
    "frame without a length": lambda _: OUTPUT_FRAME.pack(0, 0),
}
PACKETS = st.lists(st.lists(st.sampled_from(sorted(KINDS)), max_size=12), max_size=2 * STEPPED_COUNT)


@pytest.fixture(scope="module")
def model() -> MessageModel:
    return load_message_model(XML.encode())


@given(PACKETS, st.data())
def test_they_are_the_messages_of_all_views_in_order(
    model: MessageModel, packets: list[list[str]], data: st.DataObject
) -> None:
    numbers = iter(range(10_000))
    payloads = [b"".join(KINDS[kind](next(numbers)) for kind in kinds) for kinds in packets]
    if payloads:  # one ends within a frame
        cut = data.draw(st.integers(0, len(payloads) - 1))
        payloads[cut] = payloads[cut][: data.draw(st.integers(0, len(payloads[cut])))]
    wanted: dict[str, list[int]] = {}
    for payload in payloads:
        for message, rows in model.arrays(payload):
            wanted.setdefault(message.name, []).extend(rows["number"].tolist())
    found = gather(model, [memoryview(payload) for payload in payloads])
    assert {message.name: rows["number"].tolist() for message, rows in found.items()} == wanted


def test_they_are_copies_that_may_be_changed(model: MessageModel) -> None:
    payload = memoryview(frame(1, 8, 5))
    ((_, rows),) = gather(model, [payload]).items()
    rows["number"] += np.uint64(1)
    assert rows["number"].tolist() == [6]
    assert [each["number"].tolist() for _, each in model.arrays(payload)] == [[5]]
