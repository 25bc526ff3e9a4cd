"""`compile`: compiles kernels in advance, so that an adapter's first start does not wait for the compiler."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

from numba.core.event import Event, Listener, install_listener

from tandemfeed.adapter.conversion import CompiledConverter, ConverterTable
from tandemfeed.adapter.conversion.kernel.kernel_source import kernel_source
from tandemfeed.adapter.convert_command.documents import add_document_arguments, load_documents
from tandemfeed.adapter.kernel_cache import CACHE_FOLDER, MODULE_PREFIX
from tandemfeed.journal.commands.streams import Meter, Streams, meter
from tandemfeed.journal.compiled.compiling import FOLDER_VARIABLE

COMPILE_EVENT = "numba:compile"  # numba's event for each function that is not cached on disk
SUMMARY = "compile kernels in advance, so that an adapter's first start does not wait for the compiler"


def add_to(tasks: Any) -> None:
    """Add the task and its options."""
    task = tasks.add_parser(
        "compile",
        allow_abbrev=False,
        help=SUMMARY,
        description=f"{SUMMARY}. A kernel depends on all three documents and the datagram size, so give those of the "
        "feed. It is stored for the user who runs this command; `tandemfeed adapter` finds it under the same user.",
    )
    add_document_arguments(task, several=True)


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Compile the kernels. Exit status 0; 1 if kernels cannot be stored."""
    streams = Streams.of_process()
    if CACHE_FOLDER is None:
        streams.note(
            f"convert: no folder for compiled kernels is writable by this user only; name one in {FOLDER_VARIABLE}"
        )
        return 1
    for name, table in _tables(parser, arguments):
        streams.say(f"{name}: {_compile(name, table, streams)}")
        streams.out.flush()
    streams.say(f"stored in {CACHE_FOLDER}")
    return 0


def _tables(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Iterator[tuple[str, ConverterTable]]:
    """The tables. All are loaded before the first is compiled, so that an error in any of them shows immediately."""
    if len(arguments.shipped or ()) > 1 and (arguments.source_format or arguments.table):
        parser.error("--source-format and --table cannot be combined with several --shipped formats")
    if not arguments.shipped:
        table = load_documents(parser, arguments).table
        return iter([(table.name, table)])
    return iter([(name, load_documents(parser, arguments, name).table) for name in arguments.shipped])


def _compile(name: str, table: ConverterTable, streams: Streams) -> str:
    """Compile one table; returns the result as text."""
    began = time.perf_counter()
    progress = Progress(meter(streams, name, kernel_source(table).text.count("@compiled(")))
    with install_listener(COMPILE_EVENT, progress):
        try:
            CompiledConverter(table)
        finally:
            progress.meter.finish()
    seconds = time.perf_counter() - began
    if not progress.count:
        return f"already compiled; loaded in {seconds:.1f} s"
    return f"compiled {progress.count} functions in {seconds:.1f} s"


class Progress(Listener):  # type: ignore[misc]  # numba has no types
    """Follows the functions that numba compiles; the meter counts those of the table.

    Attributes:
        count: the number of functions compiled.
    """

    def __init__(self, shown: Meter) -> None:
        self.meter, self.count = shown, 0

    def on_start(self, event: Event) -> None:
        """Numba begins to compile a function."""
        self.meter.advance(0, self._function(event).__name__)

    def on_end(self, event: Event) -> None:
        """Numba has compiled a function and those that it calls."""
        self.count += 1
        if self._function(event).__module__.startswith(MODULE_PREFIX):
            self.meter.advance(1, self._function(event).__name__)

    @staticmethod
    def _function(event: Event) -> Any:
        return event.data["dispatcher"].py_func
