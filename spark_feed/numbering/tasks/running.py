"""What tasks do: files of a recording in, ends of the source streams' journals out.

A single task reads the files and appends to every stream's journal. For many rows, the tasks first share the reading,
and leave each stream's blocks in files in memory; then a task per stream appends them. Both ways give the same bytes.
Blocks do not pass through Spark's shuffle, because every task is on the host of the source journal, and its memory is
nearer than two JVM threads.

Invariant: one task at a time appends to a stream (`append_to_stream` waits for a twin).
"""

from __future__ import annotations

import gc
import hashlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeAlias

import pyarrow as pa

from tandemfeed.journal import JournalError
from tandemfeed.spark_feed.journaling.records import SourceJournalError
from tandemfeed.spark_feed.journaling.stream_appender import Appended, Continuation, StreamAppender
from tandemfeed.spark_feed.numbering.rows.encoding import BLOCK_SCHEMA, blocks_in, row_of
from tandemfeed.spark_feed.numbering.rows.packing import Block
from tandemfeed.spark_feed.numbering.tasks.pool import Stay, TaskPool, TasksFailed, Work
from tandemfeed.spark_feed.numbering.tasks.reading import FileReader
from tandemfeed.spark_feed.recordings.recording import RecordingError

APPEND_COUNT = 60_000  # records at once, whose packets fit in the processor's cache
SHARES_EACH = 3  # for each task that reads, because the first one to be ready would wait for the others
BLOCKS_PREFIX = "blocks-"  # of a folder in which tasks hand over blocks
IN_MEMORY = Path("/dev/shm")  # Linux's; writing and removing the same files elsewhere takes twice as long
HANDED_OVER_SIZE = 256  # bytes for each record that there must be room for; most messages need a quarter of it

# What is wrong with the recording, the journal or the disk is a result: Spark would run a task that raises again, and
# wrap its text.
Problem: TypeAlias = str
OF_DATA = (RecordingError, SourceJournalError, JournalError, pa.ArrowException, OSError)


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
        self._is_local = str(context.master).startswith("local")
        self._prefix = f"tandemfeed-{hashlib.sha256(bytes(journal)).hexdigest()[:16]}-{BLOCKS_PREFIX}"
        for left in (*journal.glob(f"{BLOCKS_PREFIX}*"), *IN_MEMORY.glob(f"{self._prefix}*")):  # by a killed driver
            shutil.rmtree(left, ignore_errors=True)
        count = context.defaultParallelism
        if not self._is_local:
            count = max(count, reader.stream_count)  # a cluster may not have all its cores yet
        self._pool = TaskPool(journal, prepare_worker, partial(_run_tasks, context, count))

    def close(self) -> None:
        """End the tasks: each after the work that it has."""
        self._pool.close()

    def append(self, files: Sequence[str], continued: Continuation) -> list[Appended]:
        """Read, number and append files.

        Args:
            files: their URIs, in the order of their records.

        Raises:
            SourceJournalError: a task found a problem.
        """
        count = self._task_count(len(files))
        if count == 1:
            return self._run([AppendAll(self._reader, files, continued)])
        count = min(len(files), count * SHARES_EACH)
        shares = [files[len(files) * place // count : len(files) * (place + 1) // count] for place in range(count)]
        with self._hand_over(len(files)) as folder:
            self._run([Read(self._reader, share, place, Path(folder)) for place, share in enumerate(shares)])
            streams = range(self._reader.stream_count)
            return self._run([AppendOne(continued, place, Path(folder), count) for place in streams])

    def _hand_over(self, file_count: int) -> tempfile.TemporaryDirectory[str]:
        """A folder for blocks: in memory if tasks are processes of this machine, else in the journal's folder."""
        size = file_count * self._reader.rows_per_file * HANDED_OVER_SIZE
        is_in_memory = self._is_local and IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > size
        prefix, place = (self._prefix, IN_MEMORY) if is_in_memory else (BLOCKS_PREFIX, self._journal)
        return tempfile.TemporaryDirectory(prefix=prefix, dir=place, ignore_cleanup_errors=True)

    def _task_count(self, file_count: int) -> int:
        cores: int = self._context.defaultParallelism
        return max(1, min(file_count * self._reader.rows_per_file // self._rows_min, file_count, cores))

    def _run(self, work: Sequence[Work]) -> list[Appended]:
        try:
            results: list[list[Appended] | Problem] = self._pool.run(work)
        except TasksFailed as failed:
            raise SourceJournalError(str(failed)) from failed
        if problem := next((each for each in results if isinstance(each, Problem)), None):
            raise SourceJournalError(problem)
        return [each for result in results if not isinstance(result, Problem) for each in result]


def _run_tasks(context: Any, count: int, stay: Stay) -> list[str]:
    """Run tasks of Spark until all have ended."""
    why: list[str] = context.runJob(context.parallelize(range(count), count), stay)
    return why


@dataclass(frozen=True, slots=True)
class Read:
    """A share of the files to a file of blocks for each source stream.

    Attributes:
        files: their URIs.
        share: which one of the shares this is.
        folder: for the files of blocks.
    """

    reader: FileReader
    files: Sequence[str]
    share: int
    folder: Path

    def __call__(self) -> list[Appended] | Problem:
        """Read the files; returns nothing, or what is wrong."""
        try:
            with ExitStack() as stack:
                paths = [_blocks_path(self.folder, self.share, place) for place in range(self.reader.stream_count)]
                stores = [stack.enter_context(_Store(path, place)) for place, path in enumerate(paths)]
                for blocks in self.reader.blocks(*self.files):
                    for store, block in zip(stores, blocks, strict=True):
                        store.write(block)
        except OF_DATA as error:
            return str(error)
        return []


@dataclass(frozen=True, slots=True)
class AppendOne:
    """The blocks of one source stream to the end of its journal.

    Attributes:
        place: of the stream in the feed's list.
        folder: the files of blocks.
        share_count: how many shares were read.
    """

    continued: Continuation
    place: int
    folder: Path
    share_count: int

    def __call__(self) -> list[Appended] | Problem:
        """Append the blocks."""
        paths = [_blocks_path(self.folder, share, self.place) for share in range(self.share_count)]
        parts = ([block] for path in paths for block in _load_blocks(path))
        return _append_parts(self.continued, [self.place], parts)


@dataclass(frozen=True, slots=True)
class AppendAll:
    """Files to the ends of all streams' journals."""

    reader: FileReader
    files: Sequence[str]
    continued: Continuation

    def __call__(self) -> list[Appended] | Problem:
        """Read and append."""
        return _append_parts(self.continued, range(self.reader.stream_count), self.reader.blocks(*self.files))


def _blocks_path(folder: Path, share: int, place: int) -> Path:
    return folder / f"{share}-{place}.arrow"


class _Store:
    """Stores a stream's blocks in a file: whole or not at all, because a twin of the task may do the same."""

    def __init__(self, path: Path, place: int) -> None:
        self._path, self._place = path, place
        self._file = tempfile.NamedTemporaryFile(dir=path.parent, delete=False)  # noqa: SIM115  # closed on exit
        self._writer = pa.ipc.new_file(self._file, BLOCK_SCHEMA)

    def write(self, block: Block) -> None:
        self._writer.write_batch(row_of(self._place, block))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, problem: type[BaseException] | None, *_: object) -> None:
        self._writer.close()
        self._file.close()
        if problem is None:
            Path(self._file.name).replace(self._path)


def _load_blocks(path: Path) -> list[Block]:
    """The stored blocks, which stay in the page cache."""
    with pa.memory_map(str(path)) as file:
        return blocks_in(pa.ipc.open_file(file).read_all())


def _append_parts(
    continued: Continuation, places: Sequence[int], parts: Iterable[Sequence[Block]]
) -> list[Appended] | Problem:
    """Append parts of a commit, a few at a time, so that a commit may have more rows than fit in memory.

    Args:
        places: of the streams, in the feed's list.
        parts: each has a block for each of these streams.
    """
    ids, done = [continued.plan.feed.source_stream_ids[place] for place in places], list[Appended]()
    try:
        with ExitStack() as stack:
            appenders = [StreamAppender(continued, stream_id) for stream_id in ids]
            for appender in appenders:
                stack.callback(_finish, appender, done)
            for some in _several(parts, continued.plan.packet_records):
                for appender, blocks in zip(appenders, zip(*some, strict=True), strict=True):
                    appender.append(blocks)
    except OF_DATA as error:
        return str(error)
    return sorted(done)


def _finish(appender: StreamAppender, done: list[Appended]) -> None:
    done.append(appender.close())


def _several(parts: Iterable[Sequence[Block]], packet_records: int) -> Iterator[list[Sequence[Block]]]:
    """Consecutive parts of some `APPEND_COUNT` records, which end where packets end in any case."""
    some, count = list[Sequence[Block]](), 0
    for part in parts:
        some.append(part)
        count += part[0].end_record_index - part[0].first_record_index
        if count >= APPEND_COUNT and part[0].end_record_index % packet_records == 0:
            yield some
            some, count = [], 0
    if some:
        yield some


def prepare_worker() -> None:
    """Exempt all that was imported, with this module, from collections of garbage, which would take 0.1 s each."""
    gc.collect()
    gc.freeze()
