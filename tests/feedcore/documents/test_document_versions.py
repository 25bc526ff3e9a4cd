"""Documents by identifier and version, with the files that they name."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tandemfeed.feedcore.documents.versions import DocumentKind, VersionedDocument, read_document
from tandemfeed.feedcore.documents.xml_document import DocumentError

TABLE = b'<converterTable name="t" sourceFormat="s"><map name="m" file="lists/m.csv" from="a" to="b"/></converterTable>'
EXAMPLES = Path(__file__).resolve().parents[3] / "deploy" / "examples" / "ticks"


def write_table(folder: Path, rows: str) -> Path:
    (folder / "lists").mkdir(parents=True)
    (folder / "lists" / "m.csv").write_text(rows)
    (folder / "table.xml").write_bytes(TABLE)
    return folder / "table.xml"


def test_the_version_of_a_single_file_is_its_sha256() -> None:
    path = EXAMPLES / "converter-table.xml"
    found = read_document(DocumentKind.CONVERTER_TABLE, path)
    assert found.version == hashlib.sha256(path.read_bytes()).hexdigest()
    assert found.id == "converter-table"


def test_a_changed_reference_table_is_another_version_of_the_document(tmp_path: Path) -> None:
    paths = [write_table(tmp_path / name, rows) for name, rows in (("one", "a,b\n1,2\n"), ("two", "a,b\n1,3\n"))]
    one, two = (read_document(DocumentKind.CONVERTER_TABLE, path) for path in paths)
    assert one.content == two.content
    assert one.version != two.version


def test_the_contents_of_a_document_in_another_folder_are_the_same_document(tmp_path: Path) -> None:
    found = read_document(DocumentKind.CONVERTER_TABLE, write_table(tmp_path / "here", "a,b\n1,2\n"))
    for name, data in found.contents().items():
        (tmp_path / "there" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "there" / name).write_bytes(data)
    saved = tmp_path / "there" / found.file_name
    assert read_document(DocumentKind.CONVERTER_TABLE, saved).version == found.version


@pytest.mark.parametrize("name", ["../m.csv", "/etc/m.csv", "lists/../../m.csv", ""])
def test_a_file_that_leaves_the_folder_is_refused(name: str) -> None:
    document = VersionedDocument(DocumentKind.CONVERTER_TABLE, "t", TABLE, {name: b"x"})
    with pytest.raises(DocumentError, match="not below"):
        document.contents()


def test_a_document_of_another_kind_and_a_missing_file_are_named(tmp_path: Path) -> None:
    path = write_table(tmp_path, "a,b\n1,2\n")
    with pytest.raises(DocumentError, match="<converterTable>; it must be <sourceFormat>"):
        read_document(DocumentKind.SOURCE_FORMAT, path)
    (tmp_path / "lists" / "m.csv").unlink()
    with pytest.raises(DocumentError, match=r"table.xml:1: cannot read .*m\.csv"):
        read_document(DocumentKind.CONVERTER_TABLE, path)
