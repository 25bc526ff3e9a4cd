"""Users' converter functions: in the kernel, in the interpreter, and refused with a reason if they cannot be used."""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from tandemfeed.adapter.conversion import CompiledConverter, ConverterTable, converter_function
from tandemfeed.adapter.conversion.kernel.kernel_source import kernel_source
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.adapter.conversion.table import user_functions
from tandemfeed.adapter.conversion.table.user_functions import BadUserFunction, UserFunction, register
from tandemfeed.adapter.convert_command.cli import main
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.feedcore.wire.source_packet import SOURCE_FRAME, encode_source_header
from tests.conversion.oracle.interpreted import InterpretedConverter

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


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registered function is known only to the test that registers it."""
    monkeypatch.setattr(user_functions, "_registered", dict(user_functions._registered))


def load(folder: Path, table: str) -> ConverterTable:
    for name, text in (("f.xml", FORMAT), ("m.xml", MODEL), ("t.xml", table)):
        (folder / name).write_text(text)
    return load_checked_table(folder / "f.xml", folder / "t.xml", folder / "m.xml")


def test_a_users_function_runs_in_the_kernel_as_in_python(tmp_path: Path) -> None:
    register("percent", percent)
    table = load(tmp_path, TABLE)
    compiled, oracle = CompiledConverter(table), InterpretedConverter(table)
    data = bodies([(1, 3), (5, 5), (0, 0), (7, 2)])  # the last result is out of the function's range
    ours, theirs = np.zeros(200, np.uint8), np.zeros(200, np.uint8)
    result = compiled.convert(data, 0, 4, ours, 0, 200)
    assert result == oracle.convert(data, 0, 4, theirs, 0, 200)
    assert bytes(ours) == bytes(theirs)
    assert ours[: result.end].reshape(3, 13)[:, 12].tolist() == [33, 100, 0]
    assert compiled.counts()["out_of_range"] == 1
    assert percent.digest in compiled.source


def bodies(pairs: list[tuple[int, int]]) -> bytes:
    """A packet of these messages."""
    return encode_source_header(
        feed_id=1, source_stream_id=1, message_count=len(pairs), session=1, first_source_seq=1, sent_at_ns=0
    ) + b"".join(SOURCE_FRAME.pack(8, 1) + struct.pack("<HH", *pair) for pair in pairs)


def test_an_exception_of_a_compiled_function_refuses_only_its_message(tmp_path: Path) -> None:
    @converter_function(minimum=0, maximum=200)
    def ratio(of: int, total: int) -> int:
        if of == 7:
            raise ValueError("seven")
        return of // total

    register("ratio", ratio)
    table = load(tmp_path, TABLE.replace("percent", "ratio"))
    assert "called per packet" not in kernel_source(table).text
    compiled, oracle = CompiledConverter(table), InterpretedConverter(table)
    data, ours, theirs = (
        bodies([(9, 3), (9, 0), (7, 1), (999, 1), (4, 2)]),
        np.zeros(200, np.uint8),
        np.zeros(200, np.uint8),
    )
    result = compiled.convert(data, 0, 5, ours, 0, 200)
    assert result == oracle.convert(data, 0, 5, theirs, 0, 200)
    assert bytes(ours) == bytes(theirs)
    assert ours[: result.end].reshape(2, 13)[:, 12].tolist() == [3, 2]
    assert compiled.counts() == oracle.counts()
    assert (compiled.counts()["function_failed"], compiled.counts()["out_of_range"]) == (2, 1)


def test_after_a_change_of_state_a_function_is_null_where_it_would_refuse(tmp_path: Path) -> None:
    @converter_function(minimum=0, maximum=200)
    def share(of: int, total: int) -> int:
        return 1_000 // (total - 3)

    register("share", share)
    kept = """<converterTable name="x" sourceFormat="x"><convert message="m" to="out">
    <let name="total" function="sum" of="filled" by="size"/><let name="mine" function="share" of="size" total="total"/>
    <field name="share" function="{}" of="mine" value="255"/></convert></converterTable>"""
    with pytest.raises(DocumentError, match=r"t\.xml:3: the value may be null"):
        load(tmp_path, kept.format("copy").replace(' value="255"', ""))
    table = load(tmp_path, kept.format("default"))
    compiled, oracle = CompiledConverter(table), InterpretedConverter(table)
    data, ours, theirs = bodies([(2, 1), (1, 1), (1, 1), (19, 1)]), np.zeros(200, np.uint8), np.zeros(200, np.uint8)
    result = compiled.convert(data, 0, 4, ours, 0, 200)
    assert result == oracle.convert(data, 0, 4, theirs, 0, 200)
    assert bytes(ours) == bytes(theirs)
    # 1000 // -1 and 1000 // 1 are out of range, 1000 // 0 raises; the state continues
    assert ours[: result.end].reshape(4, 13)[:, 12].tolist() == [255, 255, 255, 50]
    assert not any(compiled.counts().values())
    assert compiled.snapshot() == oracle.snapshot()


PACKAGE = """
from decimal import Decimal
from tandemfeed.adapter.conversion import converter_function

@converter_function(minimum=0, maximum=100)
def rounded(of: int, total: int) -> int:
    return int(Decimal(of) / Decimal(total))

plain = len
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Install a package with this entry point."""

    def install(entry: str) -> None:
        (tmp_path / "our_rounding.py").write_text(PACKAGE)
        info = tmp_path / "our_rounding-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: our-rounding\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[tandemfeed.converter_functions]\n{entry}\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    return install


def test_a_package_registers_functions_by_entry_point(
    tmp_path: Path, installed: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    installed("rounded = our_rounding:rounded")
    table = load(tmp_path, TABLE.replace("percent", "rounded"))
    out = np.zeros(100, np.uint8)
    compiled = CompiledConverter(table)
    result = compiled.convert(bodies([(9, 3), (9, 0), (5, 1)]), 0, 3, out, 0, 100)
    assert out[: result.end].reshape(2, 13)[:, 12].tolist() == [3, 5]
    assert compiled.function_failures()["rounded"].startswith("DivisionByZero")
    documents = ["--source-format", "f.xml", "--table", "t.xml", "--message-model", "m.xml"]
    assert main(["check", *(str(tmp_path / each) if each.endswith("xml") else each for each in documents)]) == 0
    line = (
        "function rounded: called in Python once per packet, value by value, in stage 1 of 1: numba cannot compile it"
    )
    assert line in capsys.readouterr().out


def test_the_error_names_an_entry_point_that_is_not_a_converter_function(
    tmp_path: Path, installed: Callable[[str], None]
) -> None:
    installed("plain = our_rounding:plain")
    with pytest.raises(BadUserFunction, match="our_rounding:plain is not a @converter_function"):
        load(tmp_path, TABLE)


def not_from_a_file() -> int:
    """A function whose source cannot be read."""
    found: dict[str, object] = {}
    exec(compile("def made(of): return of", "<no file>", "exec"), found)
    return found["made"]  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("name", "function", "reason"),
    [
        ("copy", percent, "the name is already in use"),
        ("no name", percent, "is not a name: A to Z"),
        ("half", converter_function()(lambda of: of / 2), "returns float64, not an integer"),
        (
            "nothing",
            converter_function()(lambda: Decimal(5)),
            "'nothing' takes no values; only a function that can be compiled",
        ),
        ("many", converter_function()(lambda *of: sum(of)), r"'many': \*of is not a single value"),
        ("by_key", converter_function()(lambda of, by: of + by), "'by' is an attribute of every element"),
        ("made", converter_function()(not_from_a_file()), "'made': cannot read its source"),
        ("reversed", converter_function(minimum=5, maximum=4)(lambda of: of), "its range must be within"),
        ("wide", converter_function(maximum=2**63 - 1)(lambda of: of), "its range must be within"),
    ],
)
def test_an_invalid_converter_function_is_refused_with_the_reason(
    name: str, function: UserFunction, reason: str
) -> None:
    with pytest.raises(BadUserFunction, match=reason):
        register(name, function)
