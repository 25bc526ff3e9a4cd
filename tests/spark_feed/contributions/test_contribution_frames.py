"""Frames of contributed messages: just those that the source format describes, also with groups and texts."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.client_lib.messages.message import load_messages
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.spark_feed.contributions.frames import FrameMaker, MessageRefused, WrongFormat
from tests.spark_feed.contributions.contribution_material import FORMATS, SOURCE_FORMAT, trade

SCHEMA = """<?xml version="1.0" encoding="UTF-8"?>
<sbe:messageSchema xmlns:sbe="http://fixprotocol.io/2016/sbe" package="orders" id="9" version="0"
                   byteOrder="littleEndian">
  <types>
    <composite name="messageHeader">
      <type name="blockLength" primitiveType="uint16"/><type name="templateId" primitiveType="uint16"/>
      <type name="schemaId" primitiveType="uint16"/><type name="version" primitiveType="uint16"/>
    </composite>
    <composite name="groupSizeEncoding">
      <type name="blockLength" primitiveType="uint16"/><type name="numInGroup" primitiveType="uint16"/>
    </composite>
    <composite name="text">
      <type name="length" primitiveType="uint16"/><type name="varData" primitiveType="uint8" length="0"/>
    </composite>
  </types>
  <sbe:message name="Order" id="1">
    <field name="number" id="1" type="uint64"/>
    <group name="legs" id="2" dimensionType="groupSizeEncoding">
      <field name="size" id="3" type="uint32"/>
    </group>
    <data name="note" id="4" type="text"/>
  </sbe:message>
</sbe:messageSchema>
"""


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, FrameMaker]:
    """(the class of orders, a frame maker of their format)"""
    folder = Path(tmp_path_factory.mktemp("orders"))
    (folder / "orders.xml").write_text(SCHEMA)
    text = (FORMATS / "contribution.xml").read_text().replace("tick.xml", "orders.xml")
    (folder / "format.xml").write_text(text)
    return load_messages(folder / "orders.xml").Order, FrameMaker(load_source_format(folder / "format.xml"), 500)


@given(sizes=st.lists(st.integers(0, 99), max_size=5), note=st.text(alphabet="abc", max_size=30), cut=st.data())
def test_a_whole_message_is_framed_and_a_part_of_it_or_more_is_refused(
    orders: tuple[Any, FrameMaker], sizes: list[int], note: str, cut: st.DataObject
) -> None:
    order, maker = orders
    message = bytes(order(number=7, legs=[{"size": size} for size in sizes], note=note.encode()))
    assert maker.frame(message) == (len(message) + 2).to_bytes(2, "little") + message
    for wrong in (message[: cut.draw(st.integers(0, len(message) - 1))], message + b"x"):
        with pytest.raises(MessageRefused):
            maker.frame(wrong)


@given(st.binary(max_size=80))
def test_whatever_bytes_come_they_are_framed_or_refused(orders: tuple[Any, FrameMaker], body: bytes) -> None:
    _, maker = orders
    message = bytes([8, 0, 1, 0, 9, 0, 0, 0]) + body
    with suppress(MessageRefused):
        assert len(maker.frame(message)) == len(message) + 2


def test_a_message_that_is_too_long_or_of_another_template_is_refused_with_the_reason() -> None:
    size = len(trade(1))
    with pytest.raises(MessageRefused, match=f"{size} bytes; at most {size - 1} fit"):
        FrameMaker(SOURCE_FORMAT, size - 1).frame(trade(1))
    maker = FrameMaker(SOURCE_FORMAT, size)
    other = bytearray(trade(1))
    other[2] = 99
    with pytest.raises(MessageRefused, match="template 99 is not in the source format contribution, which has Trade"):
        maker.frame(bytes(other))


def test_a_source_format_with_other_frames_is_refused() -> None:
    with pytest.raises(WrongFormat, match="copy the <framing>"):
        FrameMaker(load_source_format(FORMATS / "lobster.xml"), 100)
