"""Bytes that are the same in every output are written together."""

from __future__ import annotations

from tandemfeed.adapter.conversion.kernel.kernel_tables import TableData
from tandemfeed.adapter.conversion.kernel.lines.constant_bytes import STORES_MAX, ConstantBytes


def test_a_few_stretches_are_stored_in_words() -> None:
    constants, data = ConstantBytes(), TableData()
    constants.put(0, b"\x2a\0")
    constants.put(4, b"\1\2\3\4")
    constants.put(8, b"\xff" * 8)
    assert constants.lines(data) == [
        "store_16(out, cursor, 42)",
        f"store_64(out, cursor + 4, {0xFFFF_FFFF_0403_0201 - (1 << 64)})",
        f"store_32(out, cursor + 12, {0xFFFF_FFFF})",
    ]
    assert data.words == []


def test_many_stretches_are_copied_from_an_image_that_equal_outputs_share() -> None:
    data = TableData()
    for _ in range(2):
        constants = ConstantBytes()
        for place in range(STORES_MAX + 1):
            constants.put(2 + 3 * place, bytes([65 + place]))
        assert constants.lines(data) == ["store_image(out, cursor + 2, tables, 0, 13)"]
    image = b"".join(word.to_bytes(8, "little", signed=True) for word in data.words)
    assert image == b"A\0\0B\0\0C\0\0D\0\0E\0\0\0"
