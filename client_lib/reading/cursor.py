"""A durable cursor: how far an application has handled a subscription, in a file that survives its end.

For each topic it has the place in the channel (session, lineage of epochs, `input_seq`, `message_seq`) and the next
`source_seq` of each source stream. So a subscription that begins at a cursor continues there although other adapters
have become active, messages have been numbered afresh, or a new session has begun: the merge recognises a message that
was handled under another number by its source identity.

The file is replaced as a whole, at most every STORE_EVERY_NS while messages are handled. What it contains when it is
opened is made durable first: a process continues only where it would also continue after a power failure. A process
that is killed repeats what it handled since the last store. An application that must not repeat keeps its own state's
position in `note`, which is stored with the position in one step (docs/client.md, "Durable cursor").

Invariant: the stored position is never beyond a message that the application has not handled.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tandemfeed.client_lib.items import Batch
from tandemfeed.client_lib.messages.message import Message
from tandemfeed.client_lib.reading.storage import REMEDIES
from tandemfeed.client_lib.state_folder import state_folder
from tandemfeed.feedcore.documents.names import TITLE_RULE, is_title
from tandemfeed.feedcore.merge.history.place import Place, ResumePoint
from tandemfeed.feedcore.wire.lineage import EpochStart, Lineage
from tandemfeed.runtime.durable import FlushFailed, flush_file, make_folder, remove_drafts, replace_file, sync_folder
from tandemfeed.transport.process_shell import alone_with

STORE_EVERY_NS = 250_000_000  # what is repeated after a kill, for about 2 % of a slow disk's time
FORMAT = 1


class CursorUnusable(ValueError):
    """The cursor's file cannot be read, is of another feed, or is used by another process."""


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """How far one topic was handled.

    Attributes:
        epochs: the lineage: (epoch, first input_seq, first message_seq).
        sources: the next `source_seq` by source stream.
        begun: (source stream, source_seq, messages of it that were handled), if a source message made several messages
            and not all were handled.
    """

    session: int
    epochs: tuple[tuple[int, int, int], ...]
    next_input_seq: int
    next_message_seq: int
    sources: Mapping[int, int] = field(default_factory=dict)
    begun: tuple[int, int, int] | None = None

    @property
    def resume_point(self) -> ResumePoint:
        """Where the merge continues."""
        lineage = Lineage(tuple(EpochStart(*each) for each in self.epochs))
        return ResumePoint(Place(self.next_input_seq, self.next_message_seq), lineage, dict(self.sources))


def cursor_file(cursor: str | Path) -> Path:
    """The file of a cursor: a path, or a name in the user's state folder.

    Raises:
        ValueError: the name cannot be one of a file.
    """
    if isinstance(cursor, Path):
        return cursor
    if not is_title(cursor):
        raise ValueError(f"cursor is {cursor!r}; {TITLE_RULE}; or give a Path")
    return state_folder() / "cursors" / f"{cursor}.json"


class Cursor:
    """The positions of one subscription, in memory and in a file.

    Attributes:
        note: what the application stores with the positions: any JSON value.
        is_dirty: something was handled that is not stored.
        given: the message that the application has asked for, but not yet asked for the one after it.
    """

    def __init__(self, path: Path, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """Args: now_ns: the monotonic clock."""
        self.path, self._now_ns = path, now_ns
        self.note: Any = None
        self.given: Message | None = None
        self.is_dirty = False
        self._feed = ""
        self._positions: dict[str, TopicPosition] = {}
        self._stored: dict[str, Any] | None = None
        self._store_at_ns = 0
        self._lock = ExitStack()

    def open(self) -> None:
        """Lock and read the file, which need not exist, and make what it contains durable.

        Raises:
            CursorUnusable: the file cannot be locked, made, read or flushed, or is not a cursor; the text says what to
                do.
        """
        lock = self.path.with_suffix(".lock")
        try:
            make_folder(self.path.parent)
            self._lock.enter_context(alone_with(lock, f"another process uses the cursor {self.path}; give it another"))
            remove_drafts(self.path.parent, self.path.name)
            document = json.loads(self._inherited()) if self.path.exists() else None
        except (OSError, ValueError) as wrong:
            self._lock.close()
            if isinstance(wrong, FlushFailed):
                raise CursorUnusable(str(wrong)) from wrong
            remedy = f"; {REMEDIES[wrong.errno]}" if isinstance(wrong, OSError) and wrong.errno in REMEDIES else ""
            raise CursorUnusable(f"{self.path}: {wrong}{remedy}") from wrong
        if document is not None:
            self._read(document)

    def _inherited(self) -> bytes:
        """What an earlier process has stored, durable: it may have been killed before it flushed the file's name."""
        content = self.path.read_bytes()
        try:
            flush_file(self.path)
            sync_folder(self.path.parent)
        except FlushFailed:  # the next flush would succeed without having written anything
            replace_file(self.path, content)
        return content

    def _read(self, document: Any) -> None:
        try:
            found = document["format"]
            if found == FORMAT:
                self._feed, self.note = document["feed"], document["note"]
                self._positions = {topic: _position(each) for topic, each in document["topics"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as wrong:
            raise CursorUnusable(f"{self.path} is not a cursor: {wrong!r}; remove it to begin anew") from wrong
        if found != FORMAT:
            raise CursorUnusable(f"{self.path} has format {found}; expected {FORMAT}; remove it")
        self._stored = document

    def check_feed(self, feed: str) -> None:
        """Note the feed, whose numbers the positions are.

        Raises:
            CursorUnusable: they are of another feed.
        """
        if self._feed not in ("", feed):
            raise CursorUnusable(f"{self.path} is of feed {self._feed!r}, not {feed!r}; give another cursor")
        self._feed = feed

    @property
    def topics(self) -> frozenset[str]:
        """The topics of which something was handled, so that they continue there."""
        return frozenset(topic for topic, position in self._positions.items() if position.next_input_seq)

    def position(self, topic: str) -> TopicPosition | None:
        """How far a topic was handled; None if nothing of it was."""
        return self._positions.get(topic)

    def handled(self, topic: str, batch: Batch) -> None:
        """The application has handled a batch."""
        self.given = None
        if not batch.moves_cursor:
            return
        self.is_dirty = True
        self._positions[topic] = self._after(topic, batch, batch.packet.end_input_seq)

    def snapshot(self, topic: str = "", batch: Batch | None = None, before: Message | None = None) -> dict[str, Any]:
        """What to store now.

        Args:
            topic: that of the present batch.
            batch: the present batch; None: there is none.
            before: the first of its messages that was not handled; None: all were.
        """
        positions = dict(self._positions)
        if batch is not None and batch.moves_cursor:
            end = batch.packet.end_input_seq
            positions[topic] = self._after(topic, batch, end) if before is None else self._within(topic, batch, before)
        topics = {each: asdict(position) for each, position in positions.items()}
        return {"format": FORMAT, "feed": self._feed, "note": self.note, "topics": topics}

    @property
    def due_in_s(self) -> float:
        """In how many seconds to store what was handled."""
        return max(0.0, (self._store_at_ns - self._now_ns()) / 1e9)

    def write(self, snapshot: dict[str, Any]) -> None:
        """Replace the file, if there is anything new; on return, it is on the disk.

        Raises:
            OSError: it cannot be written; the old file is intact, or the new one is in its place and not durable. The
                next call writes everything again.
        """
        self._store_at_ns = self._now_ns() + STORE_EVERY_NS
        if snapshot == self._stored:
            self.is_dirty = False
            return
        self._stored = None  # unknown, if this fails
        replace_file(self.path, json.dumps(snapshot, indent=1).encode())
        self._stored, self.is_dirty = snapshot, False

    def close(self) -> None:
        """Unlock the file."""
        self._lock.close()

    def _after(self, topic: str, batch: Batch, next_input_seq: int) -> TopicPosition:
        """The position after the source messages of a batch before `next_input_seq`."""
        packet, former = batch.packet, self._positions.get(topic)
        is_same_session = former is not None and former.session == packet.session
        sources = dict(former.sources) if former is not None and is_same_session else {}
        sources.update(batch.skipped)
        next_message_seq = packet.first_message_seq
        for run in packet.runs:
            count = min(max(next_input_seq - run.first_input_seq, 0), run.source_count)
            if count:
                sources[run.source_stream_id] = run.first_source_seq + count
            if count == run.source_count:
                next_message_seq = run.end_message_seq
        if batch.is_provisional:  # its numbers are only its sender's
            if former is None or not is_same_session:
                return TopicPosition(packet.session, (), 0, 0, sources)
            return replace(former, sources=sources)
        return TopicPosition(packet.session, tuple(batch.lineage.entries), next_input_seq, next_message_seq, sources)

    def _within(self, topic: str, batch: Batch, given: Message) -> TopicPosition:
        """The position before a message of a batch."""
        origin = given.origin
        run = next(run for run in batch.packet.runs if origin.message_seq < run.end_message_seq)
        input_seq = run.first_input_seq + origin.source_seq - run.first_source_seq
        position = self._after(topic, batch, input_seq)
        begun_count = 0
        for message in batch.messages():
            if message.is_same_as(given):
                break
            begun_count += message.origin[2:4] == origin[2:4]
        begun = (origin.source_stream_id, origin.source_seq, begun_count) if begun_count else None
        return replace(position, begun=begun)


def _position(document: Mapping[str, Any]) -> TopicPosition:
    return TopicPosition(
        document["session"],
        tuple((epoch, first_input, first_message) for epoch, first_input, first_message in document["epochs"]),
        document["next_input_seq"],
        document["next_message_seq"],
        {int(stream): number for stream, number in document["sources"].items()},
        None if document["begun"] is None else tuple(document["begun"]),
    )
