"""What Spark's checkpoint of a query says, and when it must be on the disk.

Spark plans a micro-batch, writes the plan into the checkpoint, and runs it, but it never flushes these files. After a
power failure it would plan a micro-batch with the same number again, perhaps with more rows; the journal would take it
for the one that it has, and those rows would be lost. So the plan is flushed before the journal gets anything of it.
"""

from __future__ import annotations

import json
from pathlib import Path

from tandemfeed.runtime.durable import flush_file, sync_folder
from tandemfeed.spark_feed.spark.errors import TableError

OFFSETS, SOURCES, METADATA = "offsets", "sources", "metadata"
NEWEST_COUNT = (
    2  # files of a source's log: a micro-batch adds one, and Spark sometimes another that repeats earlier ones
)


def query_of(checkpoint: Path) -> str:
    """The id of the query that the checkpoint belongs to.

    A new checkpoint counts batches from 0 again, which the journal would take for batches that it has.

    Raises:
        TableError: there is none.
    """
    path = checkpoint / METADATA
    try:
        return str(json.loads(path.read_text())["id"])
    except FileNotFoundError:
        raise TableError(
            f"{path} does not exist: option 'checkpointLocation' must be a folder of this host, set on writeStream"
        ) from None


def flush_planned(checkpoint: Path, batch_id: int) -> None:
    """Flush what Spark has planned for a micro-batch: where it ends in each source, and which query it belongs to.

    Raises:
        OSError, FlushFailed: commit nothing of it.
    """
    files = [checkpoint / METADATA, checkpoint / OFFSETS / str(batch_id)]
    for source in (checkpoint / SOURCES).glob("*"):
        numbered = [entry for entry in source.iterdir() if entry.stem.isdecimal()]
        files += sorted(numbered, key=lambda entry: int(entry.stem))[-NEWEST_COUNT:]
    files = [file for file in files if file.exists()]
    for file in files:
        flush_file(file)
    folders = {file.parent for file in files}
    for folder in sorted(folders | {folder.parent for folder in folders}):
        sync_folder(folder)
