"""The documents that the cluster file names by their paths, read and checked with the file.

The server checks a converter table only as far as it must to hand it out; an adapter that compiles it finds the rest.
"""

from __future__ import annotations

from pathlib import Path

from tandemfeed.feedcore.documents.message_model import load_message_model
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.documents.versions import DocumentKind, VersionedDocument, read_document
from tandemfeed.feedcore.documents.xml_document import DocumentError, parse_document
from tandemfeed.transport.settings_file import InvalidSetting, shown


class DocumentFile:
    """The value of a key that names a document; a class of each kind, because the type of the key says which one."""

    def __init__(self, document: VersionedDocument) -> None:
        self.document = document


class MessageModelFile(DocumentFile):
    """An SBE message schema."""


class SourceFormatFile(DocumentFile):
    """A source format."""

    @property
    def title(self) -> str:
        """Its name, which converter tables refer to."""
        return parse_document(self.document.content, self.document.id).title()


class ConverterTableFile(DocumentFile):
    """A converter table."""

    @property
    def source_format_name(self) -> str:
        """The name of the source format that it is made for."""
        return parse_document(self.document.content, self.document.id).need("sourceFormat")


_KINDS: dict[type[DocumentFile], tuple[DocumentKind, str]] = {
    MessageModelFile: (DocumentKind.MESSAGE_MODEL, "an SBE message schema"),
    SourceFormatFile: (DocumentKind.SOURCE_FORMAT, "a source format"),
    ConverterTableFile: (DocumentKind.CONVERTER_TABLE, "a converter table"),
}


def read_document_file(folder: Path, made: type[DocumentFile], name: object) -> DocumentFile:
    """Read and check a document that a key of the cluster file names.

    Args:
        folder: that of the cluster file.
        made: the type of the key.

    Raises:
        InvalidSetting: with the reason.
    """
    kind, described = _KINDS[made]
    if not isinstance(name, str):
        raise InvalidSetting(f"is {shown(name)}; it must be the path of {described} (XML)")
    path = folder / name
    try:
        _check(kind, path)
        return made(read_document(kind, path))
    except OSError as bad:
        raise InvalidSetting(f"cannot be read: {path}: {bad.strerror}") from bad
    except DocumentError as bad:
        raise InvalidSetting(f"is not a usable {kind}: {bad}") from bad


def _check(kind: DocumentKind, path: Path) -> None:
    match kind:
        case DocumentKind.MESSAGE_MODEL:
            load_message_model(path.read_bytes(), str(path))
        case DocumentKind.SOURCE_FORMAT:
            load_source_format(path)
        case DocumentKind.CONVERTER_TABLE:
            parse_document(path.read_bytes(), str(path)).need("sourceFormat")
