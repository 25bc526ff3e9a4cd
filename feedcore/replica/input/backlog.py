"""Source messages that arrived, are in order and wait for conversion: per source stream, and in order of arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tandemfeed.feedcore.replica.input.source_tracker import Slice


class Backlog:
    """In-order slices per source stream. `message_count` is the total of all streams; the owner limits it."""

    def __init__(self, source_stream_ids: Iterable[int]) -> None:
        self._slices: dict[int, deque[Slice]] = {stream: deque() for stream in source_stream_ids}
        self.message_count = 0

    def add(self, source_stream_id: int, slices: Iterable[Slice]) -> None:
        """Append slices to those of the stream."""
        queue = self._slices[source_stream_id]
        for piece in slices:
            queue.append(piece)
            self.message_count += piece.message_count

    def take(self, source_stream_id: int, message_count: int) -> list[Slice]:
        """Remove and return exactly the next `message_count` messages of a stream, which must exist."""
        queue = self._slices[source_stream_id]
        self.message_count -= message_count
        taken = []
        while message_count:
            piece = queue.popleft()
            if piece.message_count > message_count:
                queue.appendleft(
                    piece._replace(skip=piece.skip + message_count, message_count=piece.message_count - message_count)
                )
                piece = piece._replace(message_count=message_count)
            taken.append(piece)
            message_count -= piece.message_count
        return taken

    def take_all(self) -> list[Slice]:
        """Remove and return everything, in order of arrival. A new active decides these messages first."""
        pieces = (piece for stream in self._slices for piece in self.take_stream(stream))
        return sorted(pieces, key=lambda piece: piece.arrival)

    def take_stream(self, source_stream_id: int) -> list[Slice]:
        """Remove and return all messages of a stream."""
        return self.take(source_stream_id, sum(piece.message_count for piece in self._slices[source_stream_id]))

    def drop_before(self, source_stream_id: int, source_seq: int) -> None:
        """Remove the stream's messages before `source_seq`."""
        queue = self._slices[source_stream_id]
        while queue and queue[0].first_source_seq < source_seq:
            self.take(source_stream_id, min(source_seq - queue[0].first_source_seq, queue[0].message_count))
