"""By which documents an adapter converts: its own, or those that the admin server sent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemfeed.adapter.cli import main
from tandemfeed.adapter.documents import (
    ConversionFiles,
    DocumentsMissing,
    claimed_conversions,
    conversion_files,
    own_conversion,
)
from tandemfeed.admin_server.feed.documents import table_documents, wire_conversions
from tandemfeed.admin_server.server import AdminServer
from tandemfeed.admin_server.settings import load_cluster
from tandemfeed.v1 import admin_pb2, common_pb2
from tests.admin_server.cluster_files import CLUSTER, EXAMPLES, running_server, write_settings

OWN = ConversionFiles(EXAMPLES / "source-format.xml", EXAMPLES / "converter-table.xml")
TABLE = f'[[feed.table]]\nid = "trades"\nfile = "{OWN.table}"\nsource_format = "{OWN.source_format}"\n'
WITH_TABLE = CLUSTER.replace("source_stream_ids = [1, 2]", 'source_stream_ids = [1, 2]\ntable = "trades"') + TABLE


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdminServer]:
    with running_server(tmp_path, cluster_text=WITH_TABLE) as running:
        yield running


@pytest.fixture
def registered(tmp_path: Path) -> admin_pb2.RegisterReply:
    """What the admin server answers for a feed with a table."""
    feed = load_cluster(write_settings(tmp_path, WITH_TABLE)[0])["equities"]
    channels = [common_pb2.ChannelDescription(channel_id=each.channel_id) for each in feed.channels]
    return admin_pb2.RegisterReply(
        feed=common_pb2.FeedDescription(name="equities", channels=channels),
        conversions=wire_conversions(feed),
        documents=table_documents(feed),
        message_model=feed.message_model.content,
    )


def test_the_documents_of_the_definition_are_written_by_version(
    registered: admin_pb2.RegisterReply, tmp_path: Path
) -> None:
    files = conversion_files(registered, None, tmp_path / "documents")
    assert files.keys() == {1}
    assert files[1].table.read_bytes() == OWN.table.read_bytes()
    assert files[1].source_format.read_bytes() == OWN.source_format.read_bytes()
    assert files[1].table.parent.name == hashlib.sha256(OWN.table.read_bytes()).hexdigest()
    assert conversion_files(registered, None, tmp_path / "documents") == files, "a restart finds them there"


def test_a_document_that_was_changed_on_its_way_is_not_used(
    registered: admin_pb2.RegisterReply, tmp_path: Path
) -> None:
    registered.documents[0].content += b"<!-- changed -->"
    with pytest.raises(DocumentsMissing, match="did not send the document of version"):
        conversion_files(registered, None, tmp_path / "documents")


def test_without_a_table_in_the_definition_the_adapter_needs_its_own(
    registered: admin_pb2.RegisterReply, tmp_path: Path
) -> None:
    del registered.conversions[:]
    with pytest.raises(DocumentsMissing, match="names no converter table for channel 1; start this adapter with --sou"):
        conversion_files(registered, None, tmp_path / "documents")
    assert conversion_files(registered, OWN, tmp_path / "documents") == {1: OWN}


def test_a_registration_says_by_what_the_adapter_converts(registered: admin_pb2.RegisterReply) -> None:
    assert own_conversion(None) == []
    first = own_conversion(OWN)
    assert first[0].converter_table.version == registered.conversions[0].converter_table.version
    model = hashlib.sha256(registered.message_model).hexdigest()
    for own in (first, []):
        (further,) = claimed_conversions(registered, own)
        assert (further.message_model.version, further.source_format) == (
            model,
            admin_pb2.DocumentVersion(version=further.source_format.version)
            if own
            else registered.conversions[0].source_format,
        )


def run(server: AdminServer, tmp_path: Path, *documents: str) -> None:
    state = server.folder.path
    options = {
        "--feed": "equities",
        "--name": "a",
        "--journal": str(tmp_path / "journal"),
        "--tls-cert": str(state / "certs" / "adapter-a.crt"),
        "--tls-key": str(state / "certs" / "adapter-a.key"),
        "--admin": server.endpoint,
        "--ca": str(state / "ca.pem"),
        "--identity": "adapter-a",
        "--secret-file": str(state / "secrets" / "adapter-a.secret"),
    }
    with pytest.raises(SystemExit) as ended:
        main([*(part for pair in options.items() for part in pair), *documents])
    assert ended.value.code == 2


def test_an_adapter_with_another_table_than_the_definition_ends_with_a_sentence(
    server: AdminServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.xml"
    table.write_bytes(OWN.table.read_bytes() + b"<!-- mine -->")
    run(server, tmp_path, "--source-format", str(OWN.source_format), "--table", str(table))
    version = hashlib.sha256(table.read_bytes()).hexdigest()[:12]
    assert f"the converter table of a has version {version}, but the definition of feed 'equities'" in (
        capsys.readouterr().err
    )


def test_source_format_and_table_are_given_together_or_not_at_all(
    server: AdminServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(server, tmp_path, "--table", str(OWN.table))
    assert "--source-format and --table belong together" in capsys.readouterr().err
