"""Documents by identifier and version, so that processes on different hosts can tell whether they use the same ones.

A document may name other files: a source format its SBE schema, a converter table its reference tables. They belong to
the document, and so to its version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path, PurePosixPath

from tandemfeed.feedcore.documents.xml_document import DocumentError, Node, parse_document


class DocumentKind(StrEnum):
    """What a document describes. The values are for people."""

    MESSAGE_MODEL = "message model"
    SOURCE_FORMAT = "source format"
    CONVERTER_TABLE = "converter table"


ROOT_TAGS = {DocumentKind.SOURCE_FORMAT: "sourceFormat", DocumentKind.CONVERTER_TABLE: "converterTable"}
SHOWN_SIZE = 12  # digits of a version in a text


@dataclass(frozen=True)
class VersionedDocument:
    """A document with the files that it names.

    Attributes:
        id: its name in the feed's definition; without one, the name of its file.
        files: by their path relative to the document's.
    """

    kind: DocumentKind
    id: str
    content: bytes = field(repr=False)
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @cached_property
    def version(self) -> str:
        """SHA-256 in hexadecimal: of the content, as `sha256sum` computes it, and of the files if there are any."""
        digest = hashlib.sha256(self.content)
        for name, data in sorted(self.files.items()):
            for part in (name.encode(), data):
                digest.update(len(part).to_bytes(8, "little") + part)
        return digest.hexdigest()

    def __str__(self) -> str:
        return f"{self.kind} {self.id} (version {self.version[:SHOWN_SIZE]})"

    @property
    def file_name(self) -> str:
        """Of the document itself, in a folder of its own."""
        return f"{self.kind.replace(' ', '-')}.xml"

    def contents(self) -> dict[str, bytes]:
        """The document and its files, by path within a folder of their own.

        Raises:
            DocumentError: a file's path leaves the folder.
        """
        for name in self.files:
            if not is_below(name):
                raise DocumentError(self.id, 1, f"names the file {name!r}, which is not below the document's folder")
        return {self.file_name: self.content, **self.files}


def read_document(kind: DocumentKind, path: Path) -> VersionedDocument:
    """Read a document and the files that it names, without checking more than that it is one of this kind.

    Raises:
        DocumentError: with file, line and reason.
        OSError: the document cannot be read.
    """
    content = path.read_bytes()
    root = parse_document(content, str(path))
    if (tag := ROOT_TAGS.get(kind)) is not None and root.tag != tag:
        raise root.error(f"the root element is <{root.tag}>; it must be <{tag}>")
    files = {}
    for node, name in _named_files(kind, root):
        try:
            files[name] = (path.parent / name).read_bytes()
        except OSError as unreadable:
            raise node.error(f"cannot read {path.parent / name}: {unreadable.strerror}") from None
    return VersionedDocument(kind, path.stem, content, files)


def is_below(name: str) -> bool:
    """Whether a relative path stays below its folder, wherever that is."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and path.parts != ()


def _named_files(kind: DocumentKind, root: Node) -> Iterator[tuple[Node, str]]:
    if kind is DocumentKind.SOURCE_FORMAT and "sbe" in root.attributes:
        yield root, root.need("sbe")
    if kind is DocumentKind.CONVERTER_TABLE:
        for node in root.all("map"):
            if "file" in node.attributes:
                yield node, node.need("file")
