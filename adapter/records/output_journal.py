"""The output journal: every output packet that this adapter transmitted, in plaintext, indexed by `input_seq` and
`message_seq`; and, at intervals, the state of its channels, from which a restart continues.

The loop's thread appends; replay threads look up. The journal itself is the index: the memory holds the places of some
packets, and a lookup reads forward from there (`SequenceMarks`). A newer epoch's numbers replace an older epoch's from
where the newer one begins, so a lookup never serves a packet that a newer epoch superseded here.

What was appended survives the death of the process. A thread flushes it once a second, so a power failure takes only
records of about the last second, some or all of them. If the disk refuses a flush, the journal has failed for as long
as this process runs: it drops what it is given, and says so.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tandemfeed.adapter.records.channel_marks import ChannelMarks, Where
from tandemfeed.adapter.records.locating import (
    READ_COUNT,
    LocatedSession,
    find_packet,
    heartbeat_at_end,
    packets_between,
)
from tandemfeed.adapter.records.provisional_index import ProvisionalIndex, holding
from tandemfeed.adapter.records.retransmissions import WantedPackets, read_retransmissions
from tandemfeed.adapter.records.saved_state import HEAD as STATE_HEAD
from tandemfeed.adapter.records.saved_state import MAGIC as STATE_MAGIC
from tandemfeed.adapter.records.saved_state import SavedState, decode_saved_state, encode_saved_state
from tandemfeed.feedcore.range_set import RangeSet
from tandemfeed.feedcore.replica.channel_state import ChannelSnapshot
from tandemfeed.feedcore.replica.output.save_schedule import STATE_SIZE_MAX
from tandemfeed.feedcore.wire.lineage import EpochStart
from tandemfeed.feedcore.wire.output_packet import (
    ANNOUNCEMENT_BIT,
    HEARTBEAT_BIT,
    OUTPUT_HEADER_SIZE,
    OUTPUT_LAYOUT,
    OUTPUT_MAGIC,
    PROVISIONAL_BIT,
    RETRANSMISSION_BIT,
    OutputPacket,
    decode_output_packet,
    encode_output_packet,
)
from tandemfeed.feedcore.wire.position import Run
from tandemfeed.feedcore.wire.provisional_commit import COMMIT_MAGIC, decode_commit
from tandemfeed.feedcore.wire.refusal import PacketRefused
from tandemfeed.journal import (
    Batch,
    DiskFull,
    Journal,
    JournalClosed,
    JournalError,
    JournalLocked,
    NoSuchRecord,
    RecordTooLong,
    Retention,
    Tailer,
    Upkeep,
)
from tandemfeed.journal.read.sequence_marks import UNBOUNDED, SequenceMarks, Stretch
from tandemfeed.runtime.durable import FlushFailed
from tandemfeed.runtime.threads import mark_unhealthy, start_thread

LOG = logging.getLogger("tandemfeed.adapter.records.output_journal")
BLOCK_SIZE = 32 << 20
RETAIN_BLOCKS = 64  # 2 GiB: at 20,000 messages of 74 bytes a second, more than twenty minutes
assert BLOCK_SIZE >= 2 * STATE_SIZE_MAX  # saving a state takes no block of its own
MAPPED_AHEAD = 1 << 20  # the kernel unmaps a killed adapter's memory during the takeover
TAILERS_KEPT = 4  # for later replays: a new tailer first reads every block, which takes some milliseconds
SCAN_COUNT = 16_384
STRETCHES_MAX = 1_024  # of `MARK_EVERY` packets, which a reader gets in one call
RETRY_WHEN_FULL_NS = 1_000_000_000  # an attempt on a full disk takes too long to repeat it for every packet
HEADER_NUMBERS = ("channel_id", "epoch", "first_input_seq", "first_message_seq")
FLUSH_INTERVAL_S = 1.0  # a flush takes some milliseconds of the disk, and none of the loop
NOT_NUMBERED_BITS = HEARTBEAT_BIT | PROVISIONAL_BIT | ANNOUNCEMENT_BIT  # not numbered messages
HEADER_FIELDS = OUTPUT_LAYOUT.dtype(
    ["magic", "flags", "channel_id", "session", "epoch", "first_input_seq", "first_message_seq"]
)


class OutputJournal:
    """One adapter process opens it; a second one is refused.

    Args:
        on_failed: called once, in any thread, with the reason, if the journal has failed for good.
        clock_ns: the monotonic clock.

    Owner: the loop's thread appends and changes every attribute, except for the failure. `_lock` is for what replay
    threads read, and for the failure.

    Attributes:
        held_since_ns: no other process has had the journal since then, by the monotonic clock.
        newest_session: the newest session of any packet in it; 0: there is no packet.
        dropped_count: records dropped because the disk was full or failed; clients cannot request them here.
        last_dropped_unix_ns: when the newest of them was dropped; 0: none.
        failure: why the journal has failed for good; empty: it has not.

    Raises:
        JournalError: the journal cannot be opened; the text says why and what to do.
    """

    def __init__(
        self,
        path: Path,
        *,
        block_size: int = BLOCK_SIZE,
        retain_blocks: int = RETAIN_BLOCKS,
        on_failed: Callable[[str], object] = lambda _reason: None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._path, self._on_failed, self._clock_ns = path, on_failed, clock_ns
        self.dropped_count = 0
        self.last_dropped_unix_ns = 0
        self.failure = ""
        self._is_dropping = False  # the last append was refused
        self._retry_at_ns = 0
        self._released_count = self._released_seen = 0  # files: counted by the upkeep thread, seen by the loop
        self._is_closing = threading.Event()
        self._flusher: threading.Thread | None = None
        upkeep = Upkeep(
            retention=Retention(files=retain_blocks), mapped_ahead=MAPPED_AHEAD, on_file_released=self._on_released
        )
        self._journal = Journal.open(path, block_size=block_size, exclusive=True, upkeep=upkeep)
        self.held_since_ns = clock_ns()
        self._channels: dict[Where, ChannelMarks] = {}
        self._states: dict[int, int] = {}  # channel_id -> place of its newest saved state
        self._final_heartbeats: dict[Where, int] = {}
        self._provisional: dict[Where, ProvisionalIndex] = {}
        self.newest_session = 0  # of any packet; 0: there is no packet
        self._lock = threading.Lock()
        self._tailers: list[Tailer] = []
        with self._journal.tailer() as tailer:
            while (batch := tailer.read_batch(SCAN_COUNT)) is not None:
                self._scan(batch)

    @property
    def is_failing(self) -> bool:
        """Whether packets are being dropped."""
        return self._is_dropping or bool(self.failure)

    def append(self, packet: OutputPacket) -> None:
        """Append one packet."""
        self.append_all((packet,))

    def append_all(self, packets: Sequence[OutputPacket]) -> None:
        """Append packets in their order; after a crash all or none exist. Replays see them when this returns. While the
        disk is full, and after it has failed, packets are dropped and counted."""
        first_index = self._append([encode_output_packet(packet) for packet in packets])
        if first_index is None:
            return
        for index, packet in enumerate(packets, first_index):
            if packet.flags & NOT_NUMBERED_BITS:
                self._note_rare(packet, index)
            else:
                where = packet.session, packet.channel_id
                self._note(where, packet.epoch, packet.first_input_seq, packet.first_message_seq, index)

    def commit_provisional(
        self, channel_id: int, epoch: int, first_input_seq: int, end_input_seq: int, session: int = 0
    ) -> None:
        """Turn the newest provisional packets of a session (0: the newest) within these `input_seq` into decisions of
        an epoch."""
        with self._lock:
            where = session or self.newest_session, channel_id
            provisional = self._provisional_of(where)
            commit = provisional.choose(channel_id, epoch, first_input_seq, end_input_seq, where[0])
            if commit is None:
                return
            places = provisional.commit(commit)
        self._append([commit.encode()])
        for place in places:
            self._note(where, epoch, place.first_input_seq, place.first_message_seq, place.journal_index)

    def save(self, feed_id: int, session: int, snapshot: ChannelSnapshot) -> None:
        """Append a channel's state."""
        index = self._append([encode_saved_state(SavedState(feed_id, session, snapshot))])
        if index is not None:
            self._states[snapshot.channel_id] = index

    def resumable(self, feed_id: int, session: int) -> list[tuple[ChannelSnapshot, list[Run]]]:
        """The newest state of each channel, if it is of this feed and session, and the decisions after it."""
        found = []
        for index in self._states.values():
            try:
                state = decode_saved_state(self._journal.read(index))
            except (NoSuchRecord, ValueError) as unreadable:
                LOG.warning("cannot use a saved state", extra={"index": f"{index:#x}", "why": str(unreadable)})
                continue
            if (state.feed_id, state.session) == (feed_id, session):
                found.append((state.snapshot, self._runs_after(index, state.snapshot.channel_id, session)))
        return found

    def final_heartbeats(self, feed_id: int, session: int) -> list[OutputPacket]:
        """The last heartbeats of this adapter in earlier sessions, which give the ends of those sessions."""
        words = []
        for index in self._final_heartbeats.values():
            with contextlib.suppress(NoSuchRecord, PacketRefused):  # retention may have released it
                word = decode_output_packet(self._journal.read(index))
                if word.feed_id == feed_id and word.session < session:
                    words.append(word)
        return words

    def _runs_after(self, index: int, channel_id: int, session: int) -> list[Run]:
        runs: list[Run] = []
        provisional = self._provisional_of((session, channel_id))
        with self._journal.tailer() as tailer:
            tailer.to_index(index)
            while batch := tailer.read_many(READ_COUNT):
                for place, record in batch:
                    try:
                        packet = decode_output_packet(record)
                    except PacketRefused:
                        continue  # not a packet
                    if (packet.channel_id, packet.session) == (channel_id, session):
                        counting = provisional.as_committed(packet, place)
                        runs += counting.runs if counting is not None else ()
        return runs

    def replay(self, channel_id: int, first_input_seq: int, end_input_seq: int, session: int = 0) -> Iterator[bytes]:
        """The packets of a session (0: the newest) that cover any `input_seq` of this range, as retransmissions.
        Packets that are not here are left out."""
        return self._replay(session, channel_id, first_input_seq, end_input_seq, by_message=False)

    def replay_messages(
        self, channel_id: int, first_message_seq: int, end_message_seq: int, session: int = 0
    ) -> Iterator[bytes]:
        """The same by `message_seq`; packets without messages between them are left out."""
        return self._replay(session, channel_id, first_message_seq, end_message_seq, by_message=True)

    def read_from(
        self, channel_id: int, session: int, first_input_seq: int
    ) -> tuple[list[Stretch], tuple[EpochStart, ...]]:
        """For readers of packets as they are: what to read for numbers from this on, in at most STRETCHES_MAX
        stretches, and the epochs so far."""
        with self._lock:
            marks = self._channels.get((session, channel_id))
            if marks is None:
                return [], ()
            return _window(marks.by_input, first_input_seq, UNBOUNDED)[0], marks.epochs

    def locate(
        self,
        channel_id: int,
        at_unix_ns: int,
        session: int = 0,
        *,
        message_seq: int = 0,
        any_session: bool = False,
    ) -> list[LocatedSession]:
        """Where the first packet is whose newest source message was sent at this time or later, by the source's clock.

        A search for the mark before it takes some reads, because packets are in the order in which they were sent.

        Args:
            session: 0: the newest.
            message_seq: locate this message of the session instead; 0: locate the time.
            any_session: locate it in the first of the sessions from `session` on (0: the oldest) with something so
                late, and give the beginning of each later session too. If no session has it: the end of the newest.

        Returns:
            Sessions in ascending order; none if nothing of them is here.
        """
        with self._lock:
            channels = self._channels.items()
            present = [each for (each, of), marks in channels if of == channel_id and marks.by_input.first_seqs]
        if any_session:
            sessions = sorted(each for each in present if each >= session)
        else:
            sessions = [each for each in present if each == (session or self.newest_session)]
        found: list[LocatedSession] = []
        at_end: LocatedSession | None = None
        for each in sessions:
            seq = message_seq if each == session else 0
            located = self._locate_in((each, channel_id), 0 if found else at_unix_ns, seq)
            if located is None:
                continue
            if located.at_unix_ns or found or message_seq or not at_unix_ns:
                found.append(located)
            else:
                at_end = located
        return found or ([at_end] if at_end is not None else [])

    def _locate_in(self, where: Where, at_unix_ns: int, message_seq: int) -> LocatedSession | None:
        """The same in one session; None: retention has released it meanwhile."""
        session, channel_id = where
        with self._lock:
            channel = self._channels[where]
            first_seqs, indices, epochs = channel.by_input.first_seqs[:], channel.by_input.indices[:], channel.epochs
        if not first_seqs:
            return None
        if message_seq:
            packets = self._lookup(session, channel_id, message_seq, message_seq + 1, by_message=True)
        else:
            with self.lent_tailer() as tailer:
                mark = max(bisect_left(indices, at_unix_ns, key=partial(_sent_at_ns, tailer)) - 1, 0)
            end_seq = first_seqs[mark + 2] if mark + 2 < len(first_seqs) else UNBOUNDED
            packets = self._lookup(session, channel_id, first_seqs[mark], end_seq, by_message=False)
        with contextlib.closing(packets):
            found = find_packet(packets, at_unix_ns, message_seq)
        heartbeat = self._last_heartbeat(where, first_seqs[-1], epochs)
        if found is None or heartbeat is None:
            return None
        return LocatedSession(session, *found, found.place.input_seq <= first_seqs[0], heartbeat)

    def _last_heartbeat(self, where: Where, from_seq: int, epochs: tuple[EpochStart, ...]) -> OutputPacket | None:
        """The final heartbeat of a session, or one made of its last packets, those from an `input_seq` on."""
        index = self._final_heartbeats.get(where)
        if index is not None:
            with contextlib.suppress(NoSuchRecord, PacketRefused), self.lent_tailer() as tailer:
                return decode_output_packet(tailer.read_at(index))  # unless retention has released it
        packets = deque(self._replay(*where, from_seq, UNBOUNDED, by_message=False), maxlen=1)
        if not packets:
            return None
        return heartbeat_at_end(decode_output_packet(packets[0]), epochs)

    def replay_provisional(self, channel_id: int, wanted: Mapping[int, RangeSet], session: int = 0) -> Iterator[bytes]:
        """The provisional packets of a session (0: the newest) with any of these source messages, by source stream, as
        retransmissions.

        Args:
            wanted: source_stream_id -> source messages.
        """
        with self._lock:  # which the loop needs too, so the search comes after it
            provisional = self._provisional.get((session or self.newest_session, channel_id))
            places = list(provisional.places) if provisional is not None else []
        if not (found := holding(places, wanted)):
            return
        with self.lent_tailer() as tailer:
            for index in found:
                try:
                    packet = decode_output_packet(tailer.read_at(index))
                except (NoSuchRecord, PacketRefused):
                    continue  # released by retention meanwhile
                yield encode_output_packet(packet._replace(flags=packet.flags | RETRANSMISSION_BIT))

    def disk_space(self) -> tuple[int, int]:
        """(free for this process, size) of the journal's disk, in bytes."""
        disk = os.statvfs(self._path)
        return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize

    def flush(self) -> None:
        """Flush everything that was appended before the call. If the disk refuses, the journal has failed. From any
        thread."""
        try:
            self._journal.sync()
        except (JournalError, OSError) as refused:
            self._fail(str(refused))

    def start_upkeep(self) -> None:
        """Start the threads that make blocks ahead of time and flush now, with the calling thread's priority: a flush
        holds the appenders' lock for a moment, so it must not be the last to get a processor."""
        self._journal.start_upkeep()
        self._flusher = start_thread(self._keep_flushing, "output-flush", self._on_flusher_failed)

    def close(self) -> None:
        """Flush and close.

        Raises:
            JournalError, FlushFailed: not everything is on the disk.
        """
        self._is_closing.set()
        if self._flusher is not None:
            self._flusher.join()
        with self._lock:
            tailers, self._tailers = self._tailers, []
        for tailer in tailers:
            tailer.close()
        self._journal.close()

    def _replay(
        self, session: int, channel_id: int, first_seq: int, end_seq: int, *, by_message: bool
    ) -> Iterator[bytes]:
        while (found := self._look(session, channel_id, first_seq, end_seq, by_message=by_message)) is not None:
            wanted = WantedPackets(*found.where, first_seq, found.next_seq, by_message=by_message)
            if found.provisional is None:
                with self.lent_tailer() as tailer:
                    yield from read_retransmissions(tailer, found.stretches, wanted, found.end_index)
            else:
                for packet in self._read(found, first_seq, by_message=by_message):
                    if wanted.has(packet):
                        yield encode_output_packet(packet._replace(flags=packet.flags | RETRANSMISSION_BIT))
            first_seq = found.next_seq

    def _lookup(
        self, session: int, channel_id: int, first_seq: int, end_seq: int, *, by_message: bool
    ) -> Generator[OutputPacket, None, None]:
        """The numbered packets from the one that may hold `first_seq` on, some beyond `end_seq` included."""
        while (found := self._look(session, channel_id, first_seq, end_seq, by_message=by_message)) is not None:
            yield from self._read(found, first_seq, by_message=by_message)
            first_seq = found.next_seq

    def _look(self, session: int, channel_id: int, first_seq: int, end_seq: int, *, by_message: bool) -> _Found | None:
        """What to read for the next of these numbers; None: there is nothing more."""
        with self._lock:
            where = session or self.newest_session, channel_id
            channel = self._channels.get(where)
            if channel is None or first_seq >= end_seq:
                return None
            marks = channel.by_message if by_message else channel.by_input
            stretches, next_seq = _window(marks, first_seq, end_seq)
            if not stretches:
                return None
            return _Found(where, stretches, next_seq, self._provisional.get(where), self._end_index(where))

    def _read(self, found: _Found, first_seq: int, *, by_message: bool) -> Iterator[OutputPacket]:
        """The numbered packets there, up to one with the next number to look for or beyond."""
        where, stretches, next_seq, provisional, end_index = found
        with self.lent_tailer() as tailer:
            for stretch in stretches:
                for packet in packets_between(tailer, stretch.begin_index, end_index, where, provisional):
                    number = packet.first_message_seq if by_message else packet.first_input_seq
                    if number >= stretch.until_seq:
                        break
                    yield packet
                    if number >= next_seq:
                        return

    def _end_index(self, where: Where) -> int:
        """Where the channel's next session begins: a channel appends nothing of a session after that. Needs the lock.

        Without it, a reader of the end of a former session would read the whole journal after it.
        """
        session, channel_id = where
        later = [
            marks.by_input.indices[0]
            for (each, of), marks in self._channels.items()
            if of == channel_id and each > session and marks.by_input.indices
        ]
        return min(later, default=UNBOUNDED)

    @contextlib.contextmanager
    def lent_tailer(self) -> Iterator[Tailer]:
        """A tailer kept for replays, or a new one."""
        with self._lock:
            tailer = self._tailers.pop() if self._tailers else None
        tailer = tailer or self._journal.tailer()
        try:
            yield tailer
        finally:
            with self._lock:
                is_kept = len(self._tailers) < TAILERS_KEPT
                if is_kept:
                    self._tailers.append(tailer)
            if not is_kept:
                tailer.close()

    def _append(self, records: Sequence[bytes]) -> int | None:
        """Append records. Returns the first one's index; None if they are dropped."""
        if self.failure or (self._retry_at_ns and self._clock_ns() < self._retry_at_ns):
            self._note_dropped(len(records))
            return None
        self._retry_at_ns = 0  # try again; log only if the disk still refuses
        try:
            index = self._journal.append(records[0]) if len(records) == 1 else self._journal.append_batch(records)
        except (RecordTooLong, JournalClosed):
            raise  # a fault of this program
        except (DiskFull, JournalLocked, OSError) as refused:
            self._note_dropped(len(records))
            if isinstance(refused, FlushFailed):
                self._fail(str(refused))
                return None
            self._retry_at_ns = self._clock_ns() + RETRY_WHEN_FULL_NS
            what = "disk full" if isinstance(refused, DiskFull) else "the disk refuses packets"
            LOG.error(f"{what}; not journaling packets", extra={"why": str(refused), "dropped": self.dropped_count})
            return None
        except JournalError as failed:
            self._note_dropped(len(records))
            self._fail(str(failed))
            return None
        self._is_dropping = False
        return index

    def _note_dropped(self, count: int) -> None:
        self.dropped_count += count
        self._is_dropping = True
        self.last_dropped_unix_ns = time.time_ns()

    # ---- the disk; in the flusher's thread ----

    def _keep_flushing(self) -> None:
        flushed_until = 0
        while not self._is_closing.wait(FLUSH_INTERVAL_S) and not self.failure:
            end = self._journal.next_index
            if end != flushed_until:
                self.flush()
                flushed_until = end

    def _on_flusher_failed(self, name: str, failure: BaseException) -> None:
        mark_unhealthy(name, failure)
        self._fail(f"its thread {name} failed ({type(failure).__name__}: {failure}), so nothing is flushed")

    def _fail(self, reason: str) -> None:
        """From any thread."""
        with self._lock:
            if self.failure:
                return
            self.failure = reason
        LOG.error("the output journal has failed; not journaling packets until a restart", extra={"why": reason})
        self._on_failed(reason)

    def _note(self, where: Where, epoch: int, first_input_seq: int, first_message_seq: int, index: int) -> None:
        marks = self._channels.get(where)
        released_count = self._released_count
        has_released = released_count != self._released_seen
        if marks is not None and not has_released and marks.is_found_from_before(epoch, first_input_seq):
            return  # without the lock, which nearly every packet can spare
        with self._lock:
            if marks is None:
                marks = self._channels[where] = ChannelMarks()
                self.newest_session = max(self.newest_session, where[0])
            marks.mark(epoch, first_input_seq, first_message_seq, index)
            if has_released:
                self._released_seen = released_count
                first_index = self._journal.first_index
                for each in self._channels.values():
                    each.release(first_index)

    def _note_rare(self, packet: OutputPacket, index: int) -> None:
        """A provisional packet, or the last heartbeat of a session."""
        where = packet.session, packet.channel_id
        if packet.flags & PROVISIONAL_BIT:
            with self._lock:
                self._provisional_of(where).note(packet, index)
        elif packet.flags & HEARTBEAT_BIT:
            self._final_heartbeats[where] = index

    def _scan(self, batch: Batch) -> None:
        """Note what an earlier process appended."""
        headers = batch.heads(OUTPUT_HEADER_SIZE).view(HEADER_FIELDS).reshape(-1)
        for place in np.flatnonzero(headers["magic"] == int.from_bytes(STATE_MAGIC, "little")).tolist():
            head = batch[place][: STATE_HEAD.size].tobytes()
            (channel_id,) = STATE_HEAD.part("channel_id").unpack_from(head, STATE_HEAD.offsets["channel_id"])
            self._states[channel_id] = batch.first_index + place
        is_packet = headers["magic"] == OUTPUT_MAGIC
        is_numbered = is_packet & (headers["flags"] & NOT_NUMBERED_BITS == 0)
        is_rare = is_packet & (headers["flags"] & PROVISIONAL_BIT != 0)
        is_rare |= is_packet & (headers["flags"] & HEARTBEAT_BIT != 0)
        is_rare |= headers["magic"] == int.from_bytes(COMMIT_MAGIC, "little")
        chosen = np.flatnonzero(is_numbered | is_rare)
        rows = headers[chosen]
        columns = [rows[name].tolist() for name in ("session", *HEADER_NUMBERS)]
        are_rare = is_rare[chosen].tolist()
        for place, rare, session, channel_id, epoch, first_input, first_message in zip(
            chosen.tolist(), are_rare, *columns, strict=True
        ):
            index = batch.first_index + place
            if rare:
                self._scan_rare(batch[place].tobytes(), index)
            else:
                self._note((session, channel_id), epoch, first_input, first_message, index)

    def _scan_rare(self, record: bytes, index: int) -> None:
        """A provisional packet, a commit, or the last heartbeat of a session."""
        try:
            if not record.startswith(COMMIT_MAGIC):
                packet = decode_output_packet(record)
                place = packet.session, packet.channel_id
                if packet.flags & PROVISIONAL_BIT:
                    self._provisional_of(place).note(packet, index)
                else:
                    self._final_heartbeats[place] = index
                return
            commit = decode_commit(record)
        except (PacketRefused, ValueError):
            return
        where = commit.session, commit.channel_id
        for found in self._provisional_of(where).commit(commit):
            self._note(where, commit.epoch, found.first_input_seq, found.first_message_seq, found.journal_index)

    def _provisional_of(self, where: Where) -> ProvisionalIndex:
        self.newest_session = max(self.newest_session, where[0])
        return self._provisional.setdefault(where, ProvisionalIndex())

    def _on_released(self, _path: Path) -> None:
        self._released_count += 1  # called in the upkeep thread, and only the loop changes the marks


class _Found(NamedTuple):
    """What to read for some numbers of a channel.

    Attributes:
        next_seq: the number to look for next.
        provisional: None: the channel has none.
        end_index: from this place in the journal on there are no packets of the session.
    """

    where: Where
    stretches: list[Stretch]
    next_seq: int
    provisional: ProvisionalIndex | None
    end_index: int


def _window(marks: SequenceMarks, first_seq: int, end_seq: int) -> tuple[list[Stretch], int]:
    """What to read for numbers from the first one on, in at most STRETCHES_MAX stretches, because the loop waits for
    the lock meanwhile; and the first number after them."""
    firsts = marks.first_seqs
    after = max(bisect_right(firsts, first_seq) - 1, 0) + STRETCHES_MAX
    next_seq = min(end_seq, firsts[after]) if after < len(firsts) else end_seq
    return marks.stretches(first_seq, next_seq - 1), next_seq


def _sent_at_ns(tailer: Tailer, index: int) -> int:
    """When the newest source message of the packet at a place in the journal was sent."""
    try:
        return decode_output_packet(tailer.read_at(index)).source_sent_at_ns
    except (NoSuchRecord, PacketRefused):
        return 0  # released by retention meanwhile, and so it is among the oldest
