"""Users' converter functions: in the kernel, in the interpreter, refused with a reason where they cannot be used."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from adapter.conversion import CompiledConverter, InterpretedConverter, converter_function
from adapter.conversion.loading import load_checked_table
from adapter.conversion.user_functions import BadUserFunction, register
from feedcore.source_packet import SOURCE_FRAME, encode_source_header

FORMAT = """<sourceFormat name="x"><message name="m" type="1"><field name="filled" type="uint16"/>
<field name="size" type="uint16"/></message></sourceFormat>"""
MODEL = """<messageSchema package="x" id="7" version="0"><types><composite name="messageHeader">
<type name="blockLength" primitiveType="uint16"/><type name="templateId" primitiveType="uint16"/>
<type name="schemaId" primitiveType="uint16"/><type name="version" primitiveType="uint16"/></composite></types>
<message name="out" id="1"><field name="share" id="1" type="uint8"/></message></messageSchema>"""
TABLE = """<converterTable name="x" sourceFormat="x"><convert message="m" to="out">
<field name="share" function="percent" of="filled" total="size"/></convert></converterTable>"""


@converter_function(minimum=0, maximum=100)
def percent(of: int, total: int) -> int:
    """How much of the total, in percent."""
    return 100 * of // total if total > 0 else 0


def test_a_users_function_runs_in_the_kernel_as_in_python(tmp_path: Path) -> None:
    register("percent", percent)
    for name, text in (("f.xml", FORMAT), ("m.xml", MODEL), ("t.xml", TABLE)):
        (tmp_path / name).write_text(text)
    table = load_checked_table(tmp_path / "f.xml", tmp_path / "t.xml", tmp_path / "m.xml")
    compiled, oracle = CompiledConverter(table), InterpretedConverter(table)
    pairs = [(1, 3), (5, 5), (0, 0), (7, 2)]  # the last one is beyond the function's range
    data = encode_source_header(
        feed_id=1, source_stream_id=1, message_count=4, session=1, first_source_seq=1, sent_at_ns=0
    ) + b"".join(SOURCE_FRAME.pack(8, 1) + struct.pack("<HH", *pair) for pair in pairs)
    ours, theirs = np.zeros(200, np.uint8), np.zeros(200, np.uint8)
    result = compiled.convert(data, 0, 4, ours, 0, 200)
    assert result == oracle.convert(data, 0, 4, theirs, 0, 200)
    assert bytes(ours) == bytes(theirs)
    assert ours[: result.end].reshape(3, 13)[:, 12].tolist() == [33, 100, 0]
    assert compiled.counts()["out_of_range"] == 1
    assert percent.digest in compiled.source


def test_a_function_that_cannot_be_compiled_is_refused_with_the_reason() -> None:
    @converter_function()
    def by_name(of: int) -> int:
        return len({"x": of}) + open(str(of)).fileno()

    with pytest.raises(BadUserFunction, match="'by_name' cannot be compiled"):
        register("by_name", by_name)
    with pytest.raises(BadUserFunction, match="the name is taken"):
        register("copy", percent)
