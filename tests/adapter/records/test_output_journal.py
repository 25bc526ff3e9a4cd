"""The output journal: replay by `input_seq` from the journal itself, over epochs, restarts and retention."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemfeed.adapter.records.output_journal import ChannelMarks, OutputJournal
from tandemfeed.adapter.records.saved_state import SavedState, decode_saved_state, encode_saved_state
from tandemfeed.feedcore.replica.channel_state import ChannelSnapshot
from tandemfeed.feedcore.wire.lineage import EpochStart, Lineage
from tandemfeed.feedcore.wire.output_packet import (
    OUTPUT_FRAME,
    OUTPUT_FRAME_SIZE,
    OutputFlag,
    OutputPacket,
    decode_output_packet,
    encode_runs,
)
from tandemfeed.feedcore.wire.position import MessageStreamState, Run
from tandemfeed.journal.read.sequence_marks import MARK_EVERY
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


def test_exactly_the_packets_that_cover_the_source_messages_are_replayed(tmp_path: Path) -> None:
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


def test_a_full_disk_does_not_stop_the_stream_and_journaling_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    now_ns = 1
    monkeypatch.setattr("tandemfeed.adapter.records.output_journal.time.monotonic_ns", lambda: now_ns)
    with SmallDisk(disk, "1m"):
        journal = OutputJournal(disk / "journal", block_size=BLOCK)
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
    for is_reopened in (False, True):
        if is_reopened:
            journal.close()
            journal = OutputJournal(tmp_path, block_size=BLOCK)
        for at in (0, 1, count // 2, count - 10, count - 9, count, 2 * count - 1):
            time_ns, message_seq = sent[at]
            assert journal.locate(1, time_ns) == (message_seq, time_ns)
            assert journal.locate(1, time_ns - 9) == (message_seq, time_ns)
        assert journal.locate(1, 0) == (1, 1_000)
        assert journal.locate(1, sent[-1][0] + 1) == (next_message, 0)
        assert journal.locate(2, 0) == (0, 0)
        assert journal.locate(1, 0, session=20_261_122) == (0, 0)
    later = packet(1, 1, 2)._replace(session=20_261_122, source_sent_at_ns=90_000)
    journal.append(later)
    assert journal.locate(1, 0) == (1, 90_000)
    assert journal.locate(1, 1_001, session=20_261_121) == (3, 1_010)
    journal.close()
