"""Numbers into a source journal in one process: what the Spark job distributes over its tasks. The records are the
same.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tandemfeed.spark_feed.journaling.commit_log import CommitLog
from tandemfeed.spark_feed.journaling.records import SEGMENT_SIZE_MAX, NumberingPlan
from tandemfeed.spark_feed.journaling.stream_appender import append_to_stream
from tandemfeed.spark_feed.numbering.rows.packing import Block


class SourceJournalWriter(CommitLog):
    """A commit log whose driver also does the work of the tasks.

    Args:
        journal, plan, group: as of `CommitLog`.
        segment_size_max: of the streams' journals.
    """

    def __init__(
        self,
        journal: Path,
        plan: NumberingPlan,
        *,
        segment_size_max: int = SEGMENT_SIZE_MAX,
        group: str | None = None,
    ) -> None:
        super().__init__(journal, plan, group=group)
        self._segment_size_max = segment_size_max

    def append_batch(self, batch_id: int, parts: Sequence[Sequence[Block]]) -> int:
        """Number, pack, append and commit a micro-batch; returns how many of its records were new.

        Args:
            parts: each has one block for each source stream.

        Raises:
            SourceJournalError: as of `append_to_stream` and `commit`.
        """
        continued = self.continuation
        return self.commit(
            batch_id,
            [
                append_to_stream(continued, stream_id, [part[place] for part in parts], self._segment_size_max)
                for place, stream_id in enumerate(self.plan.feed.source_stream_ids)
            ],
        )
