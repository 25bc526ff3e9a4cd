"""Loads the three documents and makes a converter from them."""

from __future__ import annotations

from pathlib import Path

from tandemfeed.adapter.conversion.compiled import CompiledConverter
from tandemfeed.adapter.conversion.loading.table_loading import load_table
from tandemfeed.adapter.conversion.table.table import ConverterTable
from tandemfeed.adapter.conversion.table.user_functions import known_functions
from tandemfeed.feedcore.documents.message_model import load_message_model
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.wire.output_packet import DATAGRAM_SIZE_DEFAULT


def load_checked_table(
    source_format: Path, table: Path, message_model: Path | bytes, datagram_size_max: int = DATAGRAM_SIZE_DEFAULT
) -> ConverterTable:
    """Load and check the three documents.

    Raises:
        DocumentError: with file, line and reason.
    """
    return load_table(
        table,
        load_source_format(source_format),
        load_message_model(message_model),
        datagram_size_max,
        known_functions(),
    )


def load_converter(
    source_format: Path, table: Path, message_model: Path | bytes, datagram_size_max: int = DATAGRAM_SIZE_DEFAULT
) -> CompiledConverter:
    """Load, check and compile; a table that was compiled before is loaded from the cache on disk.

    Raises:
        DocumentError: with file, line and reason.
    """
    return CompiledConverter(load_checked_table(source_format, table, message_model, datagram_size_max))
