"""`compile`: compiles kernels in advance, so that an adapter's first start does not wait for the compiler."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from numba.core.event import Event, Listener, install_listener

from tandemfeed.adapter.conversion import CompiledConverter, ConverterTable
from tandemfeed.adapter.conversion.kernel.kernel_source import kernel_source
from tandemfeed.adapter.convert_command.captures import compile_ahead as captures
from tandemfeed.adapter.convert_command.documents import add_document_arguments, load_documents
from tandemfeed.adapter.kernel_cache import CACHE_FOLDER, MODULE_PREFIX
from tandemfeed.journal.commands.streams import Meter, Streams, meter
from tandemfeed.journal.compile_ahead import compile_ahead
from tandemfeed.journal.compiled.compile_report import COMPILE_EVENT
from tandemfeed.journal.compiled.places import FOLDER_VARIABLE

SUMMARY = "compile kernels in advance, so that an adapter's first start does not wait for the compiler"


def add_to(tasks: Any) -> None:
    """Add the task and its options."""
    task = tasks.add_parser(
        "compile",
        allow_abbrev=False,
        help=SUMMARY,
        description=f"{SUMMARY}. A kernel depends on all three documents and the datagram size, so give those of the "
        "feed. It is stored for the user who runs this command; `tandemfeed adapter` finds it under the same user. "
        "The functions of the journal, and those that read captures, are compiled too.",
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
    tables = _tables(parser, arguments)
    _report("journal", Progress(meter(streams, "journal", None), "tandemfeed.journal"), compile_ahead, streams)
    reading = Progress(meter(streams, "captures", None), captures.MODULE)
    _report("captures", reading, captures.compile_captures, streams)
    for name, table in tables:
        progress = Progress(meter(streams, name, kernel_source(table).function_count), MODULE_PREFIX)
        _report(name, progress, partial(CompiledConverter, table), streams)
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


def _report(name: str, progress: Progress, compile_all: Callable[[], object], streams: Streams) -> None:
    """Compile, with progress, and print the result."""
    began = time.perf_counter()
    with install_listener(COMPILE_EVENT, progress):
        try:
            compile_all()
        finally:
            progress.meter.finish()
    seconds = time.perf_counter() - began
    if progress.count:
        streams.say(f"{name}: compiled {progress.count} functions in {seconds:.1f} s")
    else:
        streams.say(f"{name}: already compiled; loaded in {seconds:.1f} s")
    streams.out.flush()


class Progress(Listener):  # type: ignore[misc]  # numba has no types
    """Follows the functions that numba compiles.

    Args:
        module: how the names of the modules begin whose functions the meter counts.

    Attributes:
        count: the number of functions compiled.
    """

    def __init__(self, shown: Meter, module: str) -> None:
        self.meter, self.count, self._module = shown, 0, module

    def on_start(self, event: Event) -> None:
        """Numba begins to compile a function."""
        self.meter.advance(0, self._function(event).__name__)

    def on_end(self, event: Event) -> None:
        """Numba has compiled a function and those that it calls."""
        self.count += 1
        if self._function(event).__module__.startswith(self._module):
            self.meter.advance(1, self._function(event).__name__)

    @staticmethod
    def _function(event: Event) -> Any:
        return event.data["dispatcher"].py_func
