"""What a micro-batch runs in Spark's tasks: files of a recording in, ends of the source streams' journals out.

If one task has all the files, it also appends to every stream's journal. Several tasks share the reading, and hand
their blocks to a task per source stream. Both ways give the same bytes. Spark moves only names of files, blocks and
ends, and these by its RDDs: planning a query costs more than the work of a small micro-batch.

Invariant: one task at a time appends to a stream (`append_to_stream` waits for a twin).
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import pyarrow as pa

from tandemfeed.spark_feed.journaling.records import SourceJournalError
from tandemfeed.spark_feed.journaling.stream_appender import Appended, Continuation, append_to_stream
from tandemfeed.spark_feed.numbering.packing import Block
from tandemfeed.spark_feed.numbering.reading import FileReader
from tandemfeed.spark_feed.numbering.worker_imports import keep_archive_directories
from tandemfeed.spark_feed.recordings.recording import RecordingError

# What is wrong with the recording or the journal is a result: Spark would run a task that raises again, and wrap its
# text.
Problem: TypeAlias = str
OF_DATA = (RecordingError, SourceJournalError, pa.ArrowException, OSError)


def append_files(files: Any, reader: FileReader, continued: Continuation) -> list[Appended]:
    """Read, number and append the files of a micro-batch.

    Args:
        files: an RDD with a row of each file's URI.

    Raises:
        SourceJournalError: a task found a problem.
    """
    if files.getNumPartitions() == 1:
        done = files.mapPartitions(AppendAll(reader, continued))
    else:
        blocks = files.mapPartitions(Read(reader))
        streams = blocks.partitionBy(reader.stream_count, _place)
        done = streams.mapPartitions(AppendOne(continued))
    results: list[Appended | Problem] = done.collect()
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
    """Files to blocks, each with the place of its source stream in the feed's list."""

    reader: FileReader

    def __call__(self, files: Iterator[Any]) -> Iterator[tuple[int, Block | Problem]]:
        """Read a task's files."""
        prepare_worker()
        try:
            for (uri,) in files:
                for blocks in self.reader.blocks(uri):
                    yield from enumerate(blocks)
        except OF_DATA as error:
            yield from enumerate([str(error)] * self.reader.stream_count)  # so that no stream's task appends


@dataclass(frozen=True, slots=True)
class AppendOne:
    """The blocks of one source stream to the end of its journal."""

    continued: Continuation

    def __call__(self, found: Iterator[tuple[int, Block | Problem]]) -> Iterator[Appended | Problem]:
        """Append a task's blocks."""
        prepare_worker()
        blocks = list(found)
        if problem := next((each for _, each in blocks if isinstance(each, Problem)), None):
            yield problem
        elif blocks:
            yield _append(self.continued, blocks[0][0], (each for _, each in blocks if not isinstance(each, Problem)))


@dataclass(frozen=True, slots=True)
class AppendAll:
    """All files of a micro-batch to the ends of all streams' journals."""

    reader: FileReader
    continued: Continuation

    def __call__(self, files: Iterator[Any]) -> Iterator[Appended | Problem]:
        """Read and append."""
        prepare_worker()
        try:
            parts = [blocks for (uri,) in files for blocks in self.reader.blocks(uri)]
        except OF_DATA as error:
            yield str(error)
            return
        for place, blocks in enumerate(zip(*parts, strict=True)):
            yield _append(self.continued, place, blocks)


def _append(continued: Continuation, place: int, blocks: Iterable[Block]) -> Appended | Problem:
    try:
        return append_to_stream(continued, continued.plan.feed.source_stream_ids[place], list(blocks))
    except OF_DATA as error:
        return str(error)


def _place(place: int) -> int:
    return place


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
