"""The files of a recording that Spark's file source has found, from the log that it keeps in the query's checkpoint.

Planning a query that reads the names from the micro-batch takes longer than numbering a small one. Spark must read the
log of older versions, so its format is as stable as that of checkpoints: a line with the version, then a JSON object
for each file. Each file of the log has what one offset added; from time to time one, `N.compact`, repeats all before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tandemfeed.spark_feed.journaling.records import SourceJournalError

LOG = Path("sources") / "0"  # of a query with one source
VERSION = "v1"
COMPACT = ".compact"
# Spark does not flush its checkpoint.
REMEDY = "after a power failure, remove the checkpoint: the source journal knows what is committed"


class FoundFiles:
    """Reads the log of a query's source.

    Args:
        checkpoint: the folder of the query's checkpoint.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._log = checkpoint / LOG
        self._last = -1  # the offset up to which files were returned

    def new(self) -> list[str]:
        """The URIs of the files that were found since the last call; at the first call, of all.

        Raises:
            SourceJournalError: the log has another version, or is damaged.
        """
        parts = {int(part.stem): part for part in self._log.glob("[0-9]*")}
        unread = sorted(offset for offset in parts if offset > self._last)
        first = max((offset for offset in unread if parts[offset].suffix == COMPACT), default=-1)
        found = [uri for offset in unread if offset >= first for uri in self._added(parts[offset])]
        self._last = max(unread, default=self._last)
        return found

    def _added(self, part: Path) -> Iterator[str]:
        version, *lines = part.read_text(encoding="utf-8").splitlines() or [""]
        if version != VERSION:
            raise SourceJournalError(
                f"{part} has version {version!r}, expected {VERSION!r}: use the Spark of requirements.lock; {REMEDY}"
            )
        try:
            entries = [json.loads(line) for line in lines]
        except ValueError as error:
            raise SourceJournalError(f"{part} is damaged ({error}); {REMEDY}") from error
        for entry in entries:
            if entry["batchId"] > self._last:
                yield entry["path"]
