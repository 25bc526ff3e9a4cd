"""A micro-batch that is being committed, on the disk before its first message is numbered.

Spark may run a micro-batch again with its rows in another order. If the driver died while it appended, the journal has
some of the first run's messages, so that run's blocks must be appended to the end. Invariant: while the journal has
messages that are not committed, the pending batch on the disk has all of them.

A batch that was dropped may be there again after a power failure. It then has the number of a batch that is committed,
so it is never loaded, and the next one replaces it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from tandemfeed.runtime.durable import remove_file, replace_file
from tandemfeed.spark_feed.numbering.rows.encoding import BLOCK_SCHEMA, blocks_in, row_of
from tandemfeed.spark_feed.numbering.rows.packing import Block
from tandemfeed.spark_feed.sharing import make

NAME = "pending-batch.arrow"
BATCH_ID = b"batch_id"
Parts = list[list[Block]]  # for each task of the batch, a block for each source stream


def store_pending(journal: Path, batch_id: int, parts: Sequence[Sequence[Block]]) -> None:
    """Store a batch: whole or not at all, and on the disk on return. Store a loaded one again: only then it is there.

    Raises:
        OSError, FlushFailed: it may or may not be stored; append nothing of it.
    """
    schema = BLOCK_SCHEMA.with_metadata({BATCH_ID: str(batch_id).encode()})

    def write(file: BinaryIO) -> None:
        with pa.ipc.new_file(file, schema) as writer:
            for part in parts:
                for stream, block in enumerate(part):
                    writer.write_batch(row_of(stream, block))

    replace_file(journal / NAME, write, make(journal).file_mode)


def pending_batch_id(journal: Path) -> int | None:
    """The number of the stored batch."""
    try:
        with pa.ipc.open_file(journal / NAME) as file:
            return int(file.schema.metadata[BATCH_ID])
    except FileNotFoundError:
        return None


def load_pending(journal: Path, batch_id: int, stream_count: int) -> Parts | None:
    """The stored batch, if it has this number. A driver that died may have left it without a flush."""
    if pending_batch_id(journal) != batch_id:
        return None
    with pa.ipc.open_file(journal / NAME) as file:
        table = file.read_all()
    blocks = blocks_in(table)
    return [blocks[first : first + stream_count] for first in range(0, len(blocks), stream_count)]


def drop_pending(journal: Path) -> None:
    """Forget the batch, which is committed."""
    remove_file(journal / NAME)
