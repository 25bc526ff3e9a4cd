"""Documents in a page's code blocks, loaded by the code that loads the reader's own."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

from lxml import etree

from tandemfeed.adapter.conversion.loading.table_loading import load_table
from tandemfeed.adapter.conversion.table.user_functions import known_functions
from tandemfeed.admin_server.identity.issuers import Issuers
from tandemfeed.admin_server.policy.document import load_policy
from tandemfeed.admin_server.settings import load_cluster
from tandemfeed.deploy.cluster.topology import EXAMPLES
from tandemfeed.feedcore.documents.message_model import load_message_model
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.wire.output_packet import DATAGRAM_SIZE_DEFAULT
from tests.docs.blocks import ROOT
from tests.docs.commands import BadExample

SCHEMAS = {
    "sourceFormat": ROOT / "feedcore" / "documents" / "source-format.xsd",
    "converterTable": ROOT / "adapter" / "conversion" / "converter-table.xsd",
}
DIAGRAMS = ("flowchart", "sequenceDiagram", "stateDiagram-v2")


def load_toml(text: str, folder: Path) -> None:
    """A cluster file, a policy, or a file of issuers."""
    if not (folder / "message-model.xml").exists():
        shutil.copy(EXAMPLES / "message-model.xml", folder)
    keys = set(tomllib.loads(text))
    path = folder / "document.toml"
    path.write_text(text)
    if keys == {"feed"}:
        load_cluster(path)
    elif keys <= {"identity", "group", "rule"}:
        load_policy(path)
    elif keys == {"issuer"}:
        Issuers(path)
    else:
        raise BadExample(f"neither a cluster file, a policy nor a file of issuers: {sorted(keys)}")


def load_xml(text: str, folder: Path) -> None:
    """A source format, a message model, or a converter table. It stays in the folder, so that a table on the page
    finds the format and the model before it."""
    root = ET.fromstring(text)
    kind = root.tag.rpartition("}")[2]
    path = folder / {"sourceFormat": "source-format.xml", "messageSchema": "message-model.xml"}.get(kind, "table.xml")
    path.write_text(text)
    if kind == "sourceFormat":
        load_source_format(path)
    elif kind == "messageSchema":
        load_message_model(path)
    elif kind == "converterTable":
        source_format, model = load_source_format(folder / "source-format.xml"), folder / "message-model.xml"
        load_table(path, source_format, load_message_model(model), DATAGRAM_SIZE_DEFAULT, known_functions())
    else:
        raise BadExample(f"<{kind}> is not a document of ours")


def check_xml(text: str) -> None:
    """A document, or elements of a converter table, against the shipped schema. An ellipsis stands for what the page
    leaves out."""
    text = text.replace("…", "")
    kind = re.match(r"\s*<(\w+)", text)
    if kind is not None and kind[1] not in SCHEMAS:
        text = f'<converterTable name="page" sourceFormat="page">{text}</converterTable>'
    document = etree.fromstring(text)
    schema = etree.XMLSchema(etree.parse(str(SCHEMAS[document.tag])))
    if not schema.validate(document):
        raise BadExample(str(schema.error_log))


def load_json(text: str, _folder: Path) -> None:
    """Any JSON."""
    json.loads(text)


def check_mermaid(text: str, _folder: Path) -> None:
    """A diagram of a kind that the pages use, with at least one arrow."""
    if text.split(maxsplit=1)[0] not in DIAGRAMS or not re.search(r"-->|->>|<-\.|==>", text):
        raise BadExample(f"not a diagram of the kinds {', '.join(DIAGRAMS)}")
