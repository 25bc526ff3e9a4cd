"""What a query reads: the documents, the message type, and how a recording becomes record batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from tandemfeed.adapter.conversion import ConverterTable
from tandemfeed.adapter.conversion.formats.files.tick_table import TableOptions
from tandemfeed.adapter.conversion.kernel.kernel_source import kernel_source
from tandemfeed.adapter.conversion.loading.table_loading import load_table
from tandemfeed.adapter.conversion.table.user_functions import known_functions
from tandemfeed.adapter.convert_command.documents import SHIPPED, shipped_documents
from tandemfeed.adapter.convert_command.input.inputs import READ_ERRORS, Input, Line
from tandemfeed.adapter.convert_command.input.packet_values import reads_packet
from tandemfeed.adapter.convert_command.input.reading import CAPTURE_READERS, READERS, default_reader
from tandemfeed.feedcore.documents.message_model import MessageModel, load_message_model
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.documents.source_layout import SourceFormat
from tandemfeed.feedcore.wire.output_packet import DATAGRAM_SIZE_DEFAULT
from tandemfeed.offline.ticks.model_rows import ModelRows, rows_of
from tandemfeed.offline.ticks.recordings import Recording
from tandemfeed.offline.ticks.rows import (
    VENUE_FIELDS,
    VENUE_SEQ,
    VENUE_STREAM,
    RecordBatch,
    Rows,
    shown_batch,
    shown_schema,
)
from tandemfeed.offline.ticks.source_rows import SourceRows
from tandemfeed.offline.ticks.tick_quarantine import TickQuarantine
from tandemfeed.offline.ticks.venue_columns import VenueColumns
from tandemfeed.spark_feed.spark.errors import TableError
from tandemfeed.spark_feed.spark.options import chosen, required
from tandemfeed.spark_feed.spark.table.message_table import TIMES

SHIPPED_TABLE = "shipped"


@dataclass(frozen=True)
class TickTable:
    """The messages of one type. It goes to the executors, which need no documents.

    Args:
        message_name: of the message model if there is a converter table, else of the source format.
        reader: one of READERS.
        times: one of `message_table.TIMES`.
        session: trading day YYYYMMDD, `path`, or empty.
    """

    source_format: SourceFormat
    model: MessageModel | None
    converter_table: ConverterTable | None
    message_name: str
    reader: str
    times: str
    session: str = ""
    lines: tuple[Line, ...] = ()
    options: TableOptions = field(default_factory=TableOptions)

    def arrow_schema(self) -> Any:
        """The columns, as Spark shows them."""
        if self.model is not None:
            none = rows_of(self.model.schema.messages[self.message_name]).batch()
        else:
            none = self._source_rows(None).rest()
        fields = shown_schema(none, self.times)
        return pa.schema([*VENUE_FIELDS, *fields]) if self.reader in CAPTURE_READERS else fields

    def batches(self, recording: Recording, schema: Any, quarantine: TickQuarantine) -> Iterator[RecordBatch]:
        """The messages of a recording, with the columns of an Arrow schema.

        Raises:
            TableError: a file cannot be read at all, or no datagram follows the format.
        """
        table = self.converter_table
        given = Input(
            recording.paths,
            self.source_format,
            self.options,
            self.lines,
            keeps_times=table is not None and reads_packet(table, "sent_at_ns"),
            keeps_streams=table is not None and reads_packet(table, "source_stream_id"),
        )
        rows = self._rows(recording.session(self.session), schema.names)
        venue = VenueColumns() if {VENUE_STREAM, VENUE_SEQ}.intersection(schema.names) else None
        try:
            for chunk in READERS[self.reader](given, quarantine):
                if venue is not None and quarantine.numbers is not None:
                    venue.newest = quarantine.numbers()
                for batch in rows.take(chunk, venue.add if venue else None):
                    yield shown_batch(batch, schema, venue.take() if venue else {})
                quarantine.add_messages(rows.take_refused())
        except READ_ERRORS as reason:
            raise TableError(
                f"{reason}; the reader is {self.reader!r}: give another one with option 'reader'"
            ) from None
        if (batch := rows.rest()).num_rows:
            yield shown_batch(batch, schema, venue.take() if venue else {})
        quarantine.message_counts = rows.refused_counts()
        if quarantine.all_were_refused:
            count = f"none of the {quarantine.datagram_count:,} datagrams"
            raise TableError(
                f"{recording.name}: {count} follows the format that the reader {self.reader!r} expects; "
                "`tandemfeed convert sniff` names a reader that fits"
            )

    def _rows(self, session: int, names: list[str]) -> Rows:
        """What collects the rows.

        Args:
            names: the columns that are read.
        """
        if self.converter_table is None or self.model is None:
            return self._source_rows(names)
        schema = self.model.schema
        return ModelRows(self.converter_table, schema.messages[self.message_name], schema.schema_id, session)

    def _source_rows(self, names: list[str] | None) -> SourceRows:
        return SourceRows(self.source_format, self.source_format.messages[self.message_name], names)


def tick_table(options: Any) -> TickTable:
    """The table that the options describe.

    Raises:
        TableError: an option is missing or wrong; the text says what to give.
        DocumentError, OSError: a document cannot be used.
    """
    name, table_name = required(options, "format"), options.get("table", "")
    shipped = shipped_documents(name) if name in SHIPPED else [None, None, None]
    source_format = load_source_format(_document(name, shipped[0], "format", "a shipped format or a file"))
    model = converter_table = None
    if table_name:
        table_path = shipped[1] if table_name == SHIPPED_TABLE else Path(table_name)
        if table_path is None:
            raise TableError(f"option 'table' is {SHIPPED_TABLE!r}, but {name!r} is not shipped; give a file")
        model_path = Path(options["model"]) if options.get("model") else shipped[2]
        model = load_message_model(_document("", model_path, "model", "the file of the message model"))
        converter_table = load_table(table_path, source_format, model, DATAGRAM_SIZE_DEFAULT, known_functions())
    return TickTable(
        source_format,
        model,
        converter_table,
        _message(options, source_format, model),
        _reader(options, source_format),
        chosen(options, "times", TIMES),
        _session(options, converter_table),
        _lines(options),
        TableOptions(options.get("symbol", ""), options.get("timeUnit", "ns")),
    )


def _document(name: str, shipped: Path | None, option: str, what: str) -> Path:
    path = shipped or Path(name)
    if not path.is_file():
        raise TableError(f"option {option!r} must be {what}, not {name!r}; shipped are {', '.join(SHIPPED)}")
    return path


def _message(options: Any, source_format: SourceFormat, model: MessageModel | None) -> str:
    messages = source_format.messages if model is None else model.schema.messages
    name: str = options.get("message", "") or (next(iter(messages)) if len(messages) == 1 else "")
    if name not in messages:
        found = f"option 'message' is {name!r}" if name else "option 'message' is missing"
        raise TableError(f"{found}; a table has messages of one type: choose one of {', '.join(messages)}")
    if model is None and source_format.messages[name].parts:
        raise TableError(
            f"{name} has groups or texts of variable length; give a converter table with option 'table' for its columns"
        )
    return name


def _reader(options: Any, source_format: SourceFormat) -> str:
    reader: str = options.get("reader", "") or default_reader(source_format) or ""
    if reader not in READERS:
        raise TableError(f"option 'reader' is {reader!r}; it must be one of {', '.join(sorted(READERS))}")
    if options.get("lines") and reader not in CAPTURE_READERS:
        raise TableError(f"option 'lines' selects from captures; the reader {reader!r} reads none")
    return reader


def _session(options: Any, table: ConverterTable | None) -> str:
    session: str = options.get("session", "")
    if session not in ("", "path") and not (len(session) == len("YYYYMMDD") and session.isdecimal()):
        raise TableError(f"option 'session' is {session!r}; it must be a day YYYYMMDD, or 'path'")
    if table is not None and not session and kernel_source(table).zones:
        raise TableError("option 'session' is missing: this table reads times since midnight; give YYYYMMDD or 'path'")
    return session


def _lines(options: Any) -> tuple[Line, ...]:
    texts = [text.strip() for text in options.get("lines", "").split(",") if text.strip()]
    try:
        return tuple(Line.parse(text) for text in texts)
    except ValueError as reason:
        raise TableError(f"option 'lines': {reason}; give ADDRESS or ADDRESS:PORT, separated by commas") from None
