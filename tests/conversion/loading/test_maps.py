"""Maps of texts longer than a word: reference tables that normalise symbols, in the kernel and in the interpreter."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from tandemfeed.adapter.conversion import CompiledConverter, ConverterTable
from tandemfeed.adapter.conversion.kernel.kernel_source import kernel_source
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.feedcore.documents.message_model import PREFIX_SIZE
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.feedcore.wire.source_packet import SOURCE_FRAME, SOURCE_FRAME_SIZE, encode_source_header
from tests.conversion.oracle.interpreted import InterpretedConverter

FORMAT = """<sourceFormat name="x"><message name="long" type="1">
<field name="venue" type="char" length="{size}"/></message>
<message name="short" type="2"><field name="code" type="char" length="5"/></message></sourceFormat>"""
MODEL = """<messageSchema package="x" id="7" version="0"><types><composite name="messageHeader">
<type name="blockLength" primitiveType="uint16"/><type name="templateId" primitiveType="uint16"/>
<type name="schemaId" primitiveType="uint16"/><type name="version" primitiveType="uint16"/></composite>
<type name="Symbol" primitiveType="char" length="64"/></types>
<message name="out" id="1"><field name="symbol" id="1" type="Symbol"/></message></messageSchema>"""
TABLE = """<converterTable name="x" sourceFormat="x">
<map name="symbols" file="symbols.csv" from="venue_symbol" to="symbol"{more}/>
<convert message="long" to="out"><field name="symbol" function="map" of="venue" map="symbols"/></convert>
<convert message="short" to="out"><field name="symbol" function="map" of="code" map="symbols"/></convert>
</converterTable>"""


def load(folder: Path, rows: str, *, size: int = 64, more: str = "") -> ConverterTable:
    """A table with a map of these rows of a CSV file."""
    texts = {"f.xml": FORMAT.format(size=size), "m.xml": MODEL, "t.xml": TABLE.format(more=more)}
    for name, text in {**texts, "symbols.csv": f"symbol,venue_symbol\n{rows}"}.items():
        (folder / name).write_text(text)
    return load_checked_table(folder / "f.xml", folder / "t.xml", folder / "m.xml")


def convert(converter: CompiledConverter | InterpretedConverter, bodies: list[tuple[int, bytes]]) -> list[bytes]:
    """The symbols in the output."""
    data = encode_source_header(
        feed_id=1, source_stream_id=1, message_count=len(bodies), session=1, first_source_seq=1, sent_at_ns=0
    ) + b"".join(SOURCE_FRAME.pack(SOURCE_FRAME_SIZE + len(body), kind) + body for kind, body in bodies)
    out = np.zeros(100 * len(bodies), np.uint8)
    result = converter.convert(data, 0, len(bodies), out, 0, out.size)
    assert result.source_count == len(bodies)
    frames = out[: result.end].reshape(-1, 76)
    return [frame[PREFIX_SIZE:].tobytes().rstrip(b"\0") for frame in frames]


def test_a_reference_table_normalises_symbols_of_any_length_up_to_64_bytes(tmp_path: Path) -> None:
    random = Random(5)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ .-/"
    # Many share their first words, so that each word in turn distinguishes some; and lengths near multiples of a word.
    keys = {
        ("ROOT." * 13)[: random.randint(0, 60)] + "".join(random.choices(letters, k=random.randint(1, 4))).strip()
        for _ in range(3_000)
    } | {"X" * size for size in range(1, 65)}
    names = {key: f"name {place:06d} of some length" for place, key in enumerate(sorted(keys - {""}))}
    table = load(tmp_path, "".join(f"{name},{key}\n" for key, name in names.items()))
    compiled, oracle = CompiledConverter(table), InterpretedConverter(table)
    pad = [b"\0", b" "]
    bodies = [(1, key.encode().ljust(64, random.choice(pad))) for key in names]
    assert convert(compiled, bodies) == [name.encode() for name in names.values()]
    assert convert(oracle, bodies[:200]) == [name.encode() for name in list(names.values())[:200]]
    unknown = [(1, (key[:-1] + "?").encode().ljust(64, b"\0")) for key in names]
    assert convert(compiled, unknown) == []
    assert compiled.counts()["unmapped"] == len(unknown)


def test_a_short_field_finds_the_short_keys_of_a_map_that_has_long_ones(tmp_path: Path) -> None:
    table = load(tmp_path, "one,ABC\ntwo,ABCDE\nthree,ABCDEFGHIJK\n", size=13)
    bodies = [(2, b"ABC  "), (2, b"ABCDE"), (2, b"ABCDF"), (1, b"ABCDEFGHIJK  "), (1, b"ABC".ljust(13)), (1, b" " * 13)]
    compiled, oracle = CompiledConverter(table), InterpretedConverter(table)
    expected = [b"one", b"two", b"three", b"one"]
    assert convert(compiled, bodies) == convert(oracle, bodies) == expected
    assert compiled.counts() == oracle.counts()


def test_a_long_field_is_looked_up_in_a_map_of_short_keys(tmp_path: Path) -> None:
    table = load(tmp_path, "one,ABC\nnothing,  \n", size=9, more=' default="another"')
    bodies = [(1, b"ABC      "), (1, b"ABC     D"), (1, b"\0" * 9), (1, b"         "), (2, b"     ")]
    compiled, oracle = CompiledConverter(table), InterpretedConverter(table)
    expected = [b"one", b"another", b"nothing", b"nothing", b"nothing"]
    assert convert(compiled, bodies) == convert(oracle, bodies) == expected


def test_a_map_of_short_keys_is_searched_word_by_word(tmp_path: Path) -> None:
    assert "look_up_text" not in kernel_source(load(tmp_path, "one,ABC\n", size=8)).text
    assert "look_up_text" in kernel_source(load(tmp_path, "one,ABC\n", size=9)).text


def test_a_different_reference_table_changes_the_fingerprint(tmp_path: Path) -> None:
    one, other = (load(tmp_path, f"one,A LONG SYMBOL {letter}\n").fingerprint for letter in "AB")
    assert one != other


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ("one," + "A" * 65, "has 65 bytes; 1 to 64 are allowed"),
        ("B" * 65 + ",A", "has 65 bytes; 1 to 64 are allowed"),
        ("one,A LONG SYMBOL\ntwo,A LONG SYMBOL  \n", r"symbols\.csv:3: 'A LONG SYMBOL  ' is mapped twice"),
        ("one,A\ntwo\n", r"symbols\.csv:3: fewer columns than the header has"),
        ("", "map 'symbols' is empty"),
    ],
)
def test_a_bad_reference_table_is_refused_with_file_line_and_reason(tmp_path: Path, rows: str, reason: str) -> None:
    with pytest.raises(DocumentError, match=rf"t\.xml:2: .*{reason}"):
        load(tmp_path, rows)


def test_mapped_texts_keep_their_blanks_when_joined(tmp_path: Path) -> None:
    load(tmp_path, "one ,A SYMBOL THAT IS LONG\n")
    joined = (
        TABLE.format(more="")
        .replace(
            '<field name="symbol" function="map" of="venue" map="symbols"/>',
            '<let name="found" function="map" of="venue" map="symbols"/>'
            '<field name="symbol" function="concatenate" of="found code" separator="/"/>',
        )
        .replace(
            '<convert message="long" to="out">',
            '<convert message="long" to="out"><let name="code" function="constant" text="7"/>',
        )
    )
    (tmp_path / "t.xml").write_text(joined)
    table = load_checked_table(tmp_path / "f.xml", tmp_path / "t.xml", tmp_path / "m.xml")
    bodies = [(1, b"A SYMBOL THAT IS LONG".ljust(64))]
    assert convert(CompiledConverter(table), bodies) == convert(InterpretedConverter(table), bodies) == [b"one /7"]


def test_a_file_that_is_not_csv_is_refused_with_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"t\.xml:2: .*symbols\.csv:\d+: not CSV: field larger than field limit"):
        load(tmp_path, f"A,B\nC,{'D' * 200_000}\n")
