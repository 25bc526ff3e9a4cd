"""Converts recordings side by side, each in a process, several at a time.

A process converts one recording after another; with each, state begins empty. It sends its progress and the outcome,
and ends with the command, however this ends.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.convert_command.documents import load_documents
from tandemfeed.adapter.convert_command.input.inputs import READ_ERRORS
from tandemfeed.adapter.convert_command.recordings.independence import Recording
from tandemfeed.adapter.convert_command.recordings.recording import Outcome, convert_recording, input_of
from tandemfeed.transport.ending import undone_by_signal

END_S = 10.0  # how long a process may take to end after SIGTERM


@dataclass(frozen=True, slots=True)
class Advanced:
    """A process has converted a chunk."""

    size: int
    message_count: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A process cannot read or write its files; the text says why."""

    reason: str


class ConversionFailed(Exception):
    """A process could not convert its recording."""


def convert_side_by_side(
    recordings: Sequence[Recording],
    folders: Sequence[Path],
    reader: str,
    arguments: argparse.Namespace,
    process_count: int,
    advance: Callable[[int, int], None],
) -> list[Outcome]:
    """Convert recordings; returns their outcomes, in the same order.

    Args:
        folders: where the files of each are written.
        arguments: of `convert file`; its documents have been loaded and its kernels compiled before.
        advance: as for `convert_recording`.

    Raises:
        ConversionFailed: a recording cannot be read or written, or a process was killed; all have ended.
    """
    outcomes: dict[int, Outcome] = {}
    waiting = list(zip(range(len(recordings)), recordings, folders, strict=True))
    waiting.sort(key=lambda each: -sum(path.stat().st_size for path in each[1].paths))  # the longest begin first
    with ExitStack() as stack:
        workers: dict[Connection, _Worker] = {}
        for _ in range(min(process_count, len(recordings))):
            worker = stack.enter_context(_Worker(reader, arguments))
            workers[worker.connection] = worker
            worker.start(*waiting.pop(0))
        while len(outcomes) < len(recordings):
            for connection in wait(list(workers)):
                assert isinstance(connection, Connection)
                worker = workers[connection]
                event = worker.receive()
                if isinstance(event, Refused):
                    raise ConversionFailed(event.reason)
                if isinstance(event, Advanced):
                    advance(event.size, event.message_count)
                    continue
                outcomes[worker.number] = event
                if waiting:
                    worker.start(*waiting.pop(0))
                else:
                    del workers[connection]
    return [outcomes[number] for number in range(len(recordings))]


class _Worker:
    """A process that converts recordings, and its end of the connection.

    Attributes:
        number: of the recording that it converts.
    """

    def __init__(self, reader: str, arguments: argparse.Namespace) -> None:
        context = get_context("spawn")
        self.connection, self._theirs = context.Pipe()
        self.number = -1
        self._undone = ExitStack()
        self._process: BaseProcess = context.Process(
            target=work, args=(self._theirs, reader, arguments), daemon=True, name="convert"
        )

    def __enter__(self) -> _Worker:
        self._process.start()
        self._undone.enter_context(undone_by_signal(self._process.kill))
        self._theirs.close()  # so that the end of the process is the end of the connection
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join(END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._undone.close()
        self.connection.close()

    def start(self, number: int, recording: Recording, folder: Path) -> None:
        """Begin to convert a recording."""
        self.number = number
        with suppress(BrokenPipeError):  # `receive` reports it
            self.connection.send((recording, folder))

    def receive(self) -> Advanced | Refused | Outcome:
        """The next event.

        Raises:
            ConversionFailed: the process has ended.
        """
        try:
            event: Advanced | Refused | Outcome = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join(END_S)
            code = self._process.exitcode or 0
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
            raise ConversionFailed(f"a process of the conversion {how}; fewer --jobs need less memory") from None
        return event


def work(connection: Any, reader: str, arguments: argparse.Namespace) -> None:
    """Convert the recordings that the connection brings, until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes; the command ends this one
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        documents = load_documents(argparse.ArgumentParser(allow_abbrev=False), arguments, arguments.shipped)
        while True:
            recording, folder = connection.recv()
            given = replace(input_of(documents, arguments, recording.paths), line_groups=recording.line_groups)
            converter = CompiledConverter(documents.table)
            try:
                event: Outcome | Refused = convert_recording(
                    documents, converter, given, reader, recording.session, arguments, folder,
                    lambda size, count: connection.send(Advanced(size, count)),
                )  # fmt: skip
            except READ_ERRORS as reason:
                event = Refused(str(reason))
            connection.send(event)
