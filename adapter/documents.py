"""The source format and the converter table of each channel: this adapter's own, or those of the feed's definition.

Documents from the admin server are written to a folder beside the journal, one for each version, so that errors name a
file that can be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tandemfeed.feedcore.documents.versions import DocumentKind, VersionedDocument, read_document
from tandemfeed.runtime import durable
from tandemfeed.v1 import admin_pb2

EVERY_CHANNEL = 0  # used as the channel_id before this adapter has learnt the feed's channels

_KINDS = {
    admin_pb2.DOCUMENT_KIND_MESSAGE_MODEL: DocumentKind.MESSAGE_MODEL,
    admin_pb2.DOCUMENT_KIND_SOURCE_FORMAT: DocumentKind.SOURCE_FORMAT,
    admin_pb2.DOCUMENT_KIND_CONVERTER_TABLE: DocumentKind.CONVERTER_TABLE,
}


class DocumentsMissing(Exception):
    """The feed's definition does not name the documents of a channel, or the server did not send them."""


class ConversionFiles(NamedTuple):
    """The files by which a channel is converted."""

    source_format: Path
    table: Path


def own_conversion(files: ConversionFiles | None) -> list[admin_pb2.ChannelConversion]:
    """What a registration says of this adapter's own files (None: it has none).

    Raises:
        DocumentError, OSError: a file cannot be used.
    """
    if files is None:
        return []
    source_format = read_document(DocumentKind.SOURCE_FORMAT, files.source_format)
    table = read_document(DocumentKind.CONVERTER_TABLE, files.table)
    return [
        admin_pb2.ChannelConversion(
            channel_id=EVERY_CHANNEL,
            source_format=admin_pb2.DocumentVersion(version=source_format.version),
            converter_table=admin_pb2.DocumentVersion(version=table.version),
        )
    ]


def claimed_conversions(
    registered: admin_pb2.RegisterReply, own: list[admin_pb2.ChannelConversion]
) -> list[admin_pb2.ChannelConversion]:
    """What further registrations of this start say, when the feed's definition may name other documents.

    Args:
        own: what the first registration said.
    """
    model = VersionedDocument(DocumentKind.MESSAGE_MODEL, "", registered.message_model)
    claimed = own or list(registered.conversions)
    for each in claimed:
        each.message_model.version = model.version
    return claimed


def conversion_files(
    registered: admin_pb2.RegisterReply, own: ConversionFiles | None, folder: Path
) -> dict[int, ConversionFiles]:
    """The files by which to convert each channel of the feed.

    Args:
        folder: where the documents of the feed's definition are written.

    Raises:
        DocumentsMissing: there are none for a channel.
        DocumentError: a document names a file outside its folder.
        OSError: a document cannot be written.
    """
    if own is not None:
        return {channel.channel_id: own for channel in registered.feed.channels}
    documents = dict(_received(registered))
    named = {each.channel_id: each for each in registered.conversions}
    files = {}
    for channel in registered.feed.channels:
        conversion = named.get(channel.channel_id)
        if conversion is None:
            raise DocumentsMissing(
                f"the definition of feed {registered.feed.name!r} names no converter table for channel "
                f"{channel.channel_id}; start this adapter with --source-format and --table"
            )
        versions = (conversion.source_format.version, conversion.converter_table.version)
        files[channel.channel_id] = ConversionFiles(*(_saved(documents, version, folder) for version in versions))
    return files


def _received(registered: admin_pb2.RegisterReply) -> Iterator[tuple[str, VersionedDocument]]:
    for each in registered.documents:
        document = VersionedDocument(_KINDS[each.version.kind], each.version.id, each.content, dict(each.files))
        yield document.version, document  # computed here: a document that was damaged on its way is not found


def _saved(documents: dict[str, VersionedDocument], version: str, folder: Path) -> Path:
    document = documents.get(version)
    if document is None:
        raise DocumentsMissing(f"the admin server did not send the document of version {version}")
    return save_document(document, folder / version)


def save_document(document: VersionedDocument, folder: Path) -> Path:
    """Write a document and its files into a folder, for this user only; return the document's path.

    Raises:
        DocumentError: a file's path leaves the folder.
        OSError: a file cannot be written.
    """
    for name, data in document.contents().items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != data:
            durable.make_folder(path.parent)
            durable.replace_file(path, data)
    return folder / document.file_name
