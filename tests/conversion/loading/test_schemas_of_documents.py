"""The shipped XSDs: every shipped document conforms to them, and they reject plainly wrong documents."""

from __future__ import annotations

from html import unescape
from pathlib import Path

import pytest

from tandemfeed.feedcore.documents.names import is_name, is_title
from tests.conversion.deal_material import FORMAT, TABLE

etree = pytest.importorskip("lxml.etree")  # comes with a decoder that tests use

ROOT = Path(__file__).resolve().parents[3]
XSDS = {
    "sourceFormat": ROOT / "feedcore" / "documents" / "source-format.xsd",
    "converterTable": ROOT / "adapter" / "conversion" / "converter-table.xsd",
}
FOLDERS = (ROOT / "adapter" / "conversion" / "formats", ROOT / "deploy" / "examples", ROOT / "benchmarks")
SHIPPED = [
    path for folder in FOLDERS for path in sorted(folder.rglob("*.xml")) if etree.parse(str(path)).getroot().tag in XSDS
]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_document_conforms_to_its_schema(path: Path) -> None:
    tree = etree.parse(str(path))
    schema = etree.XMLSchema(etree.parse(str(XSDS[tree.getroot().tag])))
    assert schema.validate(tree), schema.error_log


FIELD = '<message name="m" type="1"><field name="a" type="uint31"/></message>'
WRONG = [
    ("sourceFormat", f'<sourceFormat name="x">{FIELD}</sourceFormat>'),
    ("sourceFormat", '<sourceFormat name="x"><massage name="m" type="1"/></sourceFormat>'),
    ("converterTable", '<converterTable name="x" sourceFormat="y"><convert to="z"/></converterTable>'),
    (
        "converterTable",
        '<converterTable name="x" sourceFormat="y"><convert message="z"><f/></convert></converterTable>',
    ),
]
SOURCE_FORMAT = '<sourceFormat name="x">%s</sourceFormat>'
MESSAGE = '<sourceFormat name="x"><message name="m" type="1">%s</message></sourceFormat>'
CONVERTER_TABLE = '<converterTable name="x" sourceFormat="y">%s</converterTable>'
CONVERT = '<converterTable name="x" sourceFormat="y"><convert message="m">%s</convert></converterTable>'
# Each has a place for a name, and the loader accepts only valid names there.
NAMED = [
    SOURCE_FORMAT % '<message name="{}" type="1"/>',
    MESSAGE % '<field name="{}" type="int8"/>',
    MESSAGE % '<group name="{}" count="2"><field name="f" type="int8"/></group>',
    MESSAGE % '<data name="{}" length="uint8"/>',
    CONVERTER_TABLE % '<map name="{}"/>',
    CONVERTER_TABLE % '<book name="{}"/>',
    CONVERTER_TABLE % '<convert message="{}"/>',
    CONVERTER_TABLE % '<convert message="m" to="{}"/>',
    CONVERT % '<let name="{}" function="copy"/>',
    CONVERT % '<keep function="last" cell="{}"/>',
    CONVERT % '<group name="{}" count="1"/>',
    CONVERT % '<group name="g" count="1" index="{}"/>',
]
TITLED = [
    '<sourceFormat name="{}"><packet name="p"/></sourceFormat>',
    SOURCE_FORMAT % '<packet name="{}"/>',
    '<converterTable name="{}" sourceFormat="y"><map name="m"/></converterTable>',
    '<converterTable name="x" sourceFormat="{}"><map name="m"/></converterTable>',
]
NAMES = ["a", "_1", "A_b9", "a" * 128, "", "1", "a b", "a-b", "a.b", "é", "a&#10;b", "a&#10;", " a", "a" * 129]


@pytest.mark.parametrize(("tag", "text"), WRONG)
def test_plainly_wrong_documents_do_not_conform(tag: str, text: str) -> None:
    schema = etree.XMLSchema(etree.parse(str(XSDS[tag])))
    assert not schema.validate(etree.fromstring(text))


def is_valid(text: str) -> bool:
    root = etree.fromstring(text)
    return bool(etree.XMLSchema(etree.parse(str(XSDS[root.tag]))).validate(root))


@pytest.mark.parametrize("text", NAMED)
def test_schema_and_loader_accept_the_same_names(text: str) -> None:
    assert [is_valid(text.format(name)) for name in NAMES] == [is_name(unescape(name)) for name in NAMES]


@pytest.mark.parametrize("text", TITLED)
def test_schema_and_loader_accept_the_same_titles(text: str) -> None:
    assert [is_valid(text.format(name)) for name in NAMES] == [is_title(unescape(name)) for name in NAMES]


@pytest.mark.parametrize("text", [FORMAT, TABLE])
def test_groups_and_variable_texts_conform_to_their_schemas(text: str) -> None:
    root = etree.fromstring(text)
    schema = etree.XMLSchema(etree.parse(str(XSDS[root.tag])))
    assert schema.validate(root), schema.error_log


def test_at_least_one_document_is_shipped() -> None:
    assert len(SHIPPED) >= 6
