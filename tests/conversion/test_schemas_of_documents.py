"""The shipped XSDs: what is shipped holds to them, and they find what is plainly wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from deal_material import FORMAT, TABLE

etree = pytest.importorskip("lxml.etree")  # comes with a decoder that tests use

ROOT = Path(__file__).resolve().parents[2]
XSDS = {
    "sourceFormat": ROOT / "feedcore" / "documents" / "source-format.xsd",
    "converterTable": ROOT / "adapter" / "conversion" / "converter-table.xsd",
}
FOLDERS = (ROOT / "adapter" / "conversion" / "formats", ROOT / "deploy" / "examples", ROOT / "benchmarks")
SHIPPED = [
    path for folder in FOLDERS for path in sorted(folder.rglob("*.xml")) if etree.parse(str(path)).getroot().tag in XSDS
]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_document_holds_to_its_schema(path: Path) -> None:
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


@pytest.mark.parametrize(("tag", "text"), WRONG)
def test_what_is_plainly_wrong_does_not(tag: str, text: str) -> None:
    schema = etree.XMLSchema(etree.parse(str(XSDS[tag])))
    assert not schema.validate(etree.fromstring(text))


@pytest.mark.parametrize("text", [FORMAT, TABLE])
def test_groups_and_variable_texts_hold_to_their_schemas(text: str) -> None:
    root = etree.fromstring(text)
    schema = etree.XMLSchema(etree.parse(str(XSDS[root.tag])))
    assert schema.validate(root), schema.error_log


def test_something_is_shipped() -> None:
    assert len(SHIPPED) >= 6
