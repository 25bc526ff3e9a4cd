"""The output journal: replay by `input_seq` from the journal itself, over epochs, restarts and retention."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemfeed.adapter.records import output_journal
from tandemfeed.adapter.records.channel_marks import ChannelMarks
from tandemfeed.adapter.records.output_journal import OutputJournal
from tandemfeed.adapter.records.saved_state import SavedState, decode_saved_state, encode_saved_state
from tandemfeed.feedcore.replica.channel_state import ChannelSnapshot
from tandemfeed.feedcore.wire.lineage import EpochStart, Lineage, decode_lineage
from tandemfeed.feedcore.wire.output_packet import (
    OUTPUT_FRAME,
    OUTPUT_FRAME_SIZE,
    OutputFlag,
    OutputPacket,
    decode_output_packet,
    encode_runs,
)
from tandemfeed.feedcore.wire.position import MessageStreamState, Run
from tandemfeed.journal import Tailer
from tandemfeed.journal.read.sequence_marks import MARK_EVERY, UNBOUNDED
from tests.small_disk import SmallDisk

BLOCK = 1 << 18
FIRST = Lineage((EpochStart(1, 1, 1),))


def packet(
    channel: int, first: int, count: int, epoch: int = 1, *, first_message: int | None = None, is_silent: bool = False
) -> OutputPacket:
    """A packet with payload that identifies its messages; by default, `message_seq` equals `input_seq`."""
    message_count = 0 if is_silent else count
    first_message = first if first_message is None else first_message
    runs = (Run(epoch, first, first_message, 1, first, count, message_count),)
    frames = b"".join(
        OUTPUT_FRAME.pack(OUTPUT_FRAME_SIZE + 8, place) + b"%08d" % (first + place) for place in range(message_count)
    )
    return OutputPacket(
        0, 1, channel, 1, 20_261_121, epoch, first, first_message, message_count, runs, 0, 0, encode_runs(runs) + frames
    )


def as_seen(found: Iterable[bytes]) -> list[tuple[int, int, int]]:
    """(epoch, first input_seq, source count) of each replayed packet."""
    packets = [decode_output_packet(data) for data in found]
    assert all(each.flags & OutputFlag.RETRANSMISSION for each in packets)
    return [(each.epoch, each.first_input_seq, each.end_input_seq - each.first_input_seq) for each in packets]


def replayed(journal: OutputJournal, channel: int, first: int, end: int) -> list[tuple[int, int, int]]:
    """The packets that replay by input_seq returns."""
    return as_seen(journal.replay(channel, first, end))


@pytest.mark.parametrize("stretches_max", [output_journal.STRETCHES_MAX, 2])
def test_exactly_the_packets_that_cover_the_source_messages_are_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stretches_max: int
) -> None:
    """Also if they are looked up piece by piece."""
    monkeypatch.setattr(output_journal, "STRETCHES_MAX", stretches_max)
    journal = OutputJournal(tmp_path, block_size=BLOCK)
    source, firsts, seq = random.Random(1), {1: [], 2: []}, {1: 1, 2: 1}
    for _ in range(3_000):
        channel, count = source.choice((1, 2)), source.randint(1, 9)
        journal.append(packet(channel, seq[channel], count))
        firsts[channel].append((seq[channel], count))
        seq[channel] += count
    for is_reopened in (False, True):
        if is_reopened:
            journal.close()
            journal = OutputJournal(tmp_path, block_size=BLOCK)
        for channel in (1, 2):
            for _ in range(60):
                first = source.randrange(1, seq[channel])
                end = min(first + source.choice((1, 2, 41, 5_001)), seq[channel] + 11)
                expected = [(1, a, n) for a, n in firsts[channel] if a < end and a + n > first]
                assert replayed(journal, channel, first, end) == expected
                assert as_seen(journal.replay_messages(channel, first, end)) == expected
        assert replayed(journal, 3, 1, 100) == []
    journal.close()


def test_packets_without_messages_are_replayed_by_input_seq(tmp_path: Path) -> None:
    journal = OutputJournal(tmp_path, block_size=BLOCK)
    input_seq, message_seq, firsts = 1, 1, []
    for number in range(4 * MARK_EVERY):
        is_silent = number % 3 != 0
        journal.append(packet(1, input_seq, 2, first_message=message_seq, is_silent=is_silent))
        if not is_silent:
            firsts.append((message_seq, input_seq))
        input_seq, message_seq = input_seq + 2, message_seq + (0 if is_silent else 2)
    for is_reopened in (False, True):
        if is_reopened:
            journal.close()
            journal = OutputJournal(tmp_path, block_size=BLOCK)
        assert replayed(journal, 1, 1, input_seq) == [(1, first, 2) for first in range(1, input_seq, 2)]
        assert replayed(journal, 1, 4, 6) == [(1, 3, 2), (1, 5, 2)]
        for wanted_message, wanted_input in firsts:
            found = as_seen(journal.replay_messages(1, wanted_message + 1, wanted_message + 2))
            assert found == [(1, wanted_input, 2)]
        assert as_seen(journal.replay_messages(1, 1, message_seq)) == [(1, first, 2) for _, first in firsts]
    journal.close()


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 400), st.integers(1, 8), st.integers(0, 300)), min_size=1, max_size=6))
def test_packets_that_a_newer_epoch_superseded_are_never_replayed(
    tmp_path_factory: pytest.TempPathFactory, terms: list[tuple[int, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("epochs")
    journal = OutputJournal(folder, block_size=BLOCK)
    model: list[tuple[int, int, int]] = []
    seq = 1
    for epoch, (packets, count, back) in enumerate(terms, 1):
        seq = max(1, seq - back)
        model = [each for each in model if each[1] < seq]
        for _ in range(packets):
            journal.append(packet(1, seq, count, epoch))
            model.append((epoch, seq, count))
            seq += count
    for is_reopened in (False, True):
        if is_reopened:
            journal.close()
            journal = OutputJournal(folder, block_size=BLOCK)
        assert replayed(journal, 1, 1, seq) == model
        for first in range(1, seq, max(seq // 7, 1)):
            # If an epoch began in the middle of a packet, two packets contain the number, and the newer one counts.
            holding = [each for each in model if each[1] <= first < each[1] + each[2]]
            assert replayed(journal, 1, first, first + 1) == holding[-1:]
            assert as_seen(journal.replay_messages(1, first, first + 1)) == holding[-1:]
    journal.close()


def test_packets_that_retention_released_are_left_out_and_their_places_forgotten(tmp_path: Path) -> None:
    journal = OutputJournal(tmp_path, block_size=BLOCK, retain_blocks=2)
    for first in range(1, 40_000, 20):
        journal.append(packet(1, first, 20))
    journal._journal._keeper._pool.submit(lambda: None).result()  # the upkeep thread has finished
    journal.append(packet(1, 40_001, 20))
    marks = journal._channels[journal.newest_session, 1].by_input
    assert min(marks.indices) >= journal._journal.first_index
    assert len(marks.indices) < 2_000 / MARK_EVERY
    kept = replayed(journal, 1, 1, 50_000)
    assert kept[-1] == (1, 40_001, 20)
    assert 100 < len(kept) < 2_000
    assert [first for _, first, _ in kept] == list(range(kept[0][1], 40_002, 20))
    journal.close()


SNAPSHOT = ChannelSnapshot(
    7, MessageStreamState(3, 201, 101, {1: 51, 2: 52}), Lineage((EpochStart(3, 190, 90),)), b"conversion state"
)
GOLDEN = bytes.fromhex(
    "54465332" "0100" "0700" "4d2a3501" "03000000"
    "be00000000000000" "5a00000000000000" "c900000000000000" "6500000000000000"
    "02000000" "00000000"
    "01000000" "00000000" "3300000000000000"
    "02000000" "00000000" "3400000000000000"
    "636f6e76657273696f6e207374617465"
)  # fmt: skip


def test_the_encoding_of_a_saved_state_never_changes() -> None:
    state = SavedState(1, 20_261_453, SNAPSHOT)
    assert encode_saved_state(state).hex() == GOLDEN.hex()
    assert decode_saved_state(GOLDEN) == state
    for damaged in (b"", GOLDEN[:55], GOLDEN[:80], b"TFO2" + GOLDEN[4:]):
        with pytest.raises(ValueError, match="saved state"):
            decode_saved_state(damaged)


def test_the_newest_state_of_each_channel_is_found_after_a_restart(tmp_path: Path) -> None:
    journal = OutputJournal(tmp_path, block_size=BLOCK)
    small = ChannelSnapshot(1, MessageStreamState(1, 5, 5, {1: 5}), FIRST, b"")
    journal.save(1, 20_261_121, small)
    journal.append(packet(1, 1, 4))
    journal.save(1, 20_261_121, SNAPSHOT)
    newer = ChannelSnapshot(1, MessageStreamState(1, 9, 9, {1: 9}), FIRST, bytes(500))
    journal.save(1, 20_261_121, newer)
    journal.close()
    journal = OutputJournal(tmp_path, block_size=BLOCK)
    transmitted = packet(1, 9, 2)
    journal.append(packet(2, 7, 2))
    journal.append(transmitted)
    found = sorted(journal.resumable(1, 20_261_121), key=lambda each: each[0].channel_id)
    assert found == [(newer, list(transmitted.runs)), (SNAPSHOT, [])]
    assert journal.resumable(1, 20_261_122) == journal.resumable(2, 20_261_121) == []
    assert replayed(journal, 1, 1, 10) == [(1, 1, 4), (1, 9, 2)]
    journal.close()


def test_a_full_disk_does_not_stop_the_stream_and_journaling_resumes(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    now_ns = 1
    with SmallDisk(disk, "1m"):
        journal = OutputJournal(disk / "journal", block_size=BLOCK, clock_ns=lambda: now_ns)
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(300 << 10))
        first = 1
        while not journal.dropped_count:
            journal.append(packet(1, first, 9))
            first += 9
        assert journal.is_failing
        assert journal.last_dropped_unix_ns > 0
        free, size = journal.disk_space()
        assert free < size == 1 << 20
        kept = replayed(journal, 1, 1, first)
        assert kept[0] == (1, 1, 9)
        assert kept[-1] == (1, first - 18, 9)
        ballast.unlink()
        journal.append(packet(1, first, 9))  # retried only after a pause
        assert journal.dropped_count == 2
        now_ns += 10**10
        assert journal.is_failing
        journal.append(packet(1, first + 9, 9))
        assert not journal.is_failing
        assert replayed(journal, 1, 1, first + 20) == [*kept, (1, first + 9, 9)]
        journal.close()


@pytest.mark.parametrize("is_reopened", [False, True])
def test_each_session_has_its_own_numbers(tmp_path: Path, is_reopened: bool) -> None:
    journal = OutputJournal(tmp_path, block_size=BLOCK)
    session = packet(1, 1, 2).session
    assert journal.newest_session == 0
    journal.append(packet(1, 1, 4))
    journal.append(packet(1, 5, 4))
    word = packet(1, 9, 1)._replace(
        flags=OutputFlag.HEARTBEAT | OutputFlag.END_OF_STREAM, message_count=0, runs=(), payload=b""
    )
    journal.append(word)
    journal.append(packet(1, 1, 2)._replace(session=session + 1))
    if is_reopened:
        journal.close()
        journal = OutputJournal(tmp_path, block_size=BLOCK)
    assert journal.newest_session == session + 1
    assert as_seen(journal.replay(1, 1, 50)) == [(1, 1, 2)]
    assert as_seen(journal.replay(1, 1, 50, session)) == [(1, 1, 4), (1, 5, 4)]
    assert as_seen(journal.replay_messages(1, 1, 50, session + 1)) == [(1, 1, 2)]
    assert as_seen(journal.replay(1, 1, 50, session + 2)) == []
    assert journal.final_heartbeats(word.feed_id, session + 1) == [word]
    assert journal.final_heartbeats(word.feed_id, session) == []
    journal.close()


def test_the_first_packet_after_all_marks_were_released_is_found() -> None:
    marks = ChannelMarks()
    assert not marks.is_found_from_before(1, 1)
    marks.mark(1, 1, 1, index=1)
    assert marks.is_found_from_before(1, 2)
    marks.release(first_index=3)
    assert not marks.is_found_from_before(1, 3)
    marks.mark(1, 3, 3, index=3)
    assert [stretch.begin_index for stretch in marks.by_input.stretches(3, 3)] == [3]
    assert [stretch.begin_index for stretch in marks.by_message.stretches(3, 3)] == [3]


def test_the_first_message_since_a_time_is_found_over_epochs_restarts_and_sessions(tmp_path: Path) -> None:
    """Packets of two messages, one each 10 ns; some make no message; epoch 2 renumbers the last of epoch 1."""
    journal = OutputJournal(tmp_path, block_size=BLOCK)
    sent: list[tuple[int, int]] = []  # (time, message_seq) of what counts
    next_message = 1
    count = 5 * MARK_EVERY
    for epoch, first, end in ((1, 0, count), (2, count - 9, 2 * count)):
        del sent[first:]
        next_message = sent[-1][1] + 2 if sent else 1
        for at in range(first, end):
            seq = 2 * at + 1
            each = packet(1, seq, 2, epoch, first_message=next_message)
            journal.append(each._replace(source_sent_at_ns=1_000 + 10 * at))
            sent.append((1_000 + 10 * at, next_message))
            next_message += 2

    def found(at_unix_ns: int, session: int = 0, channel_id: int = 1) -> list[tuple[int, int]]:
        located = journal.locate(channel_id, at_unix_ns, session)
        assert all(each.place.input_seq - each.place.message_seq == 0 for each in located)
        return [(each.place.message_seq, each.at_unix_ns) for each in located]

    for is_reopened in (False, True):
        if is_reopened:
            journal.close()
            journal = OutputJournal(tmp_path, block_size=BLOCK)
        for at in (0, 1, count // 2, count - 10, count - 9, count, 2 * count - 1):
            time_ns, message_seq = sent[at]
            assert found(time_ns) == found(time_ns - 9) == [(message_seq, time_ns)]
        assert found(0) == [(1, 1_000)]
        assert found(sent[-1][0] + 1) == [(next_message, 0)]
        assert found(0, channel_id=2) == found(0, session=20_261_122) == []
    later = packet(1, 1, 2)._replace(session=20_261_122, source_sent_at_ns=90_000)
    journal.append(later)
    assert found(0) == [(1, 90_000)]
    assert found(1_001, session=20_261_121) == [(3, 1_010)]
    journal.close()


DAYS = (20_261_120, 20_261_121, 20_261_122)
DAY_NS = 1_000_000
PACKETS_OF_A_DAY = 3 * MARK_EVERY


def three_days(tmp_path: Path, *, packet_count: int = PACKETS_OF_A_DAY, retain_blocks: int = 64) -> OutputJournal:
    """A journal of three sessions, of two channels; in the second session epoch 2 follows. The first two have ended."""
    journal = OutputJournal(tmp_path, block_size=BLOCK, retain_blocks=retain_blocks)
    half = packet_count // 2
    for day, session in enumerate(DAYS):
        for at in range(packet_count):
            epoch = 2 if day == 1 and at >= half else 1
            for channel in (1, 2):
                each = packet(channel, 2 * at + 1, 2, epoch)
                sent_at_ns = (1 + day) * DAY_NS + at
                journal.append(each._replace(session=session, source_sent_at_ns=sent_at_ns))
        if session != DAYS[-1]:
            lineage = FIRST.opened(2, 2 * half + 1, 2 * half + 1) if day == 1 else FIRST
            for channel in (1, 2):
                journal.append(final_heartbeat(channel, session, 2 * packet_count + 1, lineage))
    return journal


def final_heartbeat(channel: int, session: int, end: int, lineage: Lineage) -> OutputPacket:
    return packet(channel, end, 0)._replace(
        flags=OutputFlag.HEARTBEAT | OutputFlag.END_OF_STREAM,
        session=session,
        epoch=lineage.epoch,
        runs=(),
        message_count=0,
        payload=lineage.encode(1_000),
    )


@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_time_is_located_in_the_first_session_with_something_so_late_and_each_later_one_from_its_beginning(
    tmp_path: Path, is_reopened: bool
) -> None:
    journal = three_days(tmp_path)
    if is_reopened:
        journal.close()
        journal = OutputJournal(tmp_path, block_size=BLOCK)

    def places(at_unix_ns: int, session: int = 0, message_seq: int = 0) -> list[tuple[int, int, int, bool]]:
        located = journal.locate(1, at_unix_ns, session, message_seq=message_seq, any_session=True)
        return [(each.session, *each.place, each.is_oldest) for each in located]

    beginnings = [(session, 1, 1, True) for session in DAYS]
    assert places(0) == places(DAY_NS) == beginnings
    assert places(0, DAYS[1]) == beginnings[1:]
    assert places(DAY_NS + 70) == [(DAYS[0], 141, 141, False), *beginnings[1:]]
    assert places(DAY_NS + PACKETS_OF_A_DAY) == beginnings[1:], "the night between two sessions"
    assert places(2 * DAY_NS + 1) == [(DAYS[1], 3, 3, False), beginnings[2]]
    end = 2 * PACKETS_OF_A_DAY + 1
    assert places(4 * DAY_NS) == [(DAYS[2], end, end, False)]
    assert places(0, DAYS[0], message_seq=101) == [(DAYS[0], 101, 101, False), *beginnings[1:]]
    assert places(0, DAYS[0], message_seq=end + 1) == [(DAYS[0], end, end, False), *beginnings[1:]]
    assert places(0, DAYS[0] - 1, message_seq=5) == beginnings
    journal.close()


@pytest.mark.parametrize("is_reopened", [False, True])
def test_located_sessions_tell_where_they_end_and_which_epochs_count(tmp_path: Path, is_reopened: bool) -> None:
    journal = three_days(tmp_path)
    if is_reopened:
        journal.close()
        journal = OutputJournal(tmp_path, block_size=BLOCK)
    heartbeats = [each.heartbeat for each in journal.locate(1, 0, any_session=True)]
    end = 2 * PACKETS_OF_A_DAY + 1
    assert {(each.first_input_seq, each.first_message_seq) for each in heartbeats} == {(end, end)}
    assert [bool(each.flags & OutputFlag.END_OF_STREAM) for each in heartbeats] == [True, True, False]
    epochs = [[entry.epoch for entry in decode_lineage(each.payload).entries] for each in heartbeats]
    assert epochs == [[1], [1, 2], [1]]
    assert [each.epoch for each in heartbeats] == [1, 2, 1]
    journal.close()


def test_a_session_without_a_final_heartbeat_ends_where_its_packets_end(tmp_path: Path) -> None:
    journal = OutputJournal(tmp_path, block_size=BLOCK)
    for session in DAYS[:2]:
        for epoch, first in ((3, 1), (4, 3), (5, 3), (5, 5)):
            journal.append(packet(1, first, 2, epoch)._replace(session=session, source_sent_at_ns=DAY_NS))
    former, _ = journal.locate(1, 0, any_session=True)
    assert (former.heartbeat.first_input_seq, former.heartbeat.flags) == (7, OutputFlag.HEARTBEAT)
    assert decode_lineage(former.heartbeat.payload).entries == (EpochStart(3, 1, 1), EpochStart(5, 3, 3))
    journal.close()


def test_retention_shortens_the_oldest_session_and_removes_those_before_it(tmp_path: Path) -> None:
    journal = three_days(tmp_path, packet_count=2_000, retain_blocks=2)
    journal._journal._keeper._pool.submit(lambda: None).result()  # the upkeep thread has finished
    journal.append(packet(2, 2 * 2_000 + 1, 2)._replace(session=DAYS[-1]))
    oldest, *_ = journal.locate(1, 0, any_session=True)
    assert (oldest.session, oldest.place.input_seq) > (DAYS[0], 1)
    assert oldest.is_oldest
    replayed = next(journal.replay(1, 1, UNBOUNDED, oldest.session))
    assert decode_output_packet(replayed).first_input_seq == oldest.place.input_seq
    journal.close()


def test_the_end_of_a_former_session_is_read_without_the_sessions_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = three_days(tmp_path, packet_count=20 * MARK_EVERY)
    counts: list[int] = []
    read_batch, read_many = Tailer.read_batch, Tailer.read_many

    def counted_batch(*arguments: Any, **options: Any) -> Any:
        batch = read_batch(*arguments, **options)
        counts.append(len(batch or ()))
        return batch

    def counted_many(*arguments: Any) -> Any:
        found = read_many(*arguments)
        counts.append(len(found))
        return found

    monkeypatch.setattr(Tailer, "read_batch", counted_batch)
    monkeypatch.setattr(Tailer, "read_many", counted_many)
    end = 2 * 20 * MARK_EVERY + 1
    assert list(journal.replay(1, end - 2, end + 1_000, DAYS[0]))
    assert journal.locate(1, 0, DAYS[0])
    assert 0 < sum(counts) < 20 * MARK_EVERY, "each session has twice as many packets"
    journal.close()


def test_tailers_are_kept_for_later_replays_and_closed_beyond_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, closed, close = OutputJournal(tmp_path, block_size=BLOCK), list[int](), Tailer.close
    monkeypatch.setattr(Tailer, "close", lambda tailer: closed.append(id(tailer)) or close(tailer))
    with ExitStack() as lent:
        tailers = {id(lent.enter_context(journal.lent_tailer())) for _ in range(output_journal.TAILERS_KEPT + 2)}
    assert len(closed) == 2
    with ExitStack() as lent:
        again = {id(lent.enter_context(journal.lent_tailer())) for _ in range(output_journal.TAILERS_KEPT)}
        assert again == tailers - set(closed)
    journal.close()
