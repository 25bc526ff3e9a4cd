"""A feed's documents on the wire: message model, source formats, converter tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from tandemfeed.admin_server.settings import ChannelSettings, FeedSettings
from tandemfeed.feedcore.documents.versions import DocumentKind, VersionedDocument
from tandemfeed.v1 import admin_pb2

_WIRE_KINDS = {
    DocumentKind.MESSAGE_MODEL: admin_pb2.DOCUMENT_KIND_MESSAGE_MODEL,
    DocumentKind.SOURCE_FORMAT: admin_pb2.DOCUMENT_KIND_SOURCE_FORMAT,
    DocumentKind.CONVERTER_TABLE: admin_pb2.DOCUMENT_KIND_CONVERTER_TABLE,
}


def wire_version(document: VersionedDocument) -> admin_pb2.DocumentVersion:
    """A reference to a document."""
    return admin_pb2.DocumentVersion(kind=_WIRE_KINDS[document.kind], id=document.id, version=document.version)


def wire_document(document: VersionedDocument) -> admin_pb2.Document:
    """A document with its files."""
    return admin_pb2.Document(version=wire_version(document), content=document.content, files=document.files)


def wire_conversions(feed: FeedSettings) -> list[admin_pb2.ChannelConversion]:
    """By which documents the feed's definition has its channels converted."""
    return [
        admin_pb2.ChannelConversion(
            channel_id=channel.channel_id,
            source_format=wire_version(table.source_format),
            converter_table=wire_version(table.document),
            message_model=wire_version(feed.message_model),
        )
        for channel in feed.channels
        if (table := feed.table_of(channel)) is not None
    ]


def table_documents(feed: FeedSettings) -> list[admin_pb2.Document]:
    """The documents by which the feed's definition has its channels converted, each once."""
    found = documents_of(feed, feed.channels)
    return [wire_document(each) for each in found.values() if each.kind is not DocumentKind.MESSAGE_MODEL]


def documents_of(feed: FeedSettings, channels: Iterable[ChannelSettings]) -> dict[tuple[str, str], VersionedDocument]:
    """The documents of these channels, by id and version."""
    found: list[VersionedDocument] = [feed.message_model]
    for channel in channels:
        if (table := feed.table_of(channel)) is not None:
            found += [table.document, table.source_format]
    return {(each.id, each.version): each for each in found}
