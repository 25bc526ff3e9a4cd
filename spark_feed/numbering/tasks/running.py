"""What Spark's tasks run: files of a recording in, ends of the source streams' journals out.

A single task reads the files and appends to every stream's journal. For many rows, the tasks first share the reading,
and leave each stream's blocks in files; then a task per stream appends them. Both ways give the same bytes. Blocks do
not pass through Spark's shuffle, because every task is on the host of the source journal, and its page cache is nearer
than two JVM threads.

Invariant: one task at a time appends to a stream (`append_to_stream` waits for a twin).
"""

from __future__ import annotations

import contextlib
import gc
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from tandemfeed.spark_feed.journaling.records import SourceJournalError
from tandemfeed.spark_feed.journaling.stream_appender import Appended, Continuation, append_to_stream, check_host
from tandemfeed.spark_feed.numbering.rows.encoding import BLOCK_SCHEMA, blocks_in, row_of
from tandemfeed.spark_feed.numbering.rows.packing import Block
from tandemfeed.spark_feed.numbering.tasks.reading import FileReader
from tandemfeed.spark_feed.numbering.tasks.worker_imports import keep_archive_directories
from tandemfeed.spark_feed.recordings.recording import RecordingError

BLOCKS_PREFIX = "blocks-"  # of a folder in the source journal's, while tasks hand over blocks

# What is wrong with the recording or the journal is a result: Spark would run a task that raises again, and wrap its
# text.
Problem: TypeAlias = str
OF_DATA = (RecordingError, SourceJournalError, pa.ArrowException, OSError)


class Tasks:
    """Runs tasks for a driver.

    Args:
        context: Spark's.
        reader: of the recording.
        journal: the folder of the source journal, to which no other driver appends.
        rows_min: fewer for each task are not worth another task.
    """

    def __init__(self, context: Any, reader: FileReader, journal: Path, rows_min: int) -> None:
        self._context, self._reader, self._journal, self._rows_min = context, reader, journal, rows_min
        count = max(context.defaultParallelism, reader.stream_count)
        self._places = context.parallelize(range(count), count)  # tells each task its place
        for left in journal.glob(f"{BLOCKS_PREFIX}*"):  # by a driver that was killed
            shutil.rmtree(left, ignore_errors=True)

    def append(self, files: Sequence[str], continued: Continuation) -> list[Appended]:
        """Read, number and append files.

        Args:
            files: their URIs, in the order of their records.

        Raises:
            SourceJournalError: a task found a problem.
        """
        count = self._task_count(len(files))
        if count == 1:
            return self._run(AppendAll(self._reader, files, continued), 1)
        shares = [files[len(files) * place // count : len(files) * (place + 1) // count] for place in range(count)]
        with tempfile.TemporaryDirectory(prefix=BLOCKS_PREFIX, dir=self._journal, ignore_cleanup_errors=True) as folder:
            self._run(Read(self._reader, shares, continued.journal, Path(folder)), count)
            return self._run(AppendOne(continued, Path(folder), count), self._reader.stream_count)

    def _task_count(self, file_count: int) -> int:
        cores: int = self._context.defaultParallelism
        return max(1, min(file_count * self._reader.rows_per_file // self._rows_min, file_count, cores))

    def _run(self, task: Any, count: int) -> list[Appended]:
        results: list[Appended | Problem] = self._context.runJob(self._places, task, range(count))
        if problem := next((each for each in results if isinstance(each, Problem)), None):
            raise SourceJournalError(problem)
        return [each for each in results if not isinstance(each, Problem)]


def prepare_workers(context: Any) -> None:
    """Start as many Python workers as tasks run at once, with everything imported; returns when they are ready."""
    count = context.defaultParallelism
    with contextlib.suppress(Exception):  # only saves time: Spark starts a worker for any task that has none
        context.parallelize(range(count), count).foreachPartition(_prepare)


@dataclass(frozen=True, slots=True)
class Read:
    """A share of the files to a file of blocks for each source stream.

    Attributes:
        shares: for each task, the URIs of its files.
        journal: of the source; only its host has the folder.
        folder: for the files of blocks.
    """

    reader: FileReader
    shares: Sequence[Sequence[str]]
    journal: Path
    folder: Path

    def __call__(self, places: Iterator[int]) -> Iterator[Problem]:
        """Read a task's files; returns what is wrong."""
        prepare_worker()
        (share,) = places
        try:
            check_host(self.journal)
            parts = [blocks for uri in self.shares[share] for blocks in self.reader.blocks(uri)]
            for place, blocks in enumerate(zip(*parts, strict=True)):
                _store_blocks(_blocks_path(self.folder, share, place), place, blocks)
        except OF_DATA as error:
            yield str(error)


@dataclass(frozen=True, slots=True)
class AppendOne:
    """The blocks of one source stream to the end of its journal.

    Attributes:
        folder: the files of blocks.
        share_count: how many tasks have read.
    """

    continued: Continuation
    folder: Path
    share_count: int

    def __call__(self, places: Iterator[int]) -> Iterator[Appended | Problem]:
        """Append the blocks of the stream at the task's place in the feed's list."""
        prepare_worker()
        (place,) = places
        paths = [_blocks_path(self.folder, share, place) for share in range(self.share_count)]
        yield _append(self.continued, place, (block for path in paths for block in _load_blocks(path)))


@dataclass(frozen=True, slots=True)
class AppendAll:
    """Files to the ends of all streams' journals."""

    reader: FileReader
    files: Sequence[str]
    continued: Continuation

    def __call__(self, _: Iterator[int]) -> Iterator[Appended | Problem]:
        """Read and append."""
        prepare_worker()
        try:
            parts = [blocks for uri in self.files for blocks in self.reader.blocks(uri)]
        except OF_DATA as error:
            yield str(error)
            return
        for place, blocks in enumerate(zip(*parts, strict=True)):
            yield _append(self.continued, place, blocks)


def _blocks_path(folder: Path, share: int, place: int) -> Path:
    return folder / f"{share}-{place}.arrow"


def _store_blocks(path: Path, place: int, blocks: Iterable[Block]) -> None:
    """Store a stream's blocks: whole or not at all, because a twin of the task may do the same."""
    with (
        tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file,
        pa.ipc.new_file(file, BLOCK_SCHEMA) as writer,
    ):
        for block in blocks:
            writer.write_batch(row_of(place, block))
    Path(file.name).replace(path)


def _load_blocks(path: Path) -> list[Block]:
    """The stored blocks, which stay in the page cache."""
    with pa.memory_map(str(path)) as file:
        return blocks_in(pa.ipc.open_file(file).read_all())


def _append(continued: Continuation, place: int, blocks: Iterable[Block]) -> Appended | Problem:
    try:
        return append_to_stream(continued, continued.plan.feed.source_stream_ids[place], list(blocks))
    except OF_DATA as error:
        return str(error)


def _prepare(_: Iterator[int]) -> None:
    prepare_worker()


@cache
def prepare_worker() -> None:
    """Spare the worker what Spark would do before and after each task.

    Spark collects garbage after each task; with everything imported, that takes longer than a small task.
    """
    keep_archive_directories()
    gc.collect()
    gc.freeze()
