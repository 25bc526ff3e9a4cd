"""A payload is divided into the longest runs of frames with one size and equal headers, however types alternate."""

from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.feedcore.documents.message_model import PREFIX_SIZE, load_message_model
from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME, OUTPUT_FRAME_SIZE

MODEL = load_message_model(b"""<?xml version="1.0" encoding="UTF-8"?>
<sbe:messageSchema xmlns:sbe="http://fixprotocol.io/2016/sbe" package="toy" id="7" version="0" byteOrder="littleEndian">
  <types>
    <composite name="messageHeader">
      <type name="blockLength" primitiveType="uint16"/><type name="templateId" primitiveType="uint16"/>
      <type name="schemaId" primitiveType="uint16"/><type name="version" primitiveType="uint16"/>
    </composite>
  </types>
  <sbe:message name="Short" id="1" blockLength="8"><field name="number" id="1" type="uint64"/></sbe:message>
  <sbe:message name="Long" id="2" blockLength="16"><field name="number" id="1" type="uint64"/></sbe:message>
  <sbe:message name="Other" id="3" blockLength="8"><field name="number" id="1" type="uint64"/></sbe:message>
</sbe:messageSchema>
""")
SIZES = {"Short": 8, "Long": 16, "Other": 8}
NUMBERS = {"Short": 1, "Long": 2, "Other": 3}


def frame(name: str, number: int) -> bytes:
    size = SIZES[name]
    header = b"".join(value.to_bytes(2, "little") for value in (size, NUMBERS[name], 7, 0))
    body = number.to_bytes(8, "little").ljust(size, b"\0")
    return OUTPUT_FRAME.pack(OUTPUT_FRAME_SIZE + len(header) + size, number) + header + body


@given(st.lists(st.tuples(st.sampled_from(sorted(SIZES)), st.integers(1, 12)), max_size=8))
def test_each_view_has_the_longest_run_of_messages_of_one_type(stretches: list[tuple[str, int]]) -> None:
    names = [name for name, count in stretches for _ in range(count)]
    payload = b"".join(frame(name, number) for number, name in enumerate(names))
    found = [(message.name, rows["number"].tolist()) for message, rows in MODEL.arrays(payload)]
    assert found == [(name, [at for at, _ in run]) for name, run in groupby(enumerate(names), lambda each: each[1])]


def test_a_payload_that_ends_within_a_frame_ends_the_run_before_it() -> None:
    whole = frame("Short", 0) + frame("Short", 1) + frame("Short", 2)
    runs = list(MODEL.stretches(whole[:-1]))
    assert [len(run) for _, _, run in runs] == [2 * (PREFIX_SIZE + 8), PREFIX_SIZE + 7]
