"""`tandemfeed source-job --archive-classes`: lets Spark do what the source job needs, and keeps the loaded classes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tandemfeed.spark_feed.numbering.driver.job import FILES_DDL, FILES_FORMAT
from tandemfeed.spark_feed.numbering.driver.session import Spark, class_archive, start_session


class ArchiveError(Exception):
    """The archive was not written; the text says why."""


def archive_classes() -> Path:
    """Write the archive of Spark's classes; returns its path. Takes the time of a source job's start, and some seconds.

    Raises:
        JavaMissing: if no usable Java is installed.
        ArchiveError: there is no folder for the archive, or this JVM cannot write it.
    """
    archive = class_archive()
    if archive.path is None:
        raise ArchiveError("the user's cache folder is not private to this user: set TANDEMFEED_KERNEL_CACHE to one")
    with tempfile.TemporaryDirectory() as name:
        spark = start_session("local[1]", "512m", Path(name), archive.options_to_write())
        gateway = spark.sparkContext._gateway
        _stream(spark, Path(name))
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # ends the JVM, which writes the archive
        gateway.proc.wait()
    if not archive.keep():
        raise ArchiveError("the JVM wrote no archive; it needs OpenJDK, and no folder of classes on Spark's class path")
    return archive.path


def _stream(spark: Spark, folder: Path) -> None:
    """A streaming query of files, for which tasks run."""
    (folder / "files").mkdir()
    (folder / "files" / "one").touch()
    places = spark.sparkContext.parallelize(range(2), 2)

    def take(_batch: Any, _batch_id: int) -> None:
        spark.sparkContext.runJob(places, _lists)

    files = spark.readStream.format(FILES_FORMAT).schema(FILES_DDL).load(str(folder / "files"))
    query = files.writeStream.foreachBatch(take).option("checkpointLocation", str(folder / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()


def _lists(places: Iterator[int]) -> Iterator[list[int]]:
    yield list(places)
