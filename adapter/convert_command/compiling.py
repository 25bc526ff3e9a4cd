"""`compile`: kernels compiled ahead of need, at set-up, so that no start of an adapter waits for the compiler."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

from numba.core.event import Event, Listener, install_listener

from adapter.conversion import CompiledConverter, ConverterTable
from adapter.conversion.kernel_source import kernel_source
from adapter.convert_command.documents import add_document_arguments, load_documents
from adapter.kernel_cache import CACHE_FOLDER, FOLDER_VARIABLE, MODULE_PREFIX
from journal.commands.streams import Meter, Streams, meter

COMPILE_EVENT = "numba:compile"  # told for each function that is not on the disk yet
SUMMARY = "compile kernels ahead of need, so that no adapter's first start waits for the compiler"


def add_to(tasks: Any) -> None:
    """What it takes."""
    task = tasks.add_parser(
        "compile",
        help=SUMMARY,
        description=f"{SUMMARY}. A kernel is made of all three documents and the datagram size: give those of the "
        "feed. It is kept for the user who runs this, where `tandemfeed adapter` of the same user looks for it.",
    )
    add_document_arguments(task, several=True)


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Exit status 0; 1 if there is nowhere to keep a kernel."""
    streams = Streams.of_process()
    if CACHE_FOLDER is None:
        streams.note(
            f"convert: no folder for compiled kernels can be written by this user alone; name one in {FOLDER_VARIABLE}"
        )
        return 1
    for name, table in _tables(parser, arguments):
        streams.say(f"{name}: {_compile(name, table, streams)}")
        streams.out.flush()
    streams.say(f"kept in {CACHE_FOLDER}")
    return 0


def _tables(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Iterator[tuple[str, ConverterTable]]:
    """All of them are loaded before the first is compiled: what is wrong with one is told at once."""
    if len(arguments.shipped or ()) > 1 and (arguments.source_format or arguments.table):
        parser.error("--source-format and --table stand in for those of one shipped format, not of several")
    if not arguments.shipped:
        table = load_documents(parser, arguments).table
        return iter([(table.name, table)])
    return iter([(name, load_documents(parser, arguments, name).table) for name in arguments.shipped])


def _compile(name: str, table: ConverterTable, streams: Streams) -> str:
    """Compile one; what there is to say of it."""
    began = time.perf_counter()
    progress = Progress(meter(streams, name, kernel_source(table).text.count("@compiled(")))
    with install_listener(COMPILE_EVENT, progress):
        try:
            CompiledConverter(table)
        finally:
            progress.meter.finish()
    seconds = time.perf_counter() - began
    if not progress.count:
        return f"was compiled before; loaded in {seconds:.1f} s"
    return f"compiled, {progress.count} functions in {seconds:.1f} s"


class Progress(Listener):  # type: ignore[misc]  # numba has no types
    """Hears of each function that numba compiles; those of the table are what the meter counts.

    Attributes:
        count: functions compiled.
    """

    def __init__(self, shown: Meter) -> None:
        self.meter, self.count = shown, 0

    def on_start(self, event: Event) -> None:
        """A function's turn."""
        self.meter.advance(0, self._function(event).__name__)

    def on_end(self, event: Event) -> None:
        """It is done, and those that it calls."""
        self.count += 1
        if self._function(event).__module__.startswith(MODULE_PREFIX):
            self.meter.advance(1, self._function(event).__name__)

    @staticmethod
    def _function(event: Event) -> Any:
        return event.data["dispatcher"].py_func
