"""The three documents that the tasks of `tandemfeed convert` use: files named by options, or shipped ones."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from tandemfeed.adapter.conversion import ConverterTable
from tandemfeed.adapter.conversion.formats import FOLDER, document
from tandemfeed.adapter.conversion.loading.every_field import every_field
from tandemfeed.adapter.conversion.loading.table_loading import load_table
from tandemfeed.adapter.conversion.table.user_functions import known_functions
from tandemfeed.feedcore.documents.message_model import MessageModel, load_message_model
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.documents.source_layout import SourceFormat
from tandemfeed.feedcore.wire.output_packet import DATAGRAM_SIZE_DEFAULT

WHOLE_MESSAGE_SIZE_MAX = 65_535  # of a file's messages, which need not fit into a datagram of a feed
TABLE_SUFFIX = "-to-tick.xml"
SHIPPED = tuple(sorted(path.name.removesuffix(TABLE_SUFFIX) for path in FOLDER.glob(f"*{TABLE_SUFFIX}")))


@dataclass(frozen=True, slots=True)
class Documents:
    """The three loaded documents. Attributes: made_model: the message model, if `--every-field` made it."""

    source_format: SourceFormat
    model: MessageModel
    table: ConverterTable
    made_model: bytes | None = None


def add_document_arguments(task: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add the options that choose the documents.

    Args:
        several: `--shipped` takes more than one name.
    """
    task.add_argument(
        "--shipped",
        metavar="NAME",
        nargs="+" if several else None,
        help=f"use the documents of a shipped format: {', '.join(SHIPPED)}",
    )
    if not several:
        task.add_argument(
            "--every-field",
            action="store_true",
            help="keep the venue's own messages with every field, instead of those of a message model",
        )
    task.add_argument("--source-format", type=Path, metavar="FILE", help="source format (XML)")
    task.add_argument("--table", type=Path, metavar="FILE", help="converter table (XML)")
    task.add_argument("--message-model", type=Path, metavar="FILE", help="message model (SBE schema, XML)")
    task.add_argument(
        "--datagram-size-max",
        type=int,
        default=DATAGRAM_SIZE_DEFAULT,
        metavar="BYTES",
        help="the feed's datagram_size_max (default: %(default)s)",
    )


def shipped_documents(name: str) -> list[Path | None]:
    """The paths of source format, table and message model of a shipped format.

    Raises:
        FileNotFoundError: the text lists the shipped formats.
    """
    return [document(f"{name}.xml"), document(f"{name}{TABLE_SUFFIX}"), document("tick.xml")]


def load_documents(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, shipped: str | None = None
) -> Documents:
    """Load and check the documents. A document named by an option replaces the shipped one.

    Args:
        shipped: the name of a shipped format; None: the options name all three documents.

    Raises:
        DocumentError, OSError: with the file and the reason.
    """
    if getattr(arguments, "every_field", False):
        return _every_field(parser, arguments, shipped)
    given = (arguments.source_format, arguments.table, arguments.message_model)
    defaults = shipped_documents(shipped) if shipped else [None, None, None]
    source_path, table_path, model_path = (one or other for one, other in zip(given, defaults, strict=True))
    if source_path is None or table_path is None or model_path is None:
        parser.error("give --shipped NAME, or --source-format, --table and --message-model")
    source_format, model = load_source_format(source_path), load_message_model(model_path)
    return Documents(
        source_format,
        model,
        load_table(table_path, source_format, model, arguments.datagram_size_max, known_functions()),
    )


def _every_field(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, shipped: str | None = None
) -> Documents:
    """A source format, and the documents made of it that keep every field."""
    if arguments.table or arguments.message_model:
        parser.error("--every-field makes the table and the message model; it cannot be combined with yours")
    path = arguments.source_format or (document(f"{shipped}.xml") if shipped else None)
    if path is None:
        parser.error("give --shipped NAME or --source-format")
    source_format = load_source_format(path)
    made = every_field(source_format)
    model = load_message_model(made.message_model)
    table = load_table(made.converter_table, source_format, model, WHOLE_MESSAGE_SIZE_MAX)
    return Documents(source_format, model, table, made.message_model)
