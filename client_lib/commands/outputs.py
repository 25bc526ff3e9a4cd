"""How commands print or write messages: text, a table, raw bytes, JSON lines, CSV, Parquet.

CSV and Parquet have one table for each message type; messages with groups or variable data are in neither. The other
formats also have the events.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np

from tandemfeed.client_lib.items import Batch, Event, Filled, Item
from tandemfeed.client_lib.messages.message import Message
from tandemfeed.client_lib.messages.values import shown
from tandemfeed.client_lib.tables import Batches
from tandemfeed.runtime.durable import PRIVATE_FILE, flush_file, make_folder, sync_name

FORMATS = ("text", "table", "raw", "json", "csv", "parquet")
ROWS_PER_GROUP = 65_536  # messages that wait until they are written to tables


class OutputRefused(Exception):
    """The messages cannot be written in this way."""


class Output(Protocol):
    """Writes items, in order.

    Attributes:
        files: that it has made.
    """

    files: list[Path]

    def write(self, items: Iterable[Item]) -> None:
        """Write the next items."""

    def close(self) -> None:
        """Finish the output."""


def add_output_arguments(parser: argparse.ArgumentParser, default: str | None) -> None:
    """Add `--as`, `-o` and `--kind`."""
    parser.add_argument(
        "--as",
        dest="format",
        choices=FORMATS,
        default=default,
        help="how to print messages (default: " + (default or "a live view instead") + ")",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="PATH",
        help="write to this file; CSV and Parquet: without a suffix it is a folder with a file for each message type",
    )
    parser.add_argument("--kind", default="", metavar="NAME", help="only messages of this type")


def require_kind(arguments: argparse.Namespace, classes: Mapping[str, object]) -> None:
    """Check that `--kind` names a message of the feed: otherwise nothing would ever be printed.

    Raises:
        OutputRefused: it does not.
    """
    if arguments.kind and arguments.kind not in classes:
        raise OutputRefused(f"--kind {arguments.kind}: the feed has no such message; it has {', '.join(classes)}")


@contextmanager
def open_output(arguments: argparse.Namespace) -> Iterator[Output]:
    """The output that the arguments ask for; it is finished at the end, also after an error."""
    kind, path = arguments.kind, arguments.output
    output: Output
    if arguments.format in ("csv", "parquet"):
        if path is None and arguments.format == "parquet":
            raise OutputRefused("--as parquet needs -o FILE or -o FOLDER")
        output = TableOutput(arguments.format, path, kind)
    elif path is None:
        output = LineOutput(sys.stdout, arguments.format, kind)
    else:
        _make_private(path)
        output = LineOutput(path.open("w", encoding="utf-8"), arguments.format, kind, path)
    try:
        yield output
    finally:
        output.close()
    for each in output.files:
        if each.is_file():  # not a pipe or a terminal
            flush_file(each)
            sync_name(each)


def _make_private(path: Path) -> None:
    """Create a file for this user only; an existing one, which may be a pipe, is left as it is."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE))


class LineOutput:
    """A line for each message and event.

    Args:
        path: of the stream, if it is a file.
    """

    def __init__(self, stream: TextIO, form: str, kind: str, path: Path | None = None) -> None:
        self._stream, self._kind = stream, kind
        self.files = [] if path is None else [path]
        lines: dict[str, Callable[[Message], str]] = {"text": _text, "raw": _raw, "json": _json, "table": Rows().line}
        self._line, self._event = lines[form], _json_event if form == "json" else _text_event

    def write(self, items: Iterable[Item]) -> None:
        """Print the items."""
        for item in items:
            batch = item.batch if isinstance(item, Filled) else item
            if not isinstance(batch, Batch):
                print(self._event(batch), file=self._stream)
                continue
            if isinstance(item, Filled):
                print(self._event(item), file=self._stream)
            for message in batch.messages():
                if self._kind in ("", type(message).__name__):
                    print(self._line(message), file=self._stream)
        self._stream.flush()

    def close(self) -> None:
        """Close the file, unless it is standard output."""
        if self._stream is not sys.stdout:
            self._stream.close()


class Rows:
    """Lines of aligned columns; a heading when the message type changes."""

    def __init__(self) -> None:
        self._kind: type[Message] | None = None
        self._widths: list[int] = []

    def line(self, message: Message) -> str:
        """The line of a message, after a heading if it needs one."""
        origin, fields = message.origin, message.to_dict()
        cells = [str(origin.message_seq), f"{origin.source_stream_id}:{origin.source_seq}"]
        cells += [shown(value) for value in fields.values()]
        heading = ""
        if type(message) is not self._kind:
            self._kind = type(message)
            names = ["message_seq", type(message).__name__, *fields]
            self._widths = [max(len(name), len(cell)) for name, cell in zip(names, cells, strict=True)]
            heading = self._row(names) + "\n"
        self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, cells, strict=True)]
        return heading + self._row(cells)

    def _row(self, cells: list[str]) -> str:
        return "  ".join(cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True)).rstrip()


class TableOutput:
    """CSV or Parquet, by columns.

    Args:
        path: a file for the only message type, a folder for several; None: standard output (CSV).
    """

    def __init__(self, form: str, path: Path | None, kind: str) -> None:
        self._form, self._path, self._kind = form, path, kind
        self._is_folder = path is not None and not path.suffix
        self._writers: dict[str, Any] = {}
        self.files: list[Path] = []
        self._waiting: list[Batch] = []
        self._count = 0

    def write(self, items: Iterable[Item]) -> None:
        """Keep the messages, until a row group is full."""
        batches = (item.batch if isinstance(item, Filled) else item for item in items)
        for batch in batches:
            if isinstance(batch, Batch):
                self._waiting.append(batch)
                self._count += batch.message_count
        if self._count >= ROWS_PER_GROUP:
            self._flush()

    def close(self) -> None:
        """Write the rest, and finish the files."""
        self._flush()
        for writer in self._writers.values():
            writer.close()

    def _flush(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting, self._count = self._waiting, [], 0
        for name, table in Batches(waiting, waiting[0].classes).to_arrow().items():
            if self._kind in ("", name):
                self._write(name, table)

    def _write(self, name: str, table: Any) -> None:
        import pyarrow as pa

        if self._form == "csv":
            from tandemfeed.tables.columns import flat

            table = flat(table)
        if name not in self._writers:
            self._writers[name] = self._open(name, table.schema)
        try:
            self._writers[name].write_batch(table)
        except (pa.ArrowInvalid, ValueError) as other:
            raise OutputRefused(f"the columns of {name} have changed with the message model: begin again") from other

    def _open(self, name: str, schema: Any) -> Any:
        import pyarrow.csv
        import pyarrow.parquet

        if self._writers and not self._is_folder:
            known = ", ".join((*self._writers, name))
            raise OutputRefused(f"the messages have the types {known}; choose one with --kind, or give a folder as -o")
        place: Any = self._path or os.fdopen(os.dup(sys.stdout.fileno()), "wb")
        if self._is_folder:
            assert self._path is not None
            make_folder(self._path)
            place = self._path / f"{name}.{self._form}"
        if isinstance(place, Path):
            _make_private(place)
            self.files.append(place)
        writer = pyarrow.csv.CSVWriter if self._form == "csv" else pyarrow.parquet.ParquetWriter
        return writer(place, schema)


def _text(message: Message) -> str:
    origin = message.origin
    return f"{origin.message_seq} {origin.source_stream_id}:{origin.source_seq} {message}"


def _raw(message: Message) -> str:
    origin = message.origin
    return f"{origin.message_seq} {origin.source_stream_id}:{origin.source_seq} {bytes(message).hex()}"


def _json(message: Message) -> str:
    origin = message.origin
    numbers = {"message_seq": origin.message_seq, "source_stream_id": origin.source_stream_id}
    document = {"type": type(message).__name__, **numbers, "source_seq": origin.source_seq}
    return json.dumps({**document, "fields": message.to_dict()}, default=_plain)


def _text_event(event: Event) -> str:
    return f"# late, fills an earlier gap: {event.batch}" if isinstance(event, Filled) else f"# {event}"


def _json_event(event: Event) -> str:
    if isinstance(event, Filled):
        batch = event.batch
        seqs = {"first_message_seq": batch.first_message_seq, "end_message_seq": batch.end_message_seq}
        return json.dumps({"event": "Filled", "channel_id": batch.channel_id, **seqs})
    assert is_dataclass(event)
    return json.dumps({"event": type(event).__name__, **asdict(event)}, default=_plain)


def _plain(value: Any) -> Any:
    """What JSON has no type for: decimals and times are texts, so that no digit is lost."""
    if isinstance(value, np.datetime64):
        return f"{value}Z" if np.datetime_data(value)[0] == "ns" else str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, frozenset | set):
        return sorted(value, key=str)
    if isinstance(value, Decimal | date):
        return str(value)
    return value.tolist() if isinstance(value, np.generic) else str(value)
